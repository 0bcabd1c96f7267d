"""Adds a metamorphic relation: a call captured to a CUDA graph and replayed with other data."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.problem.model import CapturedRelation
from tlmatrix.problem.relations import repeated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.backend import Backend
    from tlmatrix.matrix import Case
    from tlmatrix.problem import Problem, Relation, RelationKind
    from tlmatrix.spec.model.spec import Spec

CUDA_GRAPH = "cuda_graph"
"""The name of the relation in findings."""


def with_cuda_graph(spec: Spec, case: Case, problem: Problem, backend: Backend) -> Problem:
    """Add a captured and replayed call to the problem's relations, if the spec has `cuda_graph`."""
    rule = spec.cuda_graph
    if rule is None or not backend.captures_graphs:
        return problem
    names = {**case.values, "arch": backend.arch, "backend": backend.name}
    allowed = bool(rule.when.evaluate(names))
    refusal = None if allowed else rule.otherwise
    if not allowed and refusal is None:
        return problem

    def relations(kind: RelationKind) -> Iterator[Relation]:
        yield from problem.relations(kind)
        if kind != "repeat":
            return
        other: Problem | None = problem  # an expected refusal is never replayed
        if refusal is None:
            repeats = (each for each in problem.relations(kind) if each.name == "repeat")
            other = next((each.problems[0] for each in repeats), None)
        if other is not None and _differ_in_data_alone(problem, other):
            because = "the call was captured to a CUDA graph once, and replayed with other data"
            yield repeated(
                other,
                problem,
                because,
                of=CapturedRelation,
                name=CUDA_GRAPH,
                refused=None if refusal is None else (refusal.raises, refusal.message),
                exact=rule.mode != "bounded",
            )

    return replace(problem, relations=relations)


def _differ_in_data_alone(problem: Problem, other: Problem) -> bool:
    """Whether only tensor data differ: a replay uses the capture's other arguments."""
    if problem.names.keys() != other.names.keys():
        return False
    return all(_compatible(value, other.names[name]) for name, value in problem.names.items())


def _compatible(one: Any, other: Any) -> bool:  # noqa: ANN401 - any argument of an entry
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return bool(one == other) if type(one) is type(other) else False
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and one.stride() == other.stride()
