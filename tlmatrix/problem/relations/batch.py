"""The algebra of a batch: its sequences are selected, replaced, prepended, permuted and split.

Some dimensions of a tensor run over the sequences of a batch, one after another: `Along` has the
number of elements of each sequence, by dimension. Rows, columns and ranks are sequences of one
element (`singles`).

A `Batch` is a case whose sequences do not depend on each other, so that five relations hold: other
values in one sequence do not change the others (isolation), nor do huge values (poison); and the
batch may be permuted, split into two calls, or extended by a sequence in front.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Self

import torch

from tlmatrix.problem.distributions import permutation, seeded_random
from tlmatrix.problem.model import Relation
from tlmatrix.problem.tensors import LazyMapping, indexable

if TYPE_CHECKING:
    from tlmatrix.problem.model import Problem, RelationKind, Tensors

    Along = Mapping[int, Sequence[int]]
    Right = Callable[[Sequence["Batch"], Sequence[Tensors]], Tensors]

NEW = -1
"""Stands for a sequence with new values, among the numbers of sequences."""


class NotComposableError(Exception):
    """A batch of other sequences cannot be composed of parts of this one."""


# Tensors ------------------------------------------------------------------------------------------


def singles(tensor: torch.Tensor, *dims: int) -> dict[int, tuple[int, ...]]:
    """Each index of some dimensions as a sequence of one element."""
    return {dim: (1,) * tensor.shape[dim] for dim in dims}


def select(tensor: torch.Tensor, along: Along, order: Sequence[int]) -> torch.Tensor:
    """The elements of the sequences `order`, in that order; a view if these are consecutive."""
    run = range(order[0], order[-1] + 1) if order else range(0)
    for dim, sizes in along.items():
        starts = list(accumulate(sizes, initial=0))
        if list(order) == list(run):
            begin = starts[run.start]
            tensor = tensor.narrow(dim, begin, starts[run.stop] - begin)
        else:
            rows = [row for each in order for row in range(starts[each], starts[each + 1])]
            index = torch.tensor(rows, dtype=torch.int64, device=tensor.device)
            tensor = indexable(tensor).index_select(dim, index).view(tensor.dtype)
    return tensor


def place(target: torch.Tensor, along: Along, order: Sequence[int], part: torch.Tensor) -> None:
    """Write `part`, in the form of what `select` returns, to the sequences `order` of `target`."""
    if not along:
        target.copy_(part)
        return
    (dim, sizes), *others = along.items()
    starts, begin = list(accumulate(sizes, initial=0)), 0
    for each in order:
        inner = (target.narrow(dim, starts[each], sizes[each]), dict(others), order)
        place(*inner, part.narrow(dim, begin, sizes[each]))
        begin += sizes[each]


def without(tensor: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    """The tensor without one index of a dimension."""
    kept = [each for each in range(tensor.shape[dim]) if each != index]
    return select(tensor, singles(tensor, dim), kept)


def inverse(order: Sequence[int]) -> list[int]:
    """The permutation that undoes `order`."""
    return sorted(range(len(order)), key=order.__getitem__)


# Cases --------------------------------------------------------------------------------------------


class Batch(ABC):
    """A case whose tensors consist of sequences; its relations build others of them."""

    @property
    @abstractmethod
    def seed(self) -> int:
        """Selects the relation, and its sequence, permutation or cut."""

    @property
    @abstractmethod
    def lengths(self) -> Sequence[tuple[int, int]]:
        """The lengths of each sequence, of queries and keys."""

    @property
    @abstractmethod
    def poison(self) -> float:
        """The factor of values that must not affect other sequences."""

    @property
    @abstractmethod
    def summed(self) -> Collection[str]:
        """The results that are sums over all sequences, if no dimension runs over these."""

    @abstractmethod
    def along(self, name: str) -> Along:
        """The number of elements of each sequence of an input or result, by dimension.

        Raises:
            NotComposableError: the tensor depends on the lengths in another way.
        """

    @abstractmethod
    def composed(self, origins: Sequence[int], lengths: Sequence[int], factor: float = 1.0) -> Self:
        """A batch of other sequences.

        Args:
            origins: for each sequence its number in this batch, or `NEW` for one with new values.
            lengths: for each sequence the number of one in this batch with the same lengths.
            factor: multiplies new values.

        Raises:
            NotComposableError: there is no such case.
        """

    @abstractmethod
    def problem(self) -> Problem:
        """The problem of the case, without relations."""

    def in_rows(self, name: str, tensor: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """A tensor in the form that `along` describes; by default as it is."""
        return tensor

    def part(self, name: str, tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
        """The part of a tensor that belongs to the sequences `order`, in that order."""
        return select(self.in_rows(name, tensor), self.along(name), order)

    def parts(self, tensors: Tensors, order: Sequence[int]) -> Tensors:
        """The parts of results that belong to the sequences `order`; others are left out."""
        names = [name for name in tensors if self.along(name)]
        return LazyMapping(names, lambda name: self.part(name, tensors[name], order))

    @property
    def _all(self) -> range:
        return range(len(self.lengths))

    def _some_sequence(self) -> int:
        """The number of a sequence, chosen by seed; not an empty one if possible."""
        full = [number for number, pair in enumerate(self.lengths) if all(pair)]
        some = full or self._all
        return some[int(seeded_random(self.seed).random() * len(some))]

    # Relations ------------------------------------------------------------------------------------

    def relations(self, kind: RelationKind) -> Iterator[Relation]:
        """The relations of one kind.

        Of the three that rearrange the batch, the seed selects one.
        """
        found, several = None, len(self.lengths) > 1
        if kind == "relations":
            choices = [self._extended]
            if several:
                choices = [self.permuted, self.split, self._extended]
            found = choices[self.seed % len(choices)]()
        elif several and kind == "isolation":
            found = self._isolated()
        elif several and kind == "poison":
            found = self._poisoned()
        if found is not None:
            yield found

    def _isolated(self) -> Relation | None:
        victim = self._some_sequence()
        return self._untouched(
            "isolation_sequence",
            "isolation",
            [number for number in self._all if number != victim],
            1.0,
            f"other values in sequence {victim} must change no bit of another sequence",
        )

    def _poisoned(self) -> Relation | None:
        kept, factor = self._some_sequence(), self.poison
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
        origins = [number if number in keep else NEW for number in self._all]
        return self.relation(
            name,
            kind,
            lambda: [self.composed(origins, self._all, factor)],
            lambda mine: self.parts(mine, keep),
            lambda _others, results: self.parts(results[0], keep),
            because,
            exact=True,
        )

    def permuted(self) -> Relation | None:
        """The batch in another order."""
        order = permutation(seeded_random(self.seed), len(self.lengths))

        def arranged(batch: Batch, tensors: Tensors, order: Sequence[int]) -> Tensors:
            def take(name: str) -> torch.Tensor:
                tensor = tensors[name]
                return batch.part(name, tensor, order) if batch.along(name) else tensor

            return LazyMapping(tensors, take)

        return self.relation(
            "batch_permuted",
            "relations",
            lambda: [self.composed(order, order)],
            lambda mine: arranged(self, mine, self._all),
            lambda others, results: arranged(others[0], results[0], inverse(order)),
            f"permuting the sequences to {order} must permute the results",
        )

    def split(self) -> Relation | None:
        """Two calls with a part of the batch each; gradients of shared inputs are summed."""
        cut = seeded_random(self.seed).randrange(1, len(self.lengths))
        halves = [range(cut), range(cut, len(self.lengths))]

        def comparable(tensors: Tensors) -> list[str]:
            of = {name: self.along(name) for name in tensors}
            return [n for n in tensors if len(of[n]) == 1 or (n in self.summed and not of[n])]

        def left(mine: Tensors) -> Tensors:
            return LazyMapping(
                comparable(mine), lambda name: self.part(name, mine[name], self._all)
            )

        def together(others: Sequence[Batch], results: Sequence[Tensors]) -> Tensors:
            def joined(name: str) -> torch.Tensor:
                if not self.along(name):
                    first, second = (its[name] for its in results)
                    return first + second
                pieces = [
                    other.part(name, its[name], range(len(other.lengths)))
                    for other, its in zip(others, results, strict=True)
                ]
                return torch.cat(pieces, next(iter(self.along(name))))

            return LazyMapping(comparable(results[0]), joined)

        def rounded(results: Sequence[Tensors]) -> Tensors:
            first, second = results
            summed = (name for name in first if name in self.summed and not self.along(name))
            return {name: first[name].abs().double() + second[name].abs() for name in summed}

        return self.relation(
            "batch_split",
            "relations",
            lambda: [self.composed(half, half) for half in halves],
            left,
            together,
            f"the batch split before sequence {cut}, in two calls, must give the same results",
            rounded=rounded,
        )

    def _extended(self) -> Relation | None:
        """One more sequence in front, which moves the others in memory."""
        model, mine = self._some_sequence(), self._all
        return self.relation(
            "batch_extended",
            "relations",
            lambda: [self.composed([NEW, *mine], [model, *mine])],
            lambda tensors: self.parts(tensors, mine),
            lambda others, results: others[0].parts(results[0], range(1, len(mine) + 1)),
            f"a sequence as long as {model}, in front of the batch, must not change the others",
        )

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
        """The relation of this batch to others; None if these cannot be composed."""
        try:
            others = make()
        except NotComposableError:
            return None
        problems = tuple(other.problem() for other in others)
        return Relation(
            name,
            kind,
            problems,
            left,
            lambda results: right(others, results),
            exact=exact,
            because=because,
            rounded=rounded,
        )
