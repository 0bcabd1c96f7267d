"""Explains why a tier has a case or not, and finds cases by id."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tlmatrix.matrix.expansion import expand
from tlmatrix.matrix.listed_cases import (
    Case,
    Origin,
    applies,
    broken_constraints,
    completed,
    invalid_cases,
    listed_cases,
)
from tlmatrix.matrix.tiers import plan_of
from tlmatrix.spec.model.fields import OPTIONAL_AXES
from tlmatrix.spec.model.packed import packed_axes
from tlmatrix.spec.values import Value, canonical, label
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tlmatrix.matrix.expansion import CompileKey
    from tlmatrix.spec.model.spec import ConstraintDecl, KnownBug, Spec


class CaseNotFoundError(LookupError):
    """An id of no case of a spec."""


@dataclass(frozen=True)
class Membership:
    """Whether a tier has a case; `reason` completes a sentence after "because"."""

    included: bool
    reason: str


@dataclass(frozen=True)
class Explanation:
    """What is known about a case before it runs.

    Attributes:
        case: the case.
        tiers: for each tier, whether it has the case.
        removed_by: the constraints that the case violates.
        known_bugs: the known bugs that apply in the given environment.
        undecided: known bugs that depend on names (`arch`, `backend`) that were not given.
    """

    case: Case
    tiers: Mapping[str, Membership]
    removed_by: tuple[ConstraintDecl, ...]
    known_bugs: tuple[KnownBug, ...]
    undecided: tuple[KnownBug, ...]

    @property
    def seed(self) -> int:
        """The seed of the case's inputs."""
        return self.case.seed


def explain(
    spec: Spec,
    case: Case | str | Mapping[str, Value],
    compile_key: CompileKey | None = None,
    environment: Mapping[str, object] | None = None,
) -> Explanation:
    """Explain which tiers have a case and why, its violated constraints and its known bugs.

    `case` is a case, an id, or values by axis (missing axes take their first value). `compile_key`
    is that with which the tiers are expanded.

    Raises:
        CaseNotFoundError: the spec cannot have such a case.
    """
    case = case_of(spec, case)
    removed_by = broken_constraints(spec, case)
    given = dict(environment or {})
    known = given.keys() | case.values.keys()
    undecided = [bug for bug in spec.known_bugs if not bug.when.names <= known]
    return Explanation(
        case=case,
        tiers={tier: _membership(spec, tier, case, removed_by, compile_key) for tier in spec.tiers},
        removed_by=removed_by,
        known_bugs=tuple(
            bug
            for number, bug in enumerate(spec.known_bugs)
            if bug not in undecided and applies(spec, number, case, given)
        ),
        undecided=tuple(undecided),
    )


def find_case(spec: Spec, case_id: str, tier: str | None = None) -> Case:
    """The case with an id, whether or not a tier has it.

    Listed cases (regressions, extra cases, invalid inputs) come first. Otherwise each `axis=label`
    is looked up among the values of the axis in `tier`, or in the spec and all its tiers; axes that
    fuzzing generates from a range accept any value.

    Raises:
        CaseNotFoundError: an axis or a value does not exist; the message has the nearest one.
        ValueError: the spec has no such tier.
    """
    written = [*listed_cases(spec), *(each.case for each in invalid_cases(spec))]
    for case in written:
        if case.id == case_id:
            return case
    labels = _parsed(case_id)
    offered = _values_by_axis(spec, tier, written)
    for name in labels:
        if name not in offered and name not in OPTIONAL_AXES:
            raise CaseNotFoundError(_no_axis(spec, name))
    if absent := offered.keys() - labels.keys():
        raise CaseNotFoundError(
            f"{case_id!r} is not a whole id: it says nothing of {', '.join(sorted(absent))}"
        )
    values: dict[str, Value] = {}
    origin: Origin = "tier"
    for name, text in labels.items():
        known = offered.get(name, [])
        drawn = _generated_value(spec, name, text) if text not in map(label, known) else None
        if drawn is not None:
            origin = "fuzz"
        values[name] = _value(name, text, known) if drawn is None else drawn
    return Case(spec.name, values, origin)


def case_of(spec: Spec, case: Case | str | Mapping[str, Value]) -> Case:
    """A case, the one with an id, or with values by axis; missing axes take their first value.

    Raises:
        CaseNotFoundError: the spec cannot have such a case.
    """
    match case:
        case Case():
            return case
        case str():
            return find_case(spec, case)
    for name in case:
        if name not in spec.axes and name not in OPTIONAL_AXES:
            raise CaseNotFoundError(_no_axis(spec, name))
    return Case(spec.name, completed(spec, case))


def _no_axis(spec: Spec, name: str) -> str:
    return f"unknown axis {name!r} of {spec.name}{suggestion(name, spec.axes, 'Axes')}"


