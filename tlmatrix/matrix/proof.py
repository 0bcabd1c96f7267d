"""Proof that a set of rows covers every tuple of values that any case can hold.

A covering array that silently lacks a tuple is a test that silently does not run, and libraries
have lost some. So nothing is taken on trust, neither a library nor the cache: each tuple of
`strength` values is either in a row, or a search of the whole space shows that no case holds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product
from math import prod
from typing import TYPE_CHECKING

from tlmatrix.matrix.rules import UNBOUND, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.matrix.space import Space

__all__ = ["Proof", "Tuple", "prove", "tuples"]

Tuple = tuple[Row, Row]
"""Some axes, by position in the space, and a value index for each of them."""


@dataclass(frozen=True)
class Proof:
    """What is known of every tuple of `strength` values: covered + infeasible + missing = total."""

    space: Space
    strength: int
    rows: int
    covered: int
    infeasible: tuple[Tuple, ...]
    missing: tuple[Tuple, ...]

    @property
    def total(self) -> int:
        """How many tuples there are, feasible or not."""
        return tuples(self.space, self.strength)

    @property
    def feasible(self) -> int:
        """How many tuples some case holds."""
        return self.covered + len(self.missing)

    @property
    def holds(self) -> bool:
        """Whether every feasible tuple is covered."""
        return not self.missing


def tuples(space: Space, strength: int) -> int:
    """How many tuples of `strength` values there are, feasible or not."""
    return sum(prod(sizes) for sizes in combinations(space.sizes, strength))


def prove(space: Space, rows: Sequence[Row], strength: int) -> Proof:
    """Account for every tuple of `strength` values, `1 <= strength <= number of axes`.

    Raises ValueError for a row that is not in the space: it would make a tuple look feasible.
    """
    for row in rows:
        if not space.allows(row):
            raise ValueError(f"the row {space.values(row)} breaks a rule")
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
