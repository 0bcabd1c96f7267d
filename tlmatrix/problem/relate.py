"""The few forms that relations take, whatever the family."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tlmatrix.problem.model import Relation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tlmatrix.problem.model import Problem, RelationKind, Tensors

__all__ = ["chooser", "evened", "permutation", "repeated", "untouched"]


def chooser(seed: int) -> random.Random:
    """What picks a relation's sequence, row or permutation; apart from the inputs' own noise."""
    return random.Random(seed ^ 0x5EED)  # noqa: S311 - test data, not secrets


def permutation(pick: random.Random, count: int) -> list[int]:
    """A permutation that moves something (for a count of 2 or more)."""
    order = list(range(count))
    pick.shuffle(order)
    return order if order != sorted(order) else order[1:] + order[:1]


def evened(lengths: Sequence[int]) -> tuple[int, ...]:
    """As many rows in as many sequences, that differ by one in their lengths at most."""
    share, more = divmod(sum(lengths), max(len(lengths), 1))
    return tuple(share + (number < more) for number in range(len(lengths)))


def untouched(
    name: str,
    kind: RelationKind,
    problem: Problem,
    part: Callable[[Tensors], Tensors],
    because: str,
) -> Relation:
    """`part` of the results must keep every bit when the problem becomes `problem`."""
    return Relation(
        name, kind, (problem,), part, lambda results: part(results[0]), exact=True, because=because
    )


def repeated(other: Problem, again: Problem, because: str) -> Relation:
    """After a run of `other`, judged by its own reference, `again` gives the first run's bits."""
    return Relation(
        "repeat",
        "repeat",
        (other, again),
        left=lambda mine: mine,
        right=lambda results: results[1],
        exact=True,
        judge=(0,),
        because=because,
    )
