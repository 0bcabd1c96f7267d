"""Cases of invalid inputs: a valid case with the settings of an `invalid_inputs` entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tlmatrix.matrix.case import Case
from tlmatrix.matrix.constraints import Constraint
from tlmatrix.matrix.listed_cases import broken_constraints
from tlmatrix.matrix.space import Space
from tlmatrix.spec.expr.expression import ExpressionError
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.invalid_inputs import invalid_inputs_of
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.invalid_inputs import InvalidInput
    from tlmatrix.spec.model.spec import ConstraintDecl, Spec
    from tlmatrix.spec.values import Value


@dataclass(frozen=True)
class InvalidCase:
    """A case for which the entry must raise, and the invalid input it was made from."""

    case: Case
    invalid: InvalidInput


def invalid_cases(spec: Spec) -> tuple[InvalidCase, ...]:
    """One case for each invalid input of the spec, in their order.

    Axes that an entry does not set take their first values, or the first ones that satisfy the
    constraints together with the invalid value, so that the exception is about that value alone.
    Constraints that no such values satisfy are ignored.

    Raises SpecError if two entries set the same values, and if the matrix has the case too and so
    expects it to pass.
    """
    found: dict[str, InvalidCase] = {}
    issues: list[Issue] = []
    for invalid in invalid_inputs_of(spec.invalid_inputs):
        case = Case(spec.name, _values(spec, invalid.settings), "invalid")
        if case.id in found:
            message = (
                f"two invalid inputs have the same case, {case.id}; remove one, as a call raises "
                "one exception"
            )
            issues.append(spec.issue(invalid.path, message))
        elif _in_matrix(spec, case):
            message = (
                f"{case.id} is a case of the matrix, which must pass, so it cannot be an invalid "
                "input; exclude it with a constraint, or set a value that the axes do not have"
            )
            issues.append(spec.issue(invalid.path, message))
        found.setdefault(case.id, InvalidCase(case, invalid))
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
        and not broken_constraints(spec, case)
    )


def _values(spec: Spec, settings: Mapping[str, Value]) -> dict[str, Value]:
    axes = {**spec.axes, **{name: (value,) for name, value in settings.items()}}
    unrelated = [each for each in spec.constraints if not each.expression.names & settings.keys()]
    for constraints in (spec.constraints, unrelated):
        space = Space(axes, [_lenient(each, settings) for each in constraints])
        row = next(iter(space), None)
        if row is not None:
            return space.values(row)
    return {name: values[0] for name, values in axes.items()}


def _lenient(constraint: ConstraintDecl, settings: Mapping[str, Value]) -> Constraint:
    """A constraint that allows values it cannot be evaluated for, and those of the settings."""
    expression = constraint.expression

    def allows(values: Mapping[str, Value]) -> bool:
        if expression.names <= settings.keys():
            return True
        try:
            return bool(expression.evaluate(values))
        except ExpressionError:
            return True

    return Constraint(tuple(sorted(expression.names)), allows, expression.text)
