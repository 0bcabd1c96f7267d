"""Cases that a spec writes out itself: regressions first, then the extra cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.matrix.case import Case, Origin
from tlmatrix.matrix.tiers import constraints_of
from tlmatrix.spec.issues import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Rule, Spec
    from tlmatrix.spec.values import Value

__all__ = ["broken_rules", "completed", "fixed_cases", "same_id"]


def fixed_cases(spec: Spec) -> tuple[Case, ...]:
    """The regressions of a spec, then its extra cases, each once.

    An axis that an entry leaves out takes the axis's first value. Raises SpecError for a case that
    a `where` rule excludes (somebody has to decide which of the two is wrong), and for two cases
    with one id.
    """
    issues: list[Issue] = []
    found: dict[str, Case] = {}
    written: list[tuple[str, int, Mapping[str, Value], Origin, int]] = [
        ("regressions", number, entry.case, "regression", entry.seed)
        for number, entry in enumerate(spec.regressions)
    ]
    written += [("cases", number, entry, "extra", 0) for number, entry in enumerate(spec.extra)]
    for key, number, entry, origin, seed in written:
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
    """The message about two different cases that read the same."""
    return f"two cases have the id {one.id}: {dict(one.values)} and {dict(other.values)}"


def completed(spec: Spec, entry: Mapping[str, Value]) -> dict[str, Value]:
    """The values of an entry; an axis that it leaves out takes its first value."""
    return {**{name: values[0] for name, values in spec.axes.items()}, **entry}


def _excluded(spec: Spec, place: tuple[str, int], case: Case) -> list[Issue]:
    return [
        spec.issue(
            place,
            f"the rule {rule.expr.text!r} excludes this case ({rule.because}); "
            "remove the case or change the rule",
        )
        for rule in broken_rules(spec, case)
    ]


def broken_rules(spec: Spec, case: Case) -> tuple[Rule, ...]:
    """The `where` rules that a case breaks, whatever its values."""
    return tuple(
        rule
        for rule, constraint in zip(spec.where, constraints_of(spec), strict=True)
        if not constraint.allows({name: case.values[name] for name in constraint.names})
    )
