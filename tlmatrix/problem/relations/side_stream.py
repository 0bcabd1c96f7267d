"""The relation of a side stream: a call on another CUDA stream than the default gives the same."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.problem.model import Relation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.problem.model import Problem, RelationKind

__all__ = ["with_side_stream"]


def with_side_stream(problem: Problem) -> Problem:
    """The problem with a call on a side stream, on which its inputs are written late."""
    there = replace(problem, side_stream=True, relations=lambda _kind: ())

    def relations(kind: RelationKind) -> Iterator[Relation]:
        yield from problem.relations(kind)
        if kind == "relations":
            yield Relation(
                "side_stream",
                kind,
                (there,),
                because="called on a stream other than the default one, where its inputs are "
                "written 10 ms later; launch on `torch.cuda.current_stream()`, and let other "
                "streams wait for it",
                words="a call on the default stream",
            )

    return replace(problem, relations=relations)
