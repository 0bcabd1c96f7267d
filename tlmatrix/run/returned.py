"""Restricts a problem to the outputs that the code under test returns.

The spec names them in `returns`; by default they are the first ones, as many as are returned.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tlmatrix.problem import Problem, Relation, RelationKind

__all__ = ["narrowed"]


def narrowed(problem: Problem, returned: Collection[str]) -> Problem:
    """Restrict a problem and its relations to the outputs in `returned` and their gradients."""
    keep = {*returned, *problem.gradient_of}

    def relations(kind: RelationKind) -> Iterator[Relation]:
        for relation in problem.relations(kind):
            inner = tuple(narrowed(each, returned) for each in relation.problems)
            yield replace(relation, problems=inner)

    if keep >= problem.outputs.keys():
        return problem
    outputs = {name: info for name, info in problem.outputs.items() if name in keep}
    return replace(problem, outputs=outputs, relations=relations)
