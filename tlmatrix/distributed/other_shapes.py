"""Adds a metamorphic relation: a call of another shape between two calls on one context.

State of a context, such as growing buffers, flags per tile and double buffers, must work for any
sequence of shapes. The other shape is that of another case of the spec with the same kernels.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.distributed.sharding.ownership import with_owners
from tlmatrix.problem.relations.forms import repeated
from tlmatrix.spec.expr.expression import ExpressionError
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.sharding import WORLD
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from tlmatrix.matrix import Case
    from tlmatrix.problem import Family, Problem, Relation, RelationKind
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

_ATTEMPTS = 8
"""Other cases that are tried; some cannot be sharded over the ranks."""
_NO_SHAPES = frozenset({WORLD, "values", "storage"})


def with_other_shapes(
    spec: Spec, case: Case, problem: Problem, family: Family, seed: int, device: torch.device
) -> Problem:
    """Add the relation to the problem, if its spec has a context and cases of other shapes."""
    if spec.context is None:
        return problem

    def relations(kind: RelationKind) -> Iterator[Relation]:
        yield from problem.relations(kind)
        if kind == "repeat":
            other = _other(spec, case, family, seed, device)
            if other is not None:
                because = f"a call with {other[0]} came between, on the same context"
                relation = repeated(other[1], problem, because)
                yield replace(relation, name="other_shapes")

    return replace(problem, relations=relations)


def _other(
    spec: Spec, case: Case, family: Family, seed: int, device: torch.device
) -> tuple[str, Problem] | None:
    """Another case with the same kernels: its differences in words, and its problem."""
    offered = _run_time_values(spec, case, family)
    if not offered:
        return None
    pick = random.Random(seed ^ 0x5A9E)  # noqa: S311 - test data, not secrets
    for _ in range(_ATTEMPTS):
        changed = {axis: pick.choice(values) for axis, values in offered.items()}
        values = {**case.values, **changed}
        try:
            if not all(rule.expression.evaluate(values) for rule in spec.constraints):
                continue
            made = family.problem(spec, values, seed=seed + 2, device=device)
            words = ", ".join(f"{axis}={value}" for axis, value in changed.items())
            return words, with_owners(spec, made)
        except (ExpressionError, SpecError, ValueError):
            continue
    return None


def _run_time_values(spec: Spec, case: Case, family: Family) -> Mapping[str, list[Value]]:
    """Other values of the axes that do not affect which kernels are compiled."""
    mine = family.compile_key(spec, case.values)
    found: dict[str, list[Value]] = {}
    for axis, listed in spec.axes.items():
        if axis in _NO_SHAPES:
            continue
        own = canonical(case.values[axis])
        others = [
            value
            for value in listed
            if canonical(value) != own
            and family.compile_key(spec, {**case.values, axis: value}) == mine
        ]
        if others:
            found[axis] = others
    return found
