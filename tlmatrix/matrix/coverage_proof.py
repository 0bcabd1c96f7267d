"""Proves that rows cover every feasible tuple of `strength` values.

Neither the library that makes the rows nor the cache is trusted: each tuple is either in a row, or
an exhaustive search shows that no row of the space has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product
from math import prod
from typing import TYPE_CHECKING

from tlmatrix.matrix.constraints import UNBOUND, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.matrix.space import Space

Tuple = tuple[Row, Row]
"""Positions of axes in the space, and a value index for each of them."""


@dataclass(frozen=True)
class Proof:
    """The tuples of `strength` values, counted: covered + infeasible + missing = total."""

    space: Space
    strength: int
    rows: int
    covered: int
    infeasible: tuple[Tuple, ...]
    missing: tuple[Tuple, ...]

    @property
    def total(self) -> int:
        """The number of tuples, feasible or not."""
        return tuples(self.space, self.strength)

    @property
    def feasible(self) -> int:
        """The number of tuples that some row of the space has."""
        return self.covered + len(self.missing)

    @property
    def holds(self) -> bool:
        """Whether every feasible tuple is covered."""
        return not self.missing


def tuples(space: Space, strength: int) -> int:
    """The number of tuples of `strength` values, feasible or not."""
    return sum(prod(sizes) for sizes in combinations(space.sizes, strength))


def prove(space: Space, rows: Sequence[Row], strength: int) -> Proof:
    """Classify every tuple of `strength` values, `1 <= strength <= number of axes`.

    Raises:
        ValueError: a row is not in the space; its tuples would count as feasible.
    """
    for row in rows:
        if not space.allows(row):
            raise ValueError(f"the row {space.values(row)} violates a constraint")
    covered = 0
    infeasible: list[Tuple] = []
    missing: list[Tuple] = []
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(space.sizes)
    partial = [UNBOUND] * len(space.sizes)
    for axes in combinations(range(len(space.sizes)), strength):
        seen = set(zip(*(columns[at] for at in axes), strict=True))
        covered += len(seen)
        if len(seen) == prod(space.sizes[at] for at in axes):
            continue
        for values in product(*(range(space.sizes[at]) for at in axes)):
            if values in seen:
                continue
            for at, index in zip(axes, values, strict=True):
                partial[at] = index
            (missing if space.extensible(partial) else infeasible).append((axes, values))
        for at in axes:
            partial[at] = UNBOUND
    return Proof(space, strength, len(rows), covered, tuple(infeasible), tuple(missing))