def _membership(
    spec: Spec,
    tier: str,
    case: Case,
    removed_by: tuple[ConstraintDecl, ...],
    compile_key: CompileKey | None,
) -> Membership:
    for listed in listed_cases(spec):
        if listed == case:
            return Membership(included=True, reason=f"the spec lists it ({listed.origin})")
    if removed_by:
        violated = "; ".join(f"{each.text}{each.reason}" for each in removed_by)
        return Membership(included=False, reason=f"it violates the constraint {violated}")
    plan = plan_of(spec, tier)
    for name, values in plan.axes.items():
        value = canonical(case.values[name])
        if value not in map(canonical, values):
            offered = ", ".join(map(label, values))
            reason = f"the tier has no {name}={label(case.values[name])}, only {offered}"
            return Membership(included=False, reason=reason)
    if expand(spec, tier, compile_key).holds(case):
        return Membership(included=True, reason=f"{plan.text} selects it")
    return Membership(included=False, reason=f"{plan.text} does not select it")


def _parsed(case_id: str) -> dict[str, str]:
    """Labels by axis. Labels hold no `=`, and names no `-`, so there is one way to read an id."""
    names = list(re.finditer(r"(?:^|-)([^\W\d]\w*)=", case_id))
    if not names or names[0].start() != 0:
        raise CaseNotFoundError(f"{case_id!r} is no case id: those read axis=value-axis=value")
    ends = [*(match.start() for match in names[1:]), len(case_id)]
    labels: dict[str, str] = {}
    for match, end in zip(names, ends, strict=True):
        if match[1] in labels:
            raise CaseNotFoundError(f"{case_id!r} gives {match[1]} twice")
        labels[match[1]] = case_id[match.end() : end]
    return labels


def _values_by_axis(
    spec: Spec, tier: str | None, written: Iterable[Case]
) -> dict[str, list[Value]]:
    if tier is not None:
        return {name: list(values) for name, values in plan_of(spec, tier).axes.items()}
    offered = {name: list(values) for name, values in spec.axes.items()}
    for each in spec.tiers.values():
        for name, values in (each.axes or {}).items():
            if name in offered:
                offered[name] += values
    for name, drawn in (spec.fuzz.axes if spec.fuzz is not None else {}).items():
        if name in offered:
            offered[name] += drawn.values
    for case in written:
        for name, value in case.values.items():
            if name in offered:
                offered[name].append(value)
    return offered


def _value(name: str, text: str, offered: Sequence[Value]) -> Value:
    found = {canonical(value): value for value in offered if label(value) == text}
    if len(found) > 1:
        raise CaseNotFoundError(
            f"{name}={text} could be {' or '.join(found)}; say in which tier the case is"
        )
    if not found:
        known = list(dict.fromkeys(map(label, offered)))
        hint = suggestion(text, known, "Values")
        raise CaseNotFoundError(f"the axis {name} has no value {text!r}{hint}")
    return next(iter(found.values()))


def _generated_value(spec: Spec, axis: str, text: str) -> Value | None:
    """The value of an axis with the label `text`; None if fuzzing generates no such value.

    The listed values of an axis give the form: lengths may be `{q: [17, 64], k: same}` in one spec
    and `{q: 1, k: [17, 64]}` in another.
    """
    ranged = () if spec.fuzz is None else spec.fuzz.axes
    if axis not in {"seqlens", *packed_axes(spec), *ranged, *OPTIONAL_AXES}:
        return None
    if axis in OPTIONAL_AXES and axis not in ranged:
        # A number, or a name that the problem family defines.
        return int(text) if re.fullmatch(r"\d+", text) else text
    for like in spec.axes.get(axis, ()):
        value = _value_like(text, like)
        if value is not None and label(value) == text:
            return value
    return None


def _value_like(text: str, like: Value) -> Value | None:
    """The value with the label `text` in the form of the value `like`."""
    if isinstance(like, Mapping):
        pattern = "_".join(f"{re.escape(label(key))}(.*?)" for key in like)
        found = re.fullmatch(pattern, text)
        if found is None:
            return None
        parts = {
            key: _value_like(part, like[key])
            for key, part in zip(like, found.groups(), strict=True)
        }
        # A word (`same`) may stand for a list, and a list for it.
        return {
            key: part if part is not None else _word_or_list(found[number], like[key])
            for number, (key, part) in enumerate(parts.items(), 1)
        }
    if isinstance(like, Sequence) and not isinstance(like, str):
        return _whole_numbers(text)
    if isinstance(like, int) and not isinstance(like, bool):
        return int(text) if re.fullmatch(r"-?\d+", text) else None
    return None


def _word_or_list(text: str, like: Value) -> Value | None:
    if isinstance(like, str):
        return text if text == label(like) else _whole_numbers(text)
    return "same" if text == "same" else None


def _whole_numbers(text: str) -> list[Value] | None:
    return [int(part) for part in text.split(".")] if re.fullmatch(r"\d+(\.\d+)*", text) else None
