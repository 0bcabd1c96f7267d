"""Cases: one value for every axis of a spec, with a readable id; and those that a spec lists.

A spec lists regressions, extra cases and invalid inputs, and its known bugs. An invalid input is a
valid case with the settings of an `invalid_inputs` entry. A known bug is a tracked failure with a
condition, an issue and an expiry date, after which the entry is an error, so that no test stays
disabled forever.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from tlmatrix.matrix.constraints import Constraint
from tlmatrix.matrix.space import Space
from tlmatrix.matrix.tiers import constraints_of
from tlmatrix.spec.expr.expression import ExpressionError
from tlmatrix.spec.issues import Issue, SpecError
from tlmatrix.spec.model.checks import invalid_inputs_of
from tlmatrix.spec.values import Value, canonical, label

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.spec.model.checks import InvalidInput
    from tlmatrix.spec.model.spec import ConstraintDecl, KnownBug, Spec


Origin = Literal["tier", "extra", "regression", "invalid", "fuzz"]


def seed_from(text: str) -> int:
    """A 63-bit seed that depends on the text alone and is the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True, eq=False)
class Case:
    """One point of a spec's matrix.

    Two cases are equal if their specs and values are; the order of axes does not matter.

    Attributes:
        spec: the name of the spec.
        values: the value of each axis.
        origin: how the case came about.
        run_seed: the seed of the run that found a regression, if its data are needed; 0: the
            case's own seed.
    """

    spec: str
    values: Mapping[str, Value]
    origin: Origin = "tier"
    run_seed: int = 0

    def __post_init__(self) -> None:
        ordered = {name: self.values[name] for name in sorted(self.values)}
        object.__setattr__(self, "values", MappingProxyType(ordered))

    def __reduce__(self) -> tuple[type[Case], tuple[object, ...]]:
        """Cases are sent to other processes, which views of dictionaries cannot be."""
        return type(self), (self.spec, dict(self.values), self.origin, self.run_seed)

    @cached_property
    def id(self) -> str:
        """`axis=value` joined by `-`, axes in alphabetical order."""
        return "-".join(f"{name}={label(value)}" for name, value in self.values.items())

    @cached_property
    def key(self) -> str:
        """An exact identity: two values may share a label in `id`."""
        return f"{self.spec}:{canonical(dict(self.values))}"

    @cached_property
    def seed(self) -> int:
        """A 63-bit seed that depends on the case alone."""
        return seed_from(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Case) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __getitem__(self, axis: str) -> Value:
        return self.values[axis]


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


# Invalid inputs --------------------------------------------------------------------------------


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


def valid_case(spec: Spec, case: Case, invalid: InvalidInput) -> Case | None:
    """The valid case nearest to an invalid one, or None if the constraints allow none.

    As far as the constraints allow, axes that are set take values that equal the invalid ones, as
    True equals 1, and the others keep theirs.
    """
    settings = invalid.settings
    unset = {name: (case.values[name],) for name in spec.axes if name not in settings}
    equal = {
        name: values
        for name in spec.axes
        if name in settings
        and (values := tuple(value for value in spec.axes[name] if value == settings[name]))
    }
    constraints = constraints_of(spec)
    for others in (unset | equal, unset, {}):
        space = Space({**spec.axes, **others}, constraints)
        row = next(iter(space), None)
        if row is not None:
            return Case(spec.name, space.values(row), "extra")
    return None


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

    return Constraint(tuple(sorted(expression.names)), allows)


# Known bugs ------------------------------------------------------------------------------------


def known_bug(spec: Spec, case: Case, environment: Mapping[str, object]) -> KnownBug | None:
    """The first known bug whose condition the case satisfies, or None.

    `environment` has the names of the backend, at least `arch` and `backend`; axes take precedence.

    Raises:
        SpecError: a condition cannot be evaluated.
    """
    for number, bug in enumerate(spec.known_bugs):
        if applies(spec, number, case, environment):
            return bug
    return None


def applies(spec: Spec, number: int, case: Case, environment: Mapping[str, object]) -> bool:
    """Whether the condition of one known bug holds for the case; see `known_bug`."""
    names = {**environment, **case.values}
    bug = spec.known_bugs[number]
    try:
        return bool(bug.when.evaluate(names))
    except ExpressionError as error:
        if case.origin == "invalid":
            return False  # its values may be of other types than conditions expect
        message = f"{bug.when.text!r} has no value for {case.id}: {error.reason}"
        raise SpecError([spec.issue(("known_bugs", number, "when"), message)]) from error


def expired(spec: Spec, today: date | None = None) -> tuple[Issue, ...]:
    """An error for each known bug that expired before `today`."""
    today = today or date.today()  # noqa: DTZ011 - the local date of the user
    return tuple(
        spec.issue(
            ("known_bugs", number, "expires"),
            f"the known bug {bug.issue} ({bug.when.text}) expired on {bug.expires}: "
            "fix it and remove the entry, or set a later date",
        )
        for number, bug in enumerate(spec.known_bugs)
        if bug.expires < today
    )
