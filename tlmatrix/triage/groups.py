"""Groups the failing cases of a run by fault.

Failures of one `Cause` are one group, as are reports of sanitizers on the same line. Wrong numbers
are grouped by the values of their cases first, whatever their cause: the same wrong mask may be
one row here, a tile there and everything elsewhere. Without such evidence they are grouped by
cause and pattern. A dtype alone does not separate cases with the same wrong elements.

Evidence that failures are one fault are values that failing cases have and passing cases do not.
Invalid-input cases are no evidence.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from tlmatrix.run.result import Status
from tlmatrix.spec.values import label, numbers_in
from tlmatrix.triage.cause import (
    COMPARING_CHECKS,
    differ_by_dtype,
    is_dtype,
    kind_of,
    lines_of,
    wrong_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from tlmatrix.run.result import CaseResult
    from tlmatrix.spec.values import Value

_MAX_VALUES = 3
"""Most values of an axis that evidence names."""
_MAX_AXES = 3
"""Most axes that a selection names; with more, the whole id is clearer."""


@dataclass(frozen=True)
class Evidence:
    """The values that failing cases share, and the passing cases that share them too.

    Attributes:
        shared: `axis=value` that every failing case has, and not every case of the spec.
        passing: the number of cases that have all of `shared` and passed.
        passing_only: `axis=value` that all of those passing cases have, and no failing case.
    """

    shared: tuple[str, ...] = ()
    passing: int = 0
    passing_only: str = ""


@dataclass(frozen=True)
class Pattern:
    """Cases of a group whose first finding has the same check and pattern.

    Attributes:
        name: the pattern.
        cases: the number of cases.
        select: an argument of `-k` that runs one of them.
    """

    name: str
    cases: int
    select: str


@dataclass(frozen=True)
class Group:
    """Failing cases of one spec that probably show one fault.

    Attributes:
        results: the results of the cases.
        evidence: the values that they share.
        none_passed: whether no case of the spec passed.
        others: the patterns other than that of `example`, the most frequent first.
    """

    results: tuple[CaseResult, ...]
    evidence: Evidence
    none_passed: bool
    others: tuple[Pattern, ...]

    @property
    def example(self) -> CaseResult:
        """The simplest case: wrong in a single run if any is, with the smallest problem.

        It does not depend on the order of `results`.
        """
        return min(self.results, key=_complexity)


def group_failures(results: Iterable[CaseResult]) -> list[Group]:
    """Group the failing cases of `results`, the largest group first."""
    by_spec: dict[str, list[CaseResult]] = defaultdict(list)
    for result in results:
        by_spec[result.path].append(result)
    groups = [group for found in by_spec.values() for group in _groups_of(found)]
    return sorted(groups, key=lambda group: (-len(group.results), group.example.node))


def _groups_of(results: Sequence[CaseResult]) -> Iterator[Group]:
    """The groups of one spec."""
    passed = [
        result
        for result in results
        if result.status is Status.PASSED and result.origin != "invalid"
    ]  # fmt: skip
    failing = [result for result in results if result.failed]
    ungrouped = [result for result in failing if not wrong_numbers(result)]
    faults: list[tuple[list[CaseResult], Evidence]] = []
    for found, evidence in _split_by_evidence(list(filter(wrong_numbers, failing)), passed):
        if evidence is not None:
            faults.append((found, evidence))
        else:
            ungrouped += found
    faults += [(found, _shared_values(found, passed)) for found in _by_cause(ungrouped)]
    for found, evidence in _merged_dtypes(faults, passed):
        yield _group(found, evidence, passed, results)


def _merged_dtypes(
    faults: Iterable[tuple[list[CaseResult], Evidence]], passed: Sequence[CaseResult]
) -> list[tuple[list[CaseResult], Evidence]]:
    """Merge faults with the same wrong elements in cases of other dtypes."""
    merged: list[tuple[list[CaseResult], Evidence]] = []
    for found, evidence in faults:
        same = next((n for n, (other, _) in enumerate(merged) if _but_dtype(found, other)), None)
        if same is None:
            merged.append((found, evidence))
            continue
        together = [*merged[same][0], *found]
        shared = _evidence_of_one_fault(together, passed) or _shared_values(together, passed)
        merged[same] = (together, shared)
    return merged


def _but_dtype(found: Sequence[CaseResult], other: Sequence[CaseResult]) -> bool:
    """Whether all cases of two faults have other dtypes, and some are otherwise alike."""
    if not (wrong_numbers(found[0]) and wrong_numbers(other[0])):
        return False
    ours, theirs = _dtypes(found), _dtypes(other)
    if not any(ours[axis].isdisjoint(theirs[axis]) for axis in ours.keys() & theirs.keys()):
        return False
    kinds: dict[Hashable, list[CaseResult]] = defaultdict(list)
    for result in other:
        kinds[kind_of(result)].append(result)
    return any(differ_by_dtype(result, twin) for result in found for twin in kinds[kind_of(result)])


def _dtypes(results: Iterable[CaseResult]) -> Mapping[str, set[Value]]:
    """By axis the dtypes among its values."""
    dtypes: dict[str, set[Value]] = defaultdict(set)
    for result in results:
        for axis, value in result.values.items():
            if is_dtype(value):
                dtypes[axis].add(value)
    return dtypes


def _by_cause(failing: Iterable[CaseResult]) -> list[list[CaseResult]]:
    """Group failures of one cause, wrong numbers also of one pattern, or of a sanitizer's line."""
    groups: list[list[CaseResult]] = []
    known: dict[Hashable, list[CaseResult]] = {}
    for result in failing:
        keys: list[Hashable] = [*sorted(lines_of(result)), kind_of(result)]
        group = next((known[key] for key in keys if key in known), None)
        if group is None:
            group = []
            groups.append(group)
        group.append(result)
        for key in keys:
            known.setdefault(key, group)
    return groups


