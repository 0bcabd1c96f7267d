"""Metamorphic relations of declared problems: repeated calls, and those of packed axes.

A relation of sequences is checked for a result only if the float64 reference satisfies it in this
case. An operator that mixes sequences (a norm over all rows) therefore has no such relation, and no
false positive.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import torch

from tlmatrix.problem.declared.inputs import (
    generate_inputs,
    packed_axes,
    packing_of,
    paging_of,
    selected_lengths,
    value_of,
)
from tlmatrix.problem.distributions import poison_scale
from tlmatrix.problem.relations import balanced_lengths, repeated
from tlmatrix.problem.relations.batch import NEW, Batch, NotComposableError, place, select
from tlmatrix.spec.values import sides_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from tlmatrix.problem.declared.build import Declared
    from tlmatrix.problem.model import Problem, Relation, RelationKind, Tensors
    from tlmatrix.problem.relations.batch import Along, Right

_CLOSE = 1e-9
"""Largest relative difference of two float64 references that counts as rounding."""


def declared_relations(case: Declared, kind: RelationKind) -> Iterator[Relation]:
    """The relations of one kind for a declared case."""
    if kind == "repeat":
        other = _other_lengths(case, "normal", case.seed + 1)
        because = "a second call must not remember the first"
        judge = () if case.reference is None else (0,)
        yield repeated(other.problem(), case.problem(), because, judge=judge)
    for axis in packed_axes(case.setup.values, case.declaration):
        yield from DeclaredBatch(case, axis).relations(kind)


def _other_lengths(case: Declared, distribution: str, seed: int) -> Declared:
    """The case with other inputs, and other lengths if tensors keep their sizes.

    Detects an entry that caches what it read from a tensor of lengths.
    """
    setup = case.setup
    made = generate_inputs(setup, case.declaration, distribution, seed)
    plain = replace(case, inputs=made, distribution=distribution, seed=seed, given_cotangents=None)
    changed = {
        axis: value_of(
            setup.values[axis], list(map(balanced_lengths, sides_of(setup.values[axis])))
        )
        for axis in packed_axes(setup.values, case.declaration)
    }
    values = {**setup.values, **changed}
    if not changed or case.reference is None or not setup.satisfies_where(values):
        return plain
    try:
        setup = replace(setup, values=values)
        inputs = generate_inputs(setup, case.declaration, distribution, seed)
        other = replace(plain, setup=setup, inputs=inputs)
        shapes = {name: info.shape for name, info in other.infos.items()}
    except Exception:  # noqa: BLE001 - the reference cannot take these lengths
        return plain
    same = all(inputs[name].shape == made[name].shape for name in made)
    mine = {name: info.shape for name, info in case.infos.items()}
    return other if same and shapes == mine else plain


@dataclass(frozen=True)
class DeclaredBatch(Batch):
    """A case whose tensors are split by the sequences of one packed axis."""

    case: Declared
    axis: str

    @property
    def seed(self) -> int:
        """See `Batch`."""
        return self.case.setup.seed

    @property
    def lengths(self) -> Sequence[tuple[int, int]]:
        """See `Batch`."""
        return list(zip(*sides_of(self.case.setup.values[self.axis], self.axis), strict=True))

    @property
    def poison(self) -> float:
        """See `Batch`: the least of the dtypes of inputs."""
        dtypes = {t.dtype for t in self.case.inputs.values() if t.is_floating_point()}
        scales = (poison_scale(str(dtype).removeprefix("torch.")) for dtype in dtypes)
        return min(scales, default=1.0)

    @property
    def summed(self) -> Collection[str]:
        """See `Batch`."""
        return self.case.differentiable

    def problem(self) -> Problem:
        """See `Batch`."""
        return self.case.problem()

    def _rows(self, name: str) -> torch.Tensor | None:
        """The slots (page * page_size + row) of the rows in a pool; None for other tensors."""
        case = self.case
        sizes = case.sizes(name) or ()
        paging = paging_of(case.declaration, sizes, case.setup.values, case.setup.seed)
        packing = packing_of(sizes[0], case.setup.values) if paging is not None else None
        if paging is None or packing is None or packing.axis != self.axis:
            return None
        return paging.rows.to(case.setup.device)

    def in_rows(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with packed rows; those of a pool are gathered from their pages."""
        rows = self._rows(name)
        return tensor if rows is None else tensor.flatten(0, 1)[rows]

    def along(self, name: str) -> Along:
        """See `Batch`."""
        sizes = self.case.sizes(name) or ()
        if self._rows(name) is not None:
            sizes = (sizes[0], *sizes[2:])
        found = {}
        for dim, size in enumerate(sizes):
            packing = packing_of(size, self.case.setup.values)
            if packing is not None and packing.axis == self.axis:
                if packing.kind == "pages" and self._rows(name) is None:
                    raise NotComposableError(name)
                found[dim] = packing.sizes
        return found

    def composed(self, origins: Sequence[int], lengths: Sequence[int], factor: float = 1.0) -> Self:
        """See `Batch`; `factor` does not multiply values with a declared range."""
        mine = self.case
        value = selected_lengths(mine.setup.values[self.axis], lengths)
        setup = replace(mine.setup, values={**mine.setup.values, self.axis: value})
        if not setup.satisfies_where(setup.values):
            raise NotComposableError(self.axis)
        seed = mine.seed + 1
        fresh = generate_inputs(setup, mine.declaration, "normal", seed)
        case = replace(mine, setup=setup, inputs=fresh, seed=seed, given_cotangents=None)
        other = replace(self, case=case)
        inputs = {}
        for name, tensor in fresh.items():
            decl = mine.declaration.inputs[name]
            scale = factor if decl.between is None else 1
            inputs[name] = (
                tensor
                if decl.derived is not None
                else self._mixed(other, name, tensor, mine.inputs[name], origins, scale)
            )
        case = replace(case, inputs=inputs)
        cotangents = {
            name: self._mixed(other, name, tensor, mine.cotangents[name], origins, factor)
            for name, tensor in (case.cotangents if mine.differentiable else {}).items()
        }
        return replace(self, case=replace(case, given_cotangents=cotangents))

    def _mixed(
        self,
        other: Self,
        name: str,
        fresh: torch.Tensor,
        old: torch.Tensor,
        origins: Sequence[int],
        factor: float,
    ) -> torch.Tensor:
        """A tensor of another batch, with sequences of this one for those that are not new."""
        if not self.along(name):
            if any(size > its for size, its in zip(fresh.shape, old.shape, strict=True)):
                raise NotComposableError(name)
            return old[tuple(slice(size) for size in fresh.shape)]
        made, along = _scaled(other.in_rows(name, fresh), factor), other.along(name)
        kept = [number for number, origin in enumerate(origins) if origin != NEW]
        theirs = self.part(name, old, [origins[number] for number in kept])
        shape = select(made, along, kept).shape
        if any(size > its for size, its in zip(shape, theirs.shape, strict=True)):
            raise NotComposableError(name)
        made = made.clone()
        place(made, along, kept, theirs[tuple(slice(size) for size in shape)])
        rows = other._rows(name)
        if rows is None:
            return made
        pool = fresh.clone()
        pool.flatten(0, 1)[rows] = made
        return pool

    def relation(
        self,
        name: str,
        kind: RelationKind,
        make: Callable[[], Sequence[Batch]],
        left: Callable[[Tensors], Tensors],
        right: Right,
        because: str,
        *,
        exact: bool = False,
        rounded: Callable[[Sequence[Tensors]], Tensors] | None = None,
    ) -> Relation | None:
        """The relation for the results whose reference satisfies it; None if there are none.

        Without a reference: for all if the spec lists the relation, else for none.
        """
        try:
            others = make()
            names = self._satisfied(name, left, lambda results: right(others, results), others)
        except Exception:  # noqa: BLE001 - does not fit, or the reference raised
            return None
        if not names:
            return None

        def some(mine: Tensors) -> Tensors:
            found = left(mine)
            return {each: found[each] for each in found if each in names}

        return super().relation(
            name, kind, lambda: others, some, right, because, exact=exact, rounded=rounded
        )

    def _satisfied(
        self,
        name: str,
        left: Callable[[Tensors], Tensors],
        right: Callable[[Sequence[Tensors]], Tensors],
        others: Sequence[Batch],
    ) -> frozenset[str]:
        if self.case.reference is None:
            named = {each.name for each in self.case.setup.spec.relations}
            return frozenset(self.case.infos) if name in named else frozenset()
        exact = [other.case.exact for other in others if isinstance(other, DeclaredBatch)]
        mine, theirs = left(self.case.exact), right(exact)
        return frozenset(
            each for each, tensor in mine.items() if each in theirs and _close(tensor, theirs[each])
        )


def _scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    if factor == 1 or not tensor.is_floating_point():
        return tensor
    return (tensor.double() * factor).to(tensor.dtype)


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    size = float(torch.nan_to_num(one, posinf=0.0, neginf=0.0).abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=_CLOSE, atol=_CLOSE * size, equal_nan=True)
