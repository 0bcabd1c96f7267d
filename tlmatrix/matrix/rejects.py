"""Cases that the entry must refuse: a good case with the bad values of a `rejects` entry set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tlmatrix.matrix.case import Case
from tlmatrix.matrix.fixed import broken_rules
from tlmatrix.matrix.rules import Constraint
from tlmatrix.matrix.space import Space
from tlmatrix.spec.expr.expression import ExpressionError
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Reject, Rule, Spec
    from tlmatrix.spec.values import Value

__all__ = ["RejectCase", "reject_cases"]


@dataclass(frozen=True)
class RejectCase:
    """A case that must raise, and the entry of the spec that says what."""

    case: Case
    reject: Reject


def reject_cases(spec: Spec) -> tuple[RejectCase, ...]:
    """One case for each entry of `rejects`, in their order.

    Axes that an entry does not set take their first values, or the first ones that obey the `where`
    rules next to the bad value: what the entry raises must be about the bad value alone. Rules that
    the bad values cannot obey are left aside.

    Raises SpecError for two entries that set the same values (one call raises one exception), and
    for an entry that sets nothing bad, so that the matrix has the same case and expects it to run.
    """
    found: dict[str, RejectCase] = {}
    issues: list[Issue] = []
    for number, reject in enumerate(spec.rejects):
        case = Case(spec.name, _values(spec, reject.set), "reject")
        if case.id in found:
            message = f"an earlier entry of rejects has the same case, {case.id}"
            issues.append(spec.issue(("rejects", number), message))
        elif _in_matrix(spec, case):
            message = (
                f"{case.id} is a case of the matrix, so it cannot be refused too; "
                "exclude it with a where rule, or set a value that the axes do not have"
            )
            issues.append(spec.issue(("rejects", number), message))
        found.setdefault(case.id, RejectCase(case, reject))
    if issues:
        raise SpecError(issues)
    return tuple(found.values())


def _in_matrix(spec: Spec, case: Case) -> bool:
    return (
        case.values.keys() == spec.axes.keys()
        and all(
            canonical(value) in map(canonical, spec.axes[name])
            for name, value in case.values.items()
        )
        and not broken_rules(spec, case)
    )


def _values(spec: Spec, bad: Mapping[str, Value]) -> dict[str, Value]:
    axes = {**spec.axes, **{name: (value,) for name, value in bad.items()}}
    apart = [rule for rule in spec.where if not rule.expr.names & bad.keys()]
    for obeyed in (spec.where, apart):
        space = Space(axes, [_lenient(rule, bad) for rule in obeyed])
        row = next(iter(space), None)
        if row is not None:
            return space.values(row)
    return {name: values[0] for name, values in axes.items()}


def _lenient(rule: Rule, bad: Mapping[str, Value]) -> Constraint:
    """A rule that lets pass what it has no answer for, and what is bad on purpose."""

    def allows(values: Mapping[str, Value]) -> bool:
        if rule.expr.names <= bad.keys():
            return True
        try:
            return bool(rule.expr.evaluate(values))
        except ExpressionError:
            return True

    return Constraint(tuple(sorted(rule.expr.names)), allows, rule.expr.text)