def _group(
    found: Sequence[CaseResult],
    evidence: Evidence,
    passed: Sequence[CaseResult],
    results: Sequence[CaseResult],
) -> Group:
    by_pattern: dict[str, list[CaseResult]] = defaultdict(list)
    for result in found:
        by_pattern[_pattern_name(result)].append(result)
    by_pattern.pop(_pattern_name(min(found, key=_complexity)))
    others = [
        Pattern(name, len(alike), _selection(min(alike, key=_complexity), results))
        for name, alike in by_pattern.items()
    ]
    others.sort(key=lambda pattern: (-pattern.cases, pattern.name))
    return Group(tuple(found), evidence, not passed, tuple(others))


def _pattern_name(result: CaseResult) -> str:
    if not result.findings:
        return str(result.status)
    finding = result.findings[0]
    pattern = finding.pattern or "no pattern"
    return pattern if finding.check == "numeric" else f"{finding.check}: {pattern}"


def _complexity(result: CaseResult) -> tuple[object, ...]:
    """The sort key that puts the simplest case first."""
    result = result.smaller or result
    size = sum(abs(number) for number in numbers_in(list(result.values.values())))
    return (_needs_two_runs(result), result.elements, size, len(result.case), result.case)


def _needs_two_runs(result: CaseResult) -> bool:
    """Whether only a comparison with another run shows that the case is wrong."""
    return bool(result.findings) and result.findings[0].check in COMPARING_CHECKS


def _selection(result: CaseResult, results: Sequence[CaseResult]) -> str:
    """The fewest `axis=value` that no other case of the run has together, for `-k`."""
    values = {axis: label(value) for axis, value in result.values.items()}
    others = [
        {axis for axis, text in values.items() if label(other.values.get(axis, "")) == text}
        for other in results
        if other.case != result.case
    ]
    for size in range(1, _MAX_AXES + 1):
        for axes in combinations(values, size):
            if not any(other.issuperset(axes) for other in others):
                return " and ".join(f"{axis}={values[axis]}" for axis in axes)
    return result.case


# Evidence ------------------------------------------------------------------------------------


def _shared_values(failing: Sequence[CaseResult], passed: Sequence[CaseResult]) -> Evidence:
    """The values that all of `failing` share; empty for a single case."""
    if len(failing) < 2:
        return Evidence()
    shared = _shared(failing, passed)
    return Evidence(_axis_labels(failing[0], shared), len(_having(passed, shared)))


