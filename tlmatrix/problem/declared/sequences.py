"""Metamorphic relations of packed problems: sequences are independent, wherever they lie.

Each relation is checked on the float64 reference first. An operator that mixes sequences, say one
that normalizes over all rows, then has no such relation, and no false alarm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.declared.packed import (
    owned_slots,
    packed_axes,
    packing_of,
    selected_lengths,
)
from tlmatrix.problem.declared.tensors import drawn_inputs, sizes_of
from tlmatrix.problem.model import Relation
from tlmatrix.problem.poison import huge
from tlmatrix.problem.relate import chooser, permutation, untouched
from tlmatrix.spec.lengths import sides_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tlmatrix.problem.declared.build import Declared
    from tlmatrix.problem.declared.packed import Packing
    from tlmatrix.problem.model import RelationKind, Tensors
    from tlmatrix.spec.values import Value

__all__ = ["PACKED_RELATIONS", "packed_relations"]

PACKED_RELATIONS = ("batch_permuted", "batch_split", "batch_extended")
"""Relations of the kind `property` that every packed problem has."""
_CLOSE = 1e-9
"""Relative difference of two float64 references that counts as rounding."""


def packed_relations(case: Declared, kind: RelationKind) -> Iterator[Relation]:
    """The relations of one kind, for each packed axis of the case."""
    for axis in packed_axes(case.frame.values, case.declaration):
        batch = _Batch(case, axis)
        if batch.count < 2:
            continue
        match kind:
            case "isolation":
                yield from batch.isolated()
            case "poison":
                yield from batch.poisoned()
            case "property" if not batch.paged:
                of_batch = (batch.permuted, batch.split, batch.extended)
                yield from of_batch[case.frame.seed % len(of_batch)]()


@dataclass(frozen=True)
class _Batch:
    """A case taken apart along one packed axis."""

    case: Declared
    axis: str

    @property
    def count(self) -> int:
        return len(sides_of(self.case.frame.values[self.axis])[0])

    @property
    def paged(self) -> bool:
        """Whether rows lie in pages, which belong to no position of the batch."""
        return any(decl.pages_of is not None for decl in self.case.declaration.inputs.values())

    def packing(self, name: str, case: Declared | None = None) -> tuple[int, Packing] | None:
        """The dimension of a tensor that follows from the axis, and how; None without one."""
        case = case or self.case
        for place, size in enumerate(case.size_texts(name)):
            found = packing_of(size, case.frame.values)
            if found is not None and found.axis == self.axis:
                return place, found
        return None

    def parts(
        self, name: str, tensor: torch.Tensor, case: Declared | None = None
    ) -> list[torch.Tensor] | None:
        """A tensor by sequence (views); None where no dimension follows from the axis."""
        found = self.packing(name, case)
        if found is None or found[1].kind == "pages":
            return None
        place, packing = found
        if sum(packing.sizes) != tensor.shape[place]:
            return None
        return list(tensor.split(list(packing.sizes), place))  # type: ignore[no-untyped-call]

    def joined(self, name: str, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
        found = self.packing(name)
        assert found is not None
        return torch.cat(list(pieces), found[0])

    def of_sequences(self, tensors: Tensors, keep: Sequence[int]) -> dict[str, torch.Tensor]:
        """What of the results belongs to the sequences `keep`."""
        found = {}
        for name, tensor in tensors.items():
            pieces = self.parts(name, tensor)
            if pieces is not None:
                found[name] = self.joined(name, [pieces[number] for number in keep])
        return found

    def selected(self, order: Sequence[int]) -> Declared:
        """The case of the sequences `order` alone, in that order."""
        value = selected_lengths(self.case.frame.values[self.axis], order)

        def pick(name: str, tensor: torch.Tensor) -> torch.Tensor:
            pieces = self.parts(name, tensor)
            return tensor if pieces is None else self.joined(name, [pieces[n] for n in order])

        return self._with_lengths(value, pick)

    def _with_lengths(
        self, value: Value, pick: Callable[[str, torch.Tensor], torch.Tensor]
    ) -> Declared:
        case = self.case
        frame = replace(case.frame, values={**case.frame.values, self.axis: value})
        again = drawn_inputs(frame, case.declaration, case.distribution, case.seed, derived=True)
        inputs = {}
        for name, tensor in case.inputs.items():
            if name in again:
                inputs[name] = again[name]
                continue
            path = ("problem", "inputs", name, "shape")
            shape = sizes_of(frame, case.declaration.inputs[name].sizes, path)
            inputs[name] = _cut(pick(name, tensor), shape)
        made = replace(case, frame=frame, inputs=inputs)
        cotangents = {
            name: _cut(pick(name, tensor), made.infos[name].shape)
            for name, tensor in case.cotangents.items()
        }
        return replace(made, given_cotangents=cotangents)

    # Isolation and poison -------------------------------------------------------------------------

    def changed(self, sequences: Sequence[int], factor: float = 1.0) -> Declared:
        """The case with other values in some sequences; floats are multiplied by `factor`."""
        case = self.case
        other = drawn_inputs(case.frame, case.declaration, "normal", case.seed + 1)
        inputs = {}
        for name, tensor in case.inputs.items():
            decl = case.declaration.inputs[name]
            found = None if decl.derived is not None else self.packing(name)
            inputs[name] = tensor
            if found is None:
                continue
            its = other[name] * factor if tensor.is_floating_point() else other[name]
            place, packing = found
            if packing.kind == "pages":
                inputs[name] = self._pool_changed(tensor, its, packing, sequences)
                continue
            pieces, theirs = (list(t.split(list(packing.sizes), place)) for t in (tensor, its))  # type: ignore[no-untyped-call]
            for number in sequences:
                pieces[number] = theirs[number]
            inputs[name] = torch.cat(pieces, place)
        return replace(case, inputs=inputs, given_cotangents=dict(case.cotangents))

    def _pool_changed(
        self, pool: torch.Tensor, its: torch.Tensor, packing: Packing, sequences: Sequence[int]
    ) -> torch.Tensor:
        slots = owned_slots(packing.lengths, pool.shape[1], self.case.seed, sequences).to(
            pool.device
        )
        made = pool.clone()
        made.flatten(0, 1)[slots] = its.flatten(0, 1)[slots]
        return made

    def isolated(self) -> Iterator[Relation]:
        victim = self._some_sequence()
        keep = [number for number in range(self.count) if number != victim]
        yield from self._untouched(
            "isolation_sequence",
            "isolation",
            self.changed([victim]),
            keep,
            f"other values in sequence {victim} must change no bit of another sequence",
        )

    def poisoned(self) -> Iterator[Relation]:
        kept = self._some_sequence()
        dtypes = {t.dtype for t in self.case.inputs.values() if t.is_floating_point()}
        factor = min((huge(str(dtype).removeprefix("torch.")) for dtype in dtypes), default=1.0)
        neighbours = [number for number in range(self.count) if number != kept]
        yield from self._untouched(
            "poison_neighbours",
            "poison",
            self.changed(neighbours, factor),
            [kept],
            f"values of size {factor:g} in every other sequence must change no bit of "
            f"sequence {kept}",
        )

    def _untouched(
        self, name: str, kind: RelationKind, other: Declared, keep: Sequence[int], because: str
    ) -> Iterator[Relation]:
        def part(tensors: Tensors) -> Tensors:
            return self.of_sequences(tensors, keep)

        if self._holds(part, lambda results: part(results[0]), [other]):
            yield untouched(name, kind, other.problem(), part, because)

    # The same sequences in another batch ----------------------------------------------------------

    def permuted(self) -> Iterator[Relation]:
        order = permutation(chooser(self.case.frame.seed), self.count)
        moved = self.selected(order)

        def back(results: Sequence[Tensors]) -> Tensors:
            found = dict(results[0])
            for name, tensor in results[0].items():
                pieces = self.parts(name, tensor, moved)
                if pieces is not None:
                    ordered = [pieces[order.index(number)] for number in range(self.count)]
                    found[name] = self.joined(name, ordered)
            return found

        yield from self._relation(
            "batch_permuted",
            [moved],
            back,
            f"sequences in the order {order} must give the same results in that order",
        )

    def split(self) -> Iterator[Relation]:
        cut = chooser(self.case.frame.seed).randrange(1, self.count)
        halves = [self.selected(range(cut)), self.selected(range(cut, self.count))]

        def together(results: Sequence[Tensors]) -> Tensors:
            found = {}
            for name, tensor in results[0].items():
                if self._alike(name, halves):
                    found[name] = self.joined(name, [tensor, results[1][name]])
                elif name in self.case.differentiable:
                    found[name] = tensor + results[1][name]
            return found

        def mine(results: Tensors) -> Tensors:
            summed = {name: results[name] for name in self.case.differentiable if name in results}
            parts = {name: t for name, t in results.items() if self._alike(name, halves)}
            return parts | summed

        yield from self._relation(
            "batch_split",
            halves,
            together,
            f"the batch split before sequence {cut}, run as two, must give the same results",
            mine,
        )

    def extended(self) -> Iterator[Relation]:
        case, model = self.case, self._some_sequence()
        value = selected_lengths(case.frame.values[self.axis], [model, *range(self.count)])
        other = drawn_inputs(case.frame, case.declaration, "normal", case.seed + 1)
        cotangents = {name: torch.ones_like(tensor) for name, tensor in case.cotangents.items()}

        def pick(name: str, tensor: torch.Tensor) -> torch.Tensor:
            first = self.parts(name, {**cotangents, **other}[name])
            pieces = self.parts(name, tensor)
            if pieces is None or first is None:
                return tensor
            return self.joined(name, [first[model], *pieces])

        longer = self._with_lengths(value, pick)

        def rest(results: Sequence[Tensors]) -> Tensors:
            found = {}
            for name, tensor in results[0].items():
                pieces = self.parts(name, tensor, longer)
                if pieces is not None:
                    found[name] = self.joined(name, pieces[1:])
            return found

        yield from self._relation(
            "batch_extended",
            [longer],
            rest,
            f"a sequence like {model}, with other values, in front of the batch must change "
            "nothing",
            self._packed,
        )

    def _alike(self, name: str, others: Sequence[Declared]) -> bool:
        """Whether a tensor has a part for each sequence, and parts of one size in all cases.

        A dimension such as `max(seqlens)` may differ.
        """
        found = self.packing(name)
        if found is None:
            return False
        shapes = [list(case.infos[name].shape) for case in (self.case, *others)]
        for shape in shapes:
            del shape[found[0]]
        return all(shape == shapes[0] for shape in shapes)

    def _packed(self, results: Tensors) -> dict[str, torch.Tensor]:
        return {name: t for name, t in results.items() if self.packing(name) is not None}

    def _relation(
        self,
        name: str,
        others: Sequence[Declared],
        right: Callable[[Sequence[Tensors]], Tensors],
        because: str,
        left: Callable[[Tensors], Tensors] = lambda mine: mine,
    ) -> Iterator[Relation]:
        frame = self.case.frame
        if not all(frame.obeys(other.frame.values) for other in others):
            return
        if self._holds(left, right, others):
            problems = tuple(other.problem() for other in others)
            yield Relation(name, "property", problems, left, right, because=because)

    def _holds(
        self,
        left: Callable[[Tensors], Tensors],
        right: Callable[[Sequence[Tensors]], Tensors],
        others: Sequence[Declared],
    ) -> bool:
        """Whether the reference obeys the relation; true where there is none to ask."""
        if self.case.reference is None:
            return True
        mine, theirs = left(self.case.exact), right([other.exact for other in others])
        return all(
            tensor.shape == theirs[name].shape and _close(tensor, theirs[name])
            for name, tensor in mine.items()
            if name in theirs
        )

    def _some_sequence(self) -> int:
        """One picked by the case's seed, with rows if any sequence has some."""
        q, k = sides_of(self.case.frame.values[self.axis])
        some = [number for number in range(self.count) if q[number] and k[number]]
        some = some or list(range(self.count))
        return some[int(chooser(self.case.frame.seed).random() * len(some))]


def _cut(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The leading elements along dimensions that are shorter in another batch (`max(seqlens)`)."""
    return tensor[tuple(slice(size) for size in shape)]


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    size = float(torch.nan_to_num(one, posinf=0.0, neginf=0.0).abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=_CLOSE, atol=_CLOSE * size, equal_nan=True)
