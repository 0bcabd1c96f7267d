"""Other shapes between two calls on one context, where several ranks keep one.

What a context owns must fit whatever comes next: buffers that grow, flags by tile, halves that take
turns. The shapes are those of another case of the spec, of the same kernels.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.problem.relate import repeated
from tlmatrix.problem.sharding.whole import shared_out
from tlmatrix.spec.expressions import ExpressionError
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.sharding import WORLD
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from tlmatrix.matrix import Case
    from tlmatrix.problem import Family, Problem, Relation, RelationKind
    from tlmatrix.spec.models import Spec
    from tlmatrix.spec.values import Value

__all__ = ["with_other_shapes"]

_DRAWS = 8
"""Other cases that are looked at: ranks may not be able to share one's lengths."""
_NO_SHAPES = frozenset({WORLD, "values", "storage"})


def with_other_shapes(
    spec: Spec, case: Case, problem: Problem, family: Family, seed: int, device: torch.device
) -> Problem:
    """The problem with one more repeated call, after one of another shape, if the spec has one."""
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
    """Another case of the same kernels: how it differs, and its problem."""
    offered = _offered(spec, case, family)
    if not offered:
        return None
    pick = random.Random(seed ^ 0x5A9E)  # noqa: S311 - test data, not secrets
    for _ in range(_DRAWS):
        changed = {axis: pick.choice(values) for axis, values in offered.items()}
        values = {**case.values, **changed}
        try:
            if not all(rule.expr.evaluate(values) for rule in spec.where):
                continue
            made = family.problem(spec, values, seed=seed + 2, device=device)
            words = ", ".join(f"{axis}={value}" for axis, value in changed.items())
            return words, shared_out(spec, made)
        except (ExpressionError, SpecError, ValueError):
            continue
    return None


def _offered(spec: Spec, case: Case, family: Family) -> Mapping[str, list[Value]]:
    """Other values of the axes that kernels take at run time."""
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