def _evidence_of_one_fault(
    failing: Sequence[CaseResult], passed: Sequence[CaseResult]
) -> Evidence | None:
    """The evidence that all of `failing` show one fault; None if there is none.

    There is if one of these holds:

    - no case passed, or none with all values that `failing` share;
    - those that passed have a value of one axis that no failing case has;
    - the values of some axis in `failing` are all different from those in `passed`.
    """
    if len(failing) < 2:
        return None
    shared = _shared(failing, passed)
    alone = [axis for axis in shared if not _having(passed, {axis: shared[axis]})]
    if alone:
        return Evidence(_axis_labels(failing[0], alone))
    inside = _having(passed, shared)
    if not inside:
        return Evidence(_axis_labels(failing[0], shared))
    repeating = _repeating_axes([*failing, *passed])
    only = _passing_only(failing, inside, repeating) if len(inside) < len(failing) else None
    if only is not None:
        return Evidence(_axis_labels(failing[0], shared), len(inside), only)
    for axis in repeating:
        bad = _labels(failing, axis)
        if bad and len(bad) <= _MAX_VALUES and not bad.keys() & _labels(passed, axis).keys():
            return Evidence((_either(axis, bad.values()),))
    return None


def _split_by_evidence(
    failing: Sequence[CaseResult], passed: Sequence[CaseResult]
) -> Iterator[tuple[list[CaseResult], Evidence | None]]:
    """Split `failing` into faults with their evidence; last come those without evidence.

    A fault is all of `failing`, or the largest set with one value in common if that is at least
    half of it; then the same for the rest.
    """
    left = list(failing)
    while left:
        evidence = _evidence_of_one_fault(left, passed)
        found = left if evidence is not None else []
        if evidence is None:
            found, evidence = _largest_fault(left, passed)
        if evidence is None:
            yield left, None
            return
        yield found, evidence
        taken = set(map(id, found))
        left = [result for result in left if id(result) not in taken]


def _largest_fault(
    failing: Sequence[CaseResult], passed: Sequence[CaseResult]
) -> tuple[list[CaseResult], Evidence | None]:
    """The largest set of failing cases with one value in common that is one fault."""
    by_value: dict[tuple[str, str], list[CaseResult]] = defaultdict(list)
    for result in failing:
        for item in result.canonical_values.items():
            by_value[item].append(result)
    for found in sorted(by_value.values(), key=len, reverse=True):
        if 2 * len(found) < len(failing):
            break
        evidence = _evidence_of_one_fault(found, passed)
        if evidence is not None:
            return found, evidence
    return [], None


def _shared(failing: Sequence[CaseResult], passed: Sequence[CaseResult]) -> dict[str, str]:
    """Values by axis that all of `failing` have and some of `passed` do not."""
    shared = {}
    for axis, key in failing[0].canonical_values.items():
        if {result.canonical_values.get(axis) for result in failing} != {key}:
            continue
        if {result.canonical_values.get(axis) for result in passed} - {None, key}:
            shared[axis] = key
    return shared


def _having(results: Iterable[CaseResult], values: Mapping[str, str]) -> list[CaseResult]:
    wanted = values.items()
    return [result for result in results if wanted <= result.canonical_values.items()]


def _repeating_axes(results: Sequence[CaseResult]) -> list[str]:
    """Axes whose values repeat: an axis with a new value in every case separates any two sets."""
    axes = results[0].values
    return [axis for axis in axes if 2 * len(_labels(results, axis)) <= len(results)]


def _passing_only(
    failing: Sequence[CaseResult], passed: Sequence[CaseResult], axes: Iterable[str]
) -> str | None:
    """Values of one axis that all of `passed` have and none of `failing`."""
    for axis in axes:
        good = _labels(passed, axis)
        if 0 < len(good) <= _MAX_VALUES and not good.keys() & _labels(failing, axis).keys():
            return _either(axis, good.values())
    return None


def _labels(results: Iterable[CaseResult], axis: str) -> dict[str, str]:
    """The labels of an axis's values, by canonical text."""
    found = {result.canonical_values.get(axis): result for result in results}
    found.pop(None, None)
    return {text: label(result.values[axis]) for text, result in found.items() if text is not None}


def _axis_labels(result: CaseResult, axes: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{axis}={label(result.values[axis])}" for axis in axes)


def _either(axis: str, labels: Iterable[str]) -> str:
    return f"{axis}=" + " or ".join(sorted(labels))
