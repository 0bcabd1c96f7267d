"""Judges only what the code under test gives back, which may be fewer outputs than there are.

With `returns` the spec says which; without it they are the first ones, as many as come back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tlmatrix.problem import Problem, Relation, RelationKind

__all__ = ["narrowed"]


def narrowed(problem: Problem, returned: Collection[str]) -> Problem:
    """The problem with the outputs in `returned` alone, and its gradients; relations as well."""
    keep = {*returned, *problem.gradient_of}

    def relations(kind: RelationKind) -> Iterator[Relation]:
        for relation in problem.relations(kind):
            inner = tuple(narrowed(each, returned) for each in relation.problems)
            yield replace(relation, problems=inner)

    if keep >= problem.outputs.keys():
        return problem
    outputs = {name: info for name, info in problem.outputs.items() if name in keep}
    return replace(problem, outputs=outputs, relations=relations)
