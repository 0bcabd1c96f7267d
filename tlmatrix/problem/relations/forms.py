"""Relations and helpers that several families share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.problem.model import Relation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tlmatrix.problem.model import Problem, RelationKind, Tensors


def balanced_lengths(lengths: Sequence[int]) -> tuple[int, ...]:
    """As many rows in as many sequences, whose lengths differ by at most one."""
    share, more = divmod(sum(lengths), max(len(lengths), 1))
    return tuple(share + (number < more) for number in range(len(lengths)))


def untouched(
    name: str,
    kind: RelationKind,
    problem: Problem,
    part: Callable[[Tensors], Tensors],
    because: str,
) -> Relation:
    """A relation: `part` of the results of `problem` has the bits it has in the original."""
    return Relation(
        name, kind, (problem,), part, lambda results: part(results[0]), exact=True, because=because
    )


def repeated(other: Problem, again: Problem, because: str) -> Relation:
    """A relation: after a run of `other`, a run of `again` gives the bits of the first run.

    `again` is a copy of the original problem. The results of `other` are also checked against its
    own reference.
    """
    return Relation(
        "repeat",
        "repeat",
        (other, again),
        right=lambda results: results[1],
        exact=True,
        judge=(0,),
        because=because,
    )
