"""Groups the failing cases of a run by fault.

Failures of one `Cause` are one group, as are reports of sanitizers on the same line. Wrong numbers
are grouped by the values of their cases first, whatever their cause: the same wrong mask may be
one row here, a tile there and everything elsewhere. Without such evidence they are grouped by
cause and pattern. A dtype alone does not separate cases with the same wrong elements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from tlmatrix.run.result import Status
from tlmatrix.spec.values import label
from tlmatrix.triage.cause import (
    COMPARING_CHECKS,
    differ_by_dtype,
    is_dtype,
    kind_of,
    lines_of,
    wrong_numbers,
)
from tlmatrix.triage.evidence import (
    Evidence,
    evidence_of_one_fault,
    shared_values,
    split_by_evidence,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from tlmatrix.run.result import CaseResult
    from tlmatrix.spec.values import Value

_MAX_AXES = 3
"""Most axes that a selection names; with more, the whole id is clearer."""


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
    for found, evidence in split_by_evidence(list(filter(wrong_numbers, failing)), passed):
        if evidence is not None:
            faults.append((found, evidence))
        else:
            ungrouped += found
    faults += [(found, shared_values(found, passed)) for found in _by_cause(ungrouped)]
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
        shared = evidence_of_one_fault(together, passed) or shared_values(together, passed)
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
    size = sum(abs(number) for number in _numbers(list(result.values.values())))
    return (_needs_two_runs(result), result.elements, size, len(result.case), result.case)


def _needs_two_runs(result: CaseResult) -> bool:
    """Whether only a comparison with another run shows that the case is wrong."""
    return bool(result.findings) and result.findings[0].check in COMPARING_CHECKS


def _numbers(value: Value) -> Iterator[float]:
    """All numbers in a value."""
    match value:
        case bool() | str() | None:
            return
        case int() | float():
            yield value
        case Mapping():
            yield from _numbers(list(value.values()))
        case _:
            for item in value:
                yield from _numbers(item)


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
