"""Metamorphic relations of declared problems with packed axes: sequences are independent.

A relation is checked for a result only if the float64 reference satisfies it in this case. An
operator that mixes sequences (a norm over all rows) therefore has no such relation, and no false
positive.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.declared.packed import (
    packed_axes,
    packing_of,
    paging_of,
    selected_lengths,
)
from tlmatrix.problem.declared.tensors import generate_inputs
from tlmatrix.problem.model import Relation
from tlmatrix.problem.poison import poison_scale
from tlmatrix.problem.seeded import permutation, seeded_random
from tlmatrix.spec.lengths import sides_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tlmatrix.problem.declared.build import Declared
    from tlmatrix.problem.model import RelationKind, Tensors

_CLOSE = 1e-9
"""Largest relative difference of two float64 references that counts as rounding."""
_NEW = -1
"""Stands for a sequence with new values, among the numbers of sequences."""


def packed_relations(case: Declared, kind: RelationKind) -> Iterator[Relation]:
    """The relations of one kind, for each packed axis of the case.

    Of the three that rearrange the batch, the seed of the case selects one.
    """
    if kind not in ("isolation", "poison", "relations"):
        return
    for axis in packed_axes(case.setup.values, case.declaration):
        batch = _Batch(case, axis)
        if kind != "relations" and batch.count > 1:
            found = batch.isolated() if kind == "isolation" else batch.poisoned()
        elif kind == "relations":
            several = (batch.permuted, batch.split) if batch.count > 1 else ()
            choices = (*several, batch.extended)
            found = choices[case.setup.seed % len(choices)]()
        else:
            continue
        if found is not None:
            yield found


class _NotSplittableError(Exception):
    """A tensor cannot be split by sequence: it depends on the lengths in another way."""


@dataclass(frozen=True)
class _Batch:
    """A case whose tensors are split by the sequences of one packed axis."""

    case: Declared
    axis: str

    @cached_property
    def _sides(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return sides_of(self.case.setup.values[self.axis], self.axis)

    @property
    def count(self) -> int:
        """Number of sequences."""
        return len(self._sides[0])

    # Tensors by sequence --------------------------------------------------------------------------

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

    def along(self, name: str) -> dict[int, tuple[int, ...]]:
        """The number of elements of each sequence, by dimension of `in_rows`."""
        sizes = self.case.sizes(name) or ()
        if self._rows(name) is not None:
            sizes = (sizes[0], *sizes[2:])
        found = {}
        for dim, size in enumerate(sizes):
            packing = packing_of(size, self.case.setup.values)
            if packing is not None and packing.axis == self.axis:
                if packing.kind == "pages" and self._rows(name) is None:
                    raise _NotSplittableError(name)
                found[dim] = packing.sizes
        return found

    def _index(self, name: str, order: Sequence[int]) -> tuple[torch.Tensor | slice, ...]:
        """An index of `in_rows` that selects the sequences `order`, along all packed dimensions."""
        along = self.along(name)
        found: list[torch.Tensor | slice] = [slice(None)] * (max(along, default=-1) + 1)
        for number, (dim, sizes) in enumerate(along.items()):
            starts = list(accumulate(sizes, initial=0))
            parts = [torch.arange(starts[each], starts[each + 1]) for each in order]
            rows = torch.cat([*parts, torch.zeros(0, dtype=torch.int64)]).to(self.case.setup.device)
            found[dim] = rows.view(-1, *[1] * (len(along) - 1 - number))
        return tuple(found)

    def of(self, name: str, tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
        """The part of a tensor that belongs to the sequences `order`, in that order."""
        return self.in_rows(name, tensor)[self._index(name, order)]

    def packed(self, tensors: Tensors, order: Sequence[int]) -> dict[str, torch.Tensor]:
        """The parts of packed results that belong to the sequences `order`."""
        return {
            name: self.of(name, tensor, order)
            for name, tensor in tensors.items()
            if self.along(name)
        }

    def batch_of(self, origins: Sequence[int], lengths: Sequence[int], factor: float = 1) -> _Batch:
        """A batch of other sequences.

        Args:
            origins: for each sequence its number in this case, or `_NEW` for one with new values.
            lengths: for each sequence the number of one in this case with the same length.
            factor: multiplies new floating-point values, except those with a declared range.

        Raises:
            _NotSplittableError: a tensor cannot be composed of parts of this case.
        """
        mine = self.case
        value = selected_lengths(mine.setup.values[self.axis], lengths)
        setup = replace(mine.setup, values={**mine.setup.values, self.axis: value})
        if not setup.satisfies_where(setup.values):
            raise _NotSplittableError(self.axis)
        seed = mine.seed + 1
        fresh = generate_inputs(setup, mine.declaration, "normal", seed)
        other = _Batch(
            replace(mine, setup=setup, inputs=fresh, seed=seed, given_cotangents=None), self.axis
        )
        inputs = {}
        for name, tensor in fresh.items():
            decl = mine.declaration.inputs[name]
            scale = factor if decl.between is None else 1
            inputs[name] = (
                tensor
                if decl.derived is not None
                else self._mixed(other, name, tensor, mine.inputs[name], origins, scale)
            )
        made = replace(other.case, inputs=inputs)
        cotangents = {
            name: self._mixed(other, name, tensor, mine.cotangents[name], origins, factor)
            for name, tensor in (made.cotangents if mine.differentiable else {}).items()
        }
        return _Batch(replace(made, given_cotangents=cotangents), self.axis)

    def _mixed(
        self,
        other: _Batch,
        name: str,
        fresh: torch.Tensor,
        old: torch.Tensor,
        origins: Sequence[int],
        factor: float,
    ) -> torch.Tensor:
        """A tensor of another batch, with sequences of this one for those that are not new."""
        if not self.along(name):
            if any(size > its for size, its in zip(fresh.shape, old.shape, strict=True)):
                raise _NotSplittableError(name)
            return old[tuple(slice(size) for size in fresh.shape)]
        rows_of_all = _scaled(other.in_rows(name, fresh), factor)
        kept = [number for number, origin in enumerate(origins) if origin != _NEW]
        theirs = self.of(name, old, [origins[number] for number in kept])
        into = rows_of_all[other._index(name, kept)]
        if any(size > its for size, its in zip(into.shape, theirs.shape, strict=True)):
            raise _NotSplittableError(name)
        rows_of_all = rows_of_all.clone()
        rows_of_all[other._index(name, kept)] = theirs[tuple(slice(size) for size in into.shape)]
        rows = other._rows(name)
        if rows is None:
            return rows_of_all
        pool = fresh.clone()
        pool.flatten(0, 1)[rows] = rows_of_all
        return pool

    # Isolation and poison -------------------------------------------------------------------------

    def isolated(self) -> Relation | None:
        """New values in one sequence must not change the others."""
        victim = self._some_sequence()
        keep = [number for number in range(self.count) if number != victim]
        return self._untouched(
            "isolation_sequence",
            "isolation",
            keep,
            1,
            f"other values in sequence {victim} must change no bit of another sequence",
        )

    def poisoned(self) -> Relation | None:
        """Huge values in all sequences but one must not change that one."""
        kept = self._some_sequence()
        dtypes = {t.dtype for t in self.case.inputs.values() if t.is_floating_point()}
        factor = min(
            (poison_scale(str(dtype).removeprefix("torch.")) for dtype in dtypes), default=1.0
        )
        return self._untouched(
            "poison_neighbours",
            "poison",
            [kept],
            factor,
            f"values of size {factor:g} in every other sequence must change no bit of "
            f"sequence {kept}",
        )

    def _untouched(
        self, name: str, kind: RelationKind, keep: Sequence[int], factor: float, because: str
    ) -> Relation | None:
        origins = [number if number in keep else _NEW for number in range(self.count)]

        def part(tensors: Tensors) -> Tensors:
            return self.packed(tensors, keep)

        return self._relation(
            name,
            kind,
            [(origins, range(self.count))],
            part,
            lambda _others, results: part(results[0]),
            because,
            factor=factor,
            exact=True,
        )

    # The same sequences in another batch ----------------------------------------------------------

    def permuted(self) -> Relation | None:
        """A permutation of the sequences must permute the results."""
        order = permutation(seeded_random(self.case.setup.seed), self.count)
        inverse = [order.index(number) for number in range(self.count)]

        def back(others: Sequence[_Batch], results: Sequence[Tensors]) -> Tensors:
            return dict(results[0]) | others[0].packed(results[0], inverse)

        return self._relation(
            "batch_permuted",
            "relations",
            [(order, order)],
            lambda mine: dict(mine) | self.packed(mine, range(self.count)),
            back,
            f"permuting the sequences to {order} must permute the results",
        )

    def split(self) -> Relation | None:
        """Two calls with a part of the batch each; gradients of shared inputs are summed."""
        cut = seeded_random(self.case.setup.seed).randrange(1, self.count)
        halves = [range(cut), range(cut, self.count)]
        differentiable = self.case.differentiable

        def parts(mine: Tensors) -> Tensors:
            found = self.packed(mine, range(self.count))
            several = [name for name in found if len(self.along(name)) != 1]
            shared = {name: mine[name] for name in differentiable if name in mine}
            return shared | {n: tensor for n, tensor in found.items() if n not in several}

        def together(others: Sequence[_Batch], results: Sequence[Tensors]) -> Tensors:
            found = {}
            pieces = [
                other.packed(its, range(other.count))
                for other, its in zip(others, results, strict=True)
            ]
            for name, tensor in results[0].items():
                along = self.along(name)
                if len(along) == 1:
                    found[name] = torch.cat([piece[name] for piece in pieces], next(iter(along)))
                elif name in differentiable and not along:
                    found[name] = tensor + results[1][name]
            return found

        return self._relation(
            "batch_split",
            "relations",
            [(half, half) for half in halves],
            parts,
            together,
            f"the batch split before sequence {cut}, in two calls, must give the same results",
        )

    def extended(self) -> Relation | None:
        """One more sequence in front, which moves the others in memory."""
        model, mine = self._some_sequence(), range(self.count)
        return self._relation(
            "batch_extended",
            "relations",
            [([_NEW, *mine], [model, *mine])],
            lambda tensors: self.packed(tensors, mine),
            lambda others, results: others[0].packed(results[0], range(1, self.count + 1)),
            f"a sequence as long as {model}, in front of the batch, must not change the others",
        )

    # Relations that the reference satisfies -------------------------------------------------------

    def _relation(
        self,
        name: str,
        kind: RelationKind,
        batches: Sequence[tuple[Sequence[int], Sequence[int]]],
        left: Callable[[Tensors], Tensors],
        right: Callable[[Sequence[_Batch], Sequence[Tensors]], Tensors],
        because: str,
        *,
        factor: float = 1,
        exact: bool = False,
    ) -> Relation | None:
        """The relation for the results whose reference satisfies it; None if there are none."""
        try:
            others = [self.batch_of(origins, lengths, factor) for origins, lengths in batches]
            names = self._satisfied(name, left, lambda results: right(others, results), others)
        except Exception:  # noqa: BLE001 - does not fit, or the reference raised
            return None
        if not names:
            return None
        return Relation(
            name,
            kind,
            tuple(other.case.problem() for other in others),
            lambda mine: {each: tensor for each, tensor in left(mine).items() if each in names},
            lambda results: right(others, results),
            exact=exact,
            because=because,
        )

    def _satisfied(
        self,
        name: str,
        left: Callable[[Tensors], Tensors],
        right: Callable[[Sequence[Tensors]], Tensors],
        others: Sequence[_Batch],
    ) -> frozenset[str]:
        """The results whose reference satisfies the relation.

        Without a reference: all if the spec lists the relation, else none.
        """
        if self.case.reference is None:
            named = {each.name for each in self.case.setup.spec.relations}
            return frozenset(self.case.infos) if name in named else frozenset()
        mine, theirs = left(self.case.exact), right([other.case.exact for other in others])
        return frozenset(
            each for each, tensor in mine.items() if each in theirs and _close(tensor, theirs[each])
        )

    def _some_sequence(self) -> int:
        """The number of a sequence, chosen by seed; not an empty one if possible."""
        full = [number for number, pair in enumerate(zip(*self._sides, strict=True)) if all(pair)]
        some = full or range(self.count)
        return some[int(seeded_random(self.case.setup.seed).random() * len(some))]


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
