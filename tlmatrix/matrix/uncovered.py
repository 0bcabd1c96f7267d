"""The tuples that rows do not have yet, for greedy algorithms."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from tlmatrix.matrix.constraints import UNBOUND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.matrix.constraints import Row
    from tlmatrix.matrix.coverage_proof import Tuple


class Uncovered:
    """The tuples still to cover, as bit masks over the values of each axis."""

    def __init__(self, missing: Sequence[Tuple]) -> None:
        self._masks: dict[tuple[int, Row, Row], int] = {}
        for axes, values in missing:
            for place, at in enumerate(axes):
                rest = (
                    at,
                    axes[:place] + axes[place + 1 :],
                    values[:place] + values[place + 1 :],
                )
                self._masks[rest] = self._masks.get(rest, 0) | 1 << values[place]

    def has(self, axes: Row, values: Row) -> bool:
        """Whether a tuple is uncovered."""
        return bool(self._masks.get((axes[0], axes[1:], values[1:]), 0) >> values[0] & 1)

    def gains(self, row: Sequence[int], at: int, strength: int, size: int) -> list[int]:
        """For each value of the axis `at`, the number of uncovered tuples that it adds to `row`."""
        gains = [0] * size
        bound = [each for each, index in enumerate(row) if index != UNBOUND]
        for axes in combinations(bound, strength - 1):
            mask = self._masks.get((at, axes, tuple([row[each] for each in axes])), 0)
            while mask:
                low = mask & -mask
                gains[low.bit_length() - 1] += 1
                mask ^= low
        return gains

    def discard_all(self, row: Sequence[int], strength: int) -> None:
        """Remove the tuples that a full row has."""
        for axes in combinations(range(len(row)), strength - 1):
            values = tuple([row[each] for each in axes])
            for at, index in enumerate(row):
                rest = (at, axes, values)
                if rest in self._masks:
                    self._masks[rest] &= ~(1 << index)

    def count(self, row: Sequence[int], strength: int) -> int:
        """The number of uncovered tuples that a row has."""
        found = 0
        bound = [at for at, index in enumerate(row) if index != UNBOUND]
        for axes in combinations(bound, strength):
            mask = self._masks.get((axes[0], axes[1:], tuple([row[at] for at in axes[1:]])), 0)
            found += mask >> row[axes[0]] & 1
        return found
