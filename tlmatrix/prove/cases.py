"""Cases that launch the same kernels with other sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.problem import family_for
from tlmatrix.problem.distributions import seeded_random
from tlmatrix.spec.expr.expression import ExpressionError
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tlmatrix.matrix import Case
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

_ATTEMPTS = 40
_PART = 0.4
"""Of the axes that attempts change once all at once do not satisfy the constraints."""
_FEW = 3
"""Where an axis lists fewer values, neighbors of the case's own are used as well."""
_STEPS = (-1, 1, 2)


def asked_cases(cases: Iterable[Case]) -> list[Case]:
    """Those whose kernels are proven: without invalid inputs, and without generated ones."""
    return [case for case in cases if case.origin not in ("invalid", "fuzz")]


def variants(spec: Spec, case: Case, count: int) -> Iterator[Case]:
    """Other cases with the kernels of `case`: other values of axes that no kernel is compiled for.

    First each axis alone takes its largest value, so that sizes that are equal by chance differ;
    then `count` cases with other values of several axes. They are the same for the same case.
    """
    offered = free_values(spec, case)
    pick = seeded_random(case.seed ^ 0x9E37)
    seen = {case.key}
    for attempt in range(len(offered) + _ATTEMPTS if offered else 0):
        if attempt < len(offered):
            axis = list(offered)[attempt]
            values: dict[str, Value] = {axis: max(offered[axis], key=_extent)}
        else:
            # Of some axes, for constraints may tie axes to each other.
            part = 1 if attempt < len(offered) + count else _PART
            values = {a: pick.choice(each) for a, each in offered.items() if pick.random() < part}
        found = replace(case, values={**case.values, **values}, origin="tier")
        if found.key in seen or not allowed(spec, found.values):
            continue
        seen.add(found.key)
        count -= attempt >= len(offered)
        yield found
        if count <= 0:
            return


def _extent(value: Value) -> int:
    """The size of a value: of an integer itself, of lists the sum."""
    if isinstance(value, Mapping):
        return sum(map(_extent, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_extent, value))
    return value if type(value) is int else 0


def free_values(spec: Spec, case: Case) -> dict[str, list[Value]]:
    """The values of each axis with which a case has the same kernels; of all axes if none has.

    A spec that does not say for which axes kernels are compiled may have kernels with symbolic
    dims all the same.
    """
    found: dict[str, list[Value]] = {}
    for axis, own in case.values.items():
        values: list[Value] = [own, *spec.axes.get(axis, ())]
        if type(own) is int and len(values) < _FEW:
            values += [own + step for step in _STEPS if own + step > 0]
        distinct = list({canonical(value): value for value in values}.values())
        if len(distinct) > 1:
            found[axis] = distinct
    free = {
        axis: [v for v in values if _same_kernels(spec, case, {**case.values, axis: v})]
        for axis, values in found.items()
    }
    return {axis: values for axis, values in free.items() if len(values) > 1} or found


def _same_kernels(spec: Spec, case: Case, values: Mapping[str, Value]) -> bool:
    key = family_for(spec).compile_key
    try:
        return key(spec, values) == key(spec, case.values)
    except (ExpressionError, SpecError, ValueError):
        return False


def allowed(spec: Spec, values: Mapping[str, Value]) -> bool:
    """Whether a spec has a case of these values."""
    try:
        return spec.allows(values)
    except ExpressionError:
        return False
