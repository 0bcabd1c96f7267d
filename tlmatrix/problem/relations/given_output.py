"""The relation of a given output: with `out=`, an entry writes the same values to that tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.problem.model import Relation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.problem.model import Problem, RelationKind

__all__ = ["with_given_output"]


def with_given_output(problem: Problem, output: str) -> Problem:
    """The problem with a call that gives the entry a tensor for `output` as its argument `out`.

    The tensor holds NaN before. It is what the results have as `output`, not what the call returns.
    """
    given = replace(
        problem, cotangents={}, gradient_of={}, given_output=output, relations=lambda _kind: ()
    )

    def relations(kind: RelationKind) -> Iterator[Relation]:
        yield from problem.relations(kind)
        if kind == "relations":
            yield Relation(
                "given_output",
                kind,
                (given,),
                left=lambda mine: {output: mine[output]},
                right=lambda results: {output: results[0][output]},
                because="the tensor that was given as `out` holds other values after the call",
                words="the result of a call without `out`",
            )

    return replace(problem, relations=relations)
