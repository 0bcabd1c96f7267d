"""Metamorphic relations of packed problems: sequences are independent, wherever they lie.

Each relation holds for a result only if the float64 reference obeys it for this case. An operator
that mixes sequences, say one that normalizes over all rows, then has no such relation, and no
false alarm.
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
    value_of,
)
from tlmatrix.problem.declared.tensors import drawn_inputs
from tlmatrix.problem.model import Relation
from tlmatrix.problem.poison import poison_scale
from tlmatrix.problem.relations.forms import balanced_lengths
from tlmatrix.problem.seeded import permutation, seeded_random
from tlmatrix.spec.lengths import sides_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tlmatrix.problem.declared.build import Declared
    from tlmatrix.problem.model import RelationKind, Tensors

__all__ = ["other_lengths", "packed_relations"]

_CLOSE = 1e-9
"""Relative difference of two float64 references that counts as rounding."""
_NEW = -1
"""In the place of a sequence of the case: one with new values."""


def packed_relations(case: Declared, kind: RelationKind) -> Iterator[Relation]:
    """The relations of one kind, for each packed axis of the case.

    Of the three that make another batch of the same sequences a case tries one, by its seed.
    """
    if kind not in ("isolation", "poison", "relations"):
        return
    for axis in packed_axes(case.setup.values, case.declaration):
        batch = _Batch(case, axis)
        if kind != "relations" and batch.count > 1:
            found = batch.isolated() if kind == "isolation" else batch.poisoned()
        elif kind == "relations":
            several = (batch.permuted, batch.split) if batch.count > 1 else ()
            forms = (*several, batch.extended)
            found = forms[case.setup.seed % len(forms)]()
        else:
            continue
        if found is not None:
            yield found


def other_lengths(case: Declared, distribution: str, seed: int) -> Declared:
    """The case with other inputs; where that goes with other lengths, in tensors of the same sizes.

    An entry that keeps what it found in a tensor of lengths then meets the tensor again.
    """
    setup = case.setup
    made = drawn_inputs(setup, case.declaration, distribution, seed)
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
        inputs = drawn_inputs(setup, case.declaration, distribution, seed)
        other = replace(plain, setup=setup, inputs=inputs)
        shapes = {name: info.shape for name, info in other.infos.items()}
    except Exception:  # noqa: BLE001 - the reference cannot take these lengths
        return plain
    same = all(inputs[name].shape == made[name].shape for name in made)
    mine = {name: info.shape for name, info in case.infos.items()}
    return other if same and shapes == mine else plain


class _UnfitError(Exception):
    """The sequences cannot be taken apart: a tensor depends on the lengths in another way."""


@dataclass(frozen=True)
class _Batch:
    """A case whose tensors are taken apart by the sequences of one packed axis."""

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
        """Where the rows of a pool of pages stand, slots counted over the pages."""
        case = self.case
        sizes = case.sizes(name) or ()
        paging = paging_of(case.declaration, sizes, case.setup.values, case.setup.seed)
        packing = packing_of(sizes[0], case.setup.values) if paging is not None else None
        if paging is None or packing is None or packing.axis != self.axis:
            return None
        return paging.rows.to(case.setup.device)

    def whole(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor with its rows one after another, those of a pool taken out of their pages."""
        rows = self._rows(name)
        return tensor if rows is None else tensor.flatten(0, 1)[rows]

    def along(self, name: str) -> dict[int, tuple[int, ...]]:
        """By dimension of `whole`: how many elements each sequence has there."""
        sizes = self.case.sizes(name) or ()
        if self._rows(name) is not None:
            sizes = (sizes[0], *sizes[2:])
        found = {}
        for place, size in enumerate(sizes):
            packing = packing_of(size, self.case.setup.values)
            if packing is not None and packing.axis == self.axis:
                if packing.kind == "pages" and self._rows(name) is None:
                    raise _UnfitError(name)
                found[place] = packing.sizes
        return found

    def _index(self, name: str, order: Sequence[int]) -> tuple[torch.Tensor | slice, ...]:
        """What picks the sequences `order` of `whole`, along all dimensions that have any."""
        along = self.along(name)
        found: list[torch.Tensor | slice] = [slice(None)] * (max(along, default=-1) + 1)
        for number, (place, sizes) in enumerate(along.items()):
            starts = list(accumulate(sizes, initial=0))
            parts = [torch.arange(starts[each], starts[each + 1]) for each in order]
            rows = torch.cat([*parts, torch.zeros(0, dtype=torch.int64)]).to(self.case.setup.device)
            found[place] = rows.view(-1, *[1] * (len(along) - 1 - number))
        return tuple(found)

    def of(self, name: str, tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
        """What of a tensor belongs to the sequences `order`, in that order."""
        return self.whole(name, tensor)[self._index(name, order)]

    def packed(self, tensors: Tensors, order: Sequence[int]) -> dict[str, torch.Tensor]:
        """What of the results belongs to the sequences `order`; others are left out."""
        return {
            name: self.of(name, tensor, order)
            for name, tensor in tensors.items()
            if self.along(name)
        }

    def batch_of(self, origins: Sequence[int], lengths: Sequence[int], factor: float = 1) -> _Batch:
        """The case of other sequences: each one of this case, or one of new values (`_NEW`).

        `lengths` names, for each sequence, the one of this case that it is as long as. New floats
        are multiplied by `factor`, but for those whose range the spec gives.

        Raises:
            _UnfitError: a tensor cannot be made of parts of this case's.
        """
        mine = self.case
        value = selected_lengths(mine.setup.values[self.axis], lengths)
        setup = replace(mine.setup, values={**mine.setup.values, self.axis: value})
        if not setup.satisfies_where(setup.values):
            raise _UnfitError(self.axis)
        seed = mine.seed + 1
        fresh = drawn_inputs(setup, mine.declaration, "normal", seed)
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
        """A tensor of another batch: sequences of this one's where it has them, else fresh ones."""
        if not self.along(name):
            if any(size > its for size, its in zip(fresh.shape, old.shape, strict=True)):
                raise _UnfitError(name)
            return old[tuple(slice(size) for size in fresh.shape)]
        whole = _scaled(other.whole(name, fresh), factor)
        kept = [number for number, origin in enumerate(origins) if origin != _NEW]
        theirs = self.of(name, old, [origins[number] for number in kept])
        into = whole[other._index(name, kept)]
        if any(size > its for size, its in zip(into.shape, theirs.shape, strict=True)):
            raise _UnfitError(name)
        whole = whole.clone()
        whole[other._index(name, kept)] = theirs[tuple(slice(size) for size in into.shape)]
        rows = other._rows(name)
        if rows is None:
            return whole
        pool = fresh.clone()
        pool.flatten(0, 1)[rows] = whole
        return pool

    # Isolation and poison -------------------------------------------------------------------------

    def isolated(self) -> Relation | None:
        """Other values in one sequence."""
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
        """Huge values in all sequences but one."""
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
        """The sequences in another order."""
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
            f"sequences in the order {order} must give the same results in that order",
        )

    def split(self) -> Relation | None:
        """The batch as two; gradients of what all sequences share are the sum of both."""
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
            f"the batch split before sequence {cut}, run as two, must give the same results",
        )

    def extended(self) -> Relation | None:
        """One more sequence in front, so that every other one starts elsewhere in memory."""
        model, mine = self._some_sequence(), range(self.count)
        return self._relation(
            "batch_extended",
            "relations",
            [([_NEW, *mine], [model, *mine])],
            lambda tensors: self.packed(tensors, mine),
            lambda others, results: others[0].packed(results[0], range(1, self.count + 1)),
            f"a sequence like {model}, with other values, in front must change nothing",
        )

    # What the reference says ----------------------------------------------------------------------

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
        """The relation for those results for which the reference obeys it; None without any."""
        try:
            others = [self.batch_of(origins, lengths, factor) for origins, lengths in batches]
            names = self._obeying(name, left, lambda results: right(others, results), others)
        except Exception:  # noqa: BLE001 - unfit, or the reference cannot take these sequences
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

    def _obeying(
        self,
        name: str,
        left: Callable[[Tensors], Tensors],
        right: Callable[[Sequence[Tensors]], Tensors],
        others: Sequence[_Batch],
    ) -> frozenset[str]:
        """The results for which the reference obeys; without one, all if the spec names it."""
        if self.case.reference is None:
            named = {each.name for each in self.case.setup.spec.relations}
            return frozenset(self.case.infos) if name in named else frozenset()
        mine, theirs = left(self.case.exact), right([other.case.exact for other in others])
        return frozenset(
            each for each, tensor in mine.items() if each in theirs and _close(tensor, theirs[each])
        )

    def _some_sequence(self) -> int:
        """One picked by the case's seed, with rows if any sequence has some."""
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
