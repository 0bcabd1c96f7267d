"""Cases that a spec lists: regressions first, then extra cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.matrix.case import Case, Origin
from tlmatrix.matrix.tiers import constraints_of
from tlmatrix.spec.issues import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import ConstraintDecl, Spec
    from tlmatrix.spec.values import Value


def listed_cases(spec: Spec) -> tuple[Case, ...]:
    """The regressions of a spec, then its extra cases, each once.

    An axis without a value in an entry takes its first value.

    Raises:
        SpecError: a constraint excludes a case, or two cases have one id.
    """
    issues: list[Issue] = []
    found: dict[str, Case] = {}
    entries: list[tuple[str, int, Mapping[str, Value], Origin, int]] = [
        ("regressions", number, entry.case, "regression", entry.seed)
        for number, entry in enumerate(spec.regressions)
    ]
    entries += [
        ("extra_cases", number, entry, "extra", 0) for number, entry in enumerate(spec.extra_cases)
    ]
    for key, number, entry, origin, seed in entries:
        case = Case(spec.name, completed(spec, entry), origin, seed)
        if case in found.values():
            continue
        twin = found.setdefault(case.id, case)
        if twin is not case:
            issues.append(spec.issue((key, number), same_id(twin, case)))
        issues += _excluded(spec, (key, number), case)
    if issues:
        raise SpecError(issues)
    return tuple(found.values())


def same_id(one: Case, other: Case) -> str:
    """The error message for two different cases with the same id."""
    return f"two cases have the id {one.id}: {dict(one.values)} and {dict(other.values)}"


def completed(spec: Spec, entry: Mapping[str, Value]) -> dict[str, Value]:
    """The values of an entry; an axis without a value takes its first one."""
    return {**{name: values[0] for name, values in spec.axes.items()}, **entry}


def _excluded(spec: Spec, place: tuple[str, int], case: Case) -> list[Issue]:
    return [
        spec.issue(
            place,
            f"the constraint {rule.text!r} excludes this case{rule.reason}; "
            "remove the case or change the constraint",
        )
        for rule in broken_constraints(spec, case)
    ]


def broken_constraints(spec: Spec, case: Case) -> tuple[ConstraintDecl, ...]:
    """The constraints that a case does not satisfy."""
    return tuple(
        rule
        for rule, constraint in zip(spec.constraints, constraints_of(spec), strict=True)
        if not constraint.allows({name: case.values[name] for name in constraint.names})
    )
