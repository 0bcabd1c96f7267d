"""Failures grouped by what a person would call the same fault.

One fault in a kernel wears many faces: the same wrong mask is a row here, a tile there and
everything elsewhere. Wrong numbers of one spec are therefore one group as long as the axes of
the cases say so; whatever raised, or wrote where it must not, is told apart by what happened.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from tlmatrix.run.result import Status
from tlmatrix.spec.values import label
from tlmatrix.triage.evidence import Evidence, clusters, common

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tlmatrix.run.result import CaseResult
    from tlmatrix.spec.values import Value

__all__ = ["Group", "Pattern", "group_failures"]

_FURTHER = frozenset({"isolation", "determinism", "repeat", "relations", "agreement"})
"""Checks that compare numbers of several runs."""
_NUMBERS = _FURTHER | {"numeric", "gradients"}
"""Checks that compare numbers; their findings differ in shape more than in cause."""
_MOST_AXES = 3
"""Axes that a selection names before the whole id is clearer."""


@dataclass(frozen=True)
class Pattern:
    """Cases of a group whose first finding looks alike."""

    name: str
    cases: int
    select: str
    """What `-k` takes to run one of them."""


@dataclass(frozen=True)
class Group:
    """Cases of one spec that are taken for one fault."""

    results: tuple[CaseResult, ...]
    evidence: Evidence
    everything: bool
    """Whether no case of the spec passed."""
    others: tuple[Pattern, ...]
    """How cases fail that do not look like the example, the commonest first."""

    @property
    def example(self) -> CaseResult:
        """The plainest: wrong in one run if any is, and of the smallest problem.

        The same one whatever order workers ran in.
        """
        return min(self.results, key=_plainness)


def group_failures(results: Iterable[CaseResult]) -> list[Group]:
    """Groups of the failing cases, the largest first."""
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
    numbers: list[CaseResult] = []
    causes: dict[tuple[object, ...], list[CaseResult]] = defaultdict(list)
    for result in results:
        if not result.failed:
            continue
        if result.status is Status.FAILED and result.findings[0].check in _NUMBERS:
            numbers.append(result)
        else:
            causes[_cause(result)].append(result)
    for found, evidence in clusters(numbers, passed):
        if evidence is not None:
            yield _group(found, evidence, passed, results)
        else:
            for result in found:
                causes[_cause(result)].append(result)
    for found in causes.values():
        yield _group(found, common(found, passed), passed, results)


def _group(
    found: Sequence[CaseResult],
    evidence: Evidence,
    passed: Sequence[CaseResult],
    results: Sequence[CaseResult],
) -> Group:
    looks: dict[str, list[CaseResult]] = defaultdict(list)
    for result in found:
        looks[_look(result)].append(result)
    looks.pop(_look(min(found, key=_plainness)))
    others = [
        Pattern(name, len(alike), _selection(min(alike, key=_plainness), results))
        for name, alike in looks.items()
    ]
    others.sort(key=lambda pattern: (-pattern.cases, pattern.name))
    return Group(tuple(found), evidence, not passed, tuple(others))


def _cause(result: CaseResult) -> tuple[object, ...]:
    """What is equal for cases that end alike, one case at a time."""
    if not result.findings:
        return (result.status,)
    finding = result.findings[0]
    if result.status is Status.ERROR:
        # The type and the first line of an exception, whatever sizes the line holds.
        return (result.status, finding.check, re.sub(r"\d+", "0", finding.title))
    return (result.status, *finding.cause)


def _look(result: CaseResult) -> str:
    if not result.findings:
        return str(result.status)
    finding = result.findings[0]
    pattern = finding.pattern or "no pattern"
    return pattern if finding.check == "numeric" else f"{finding.check}: {pattern}"


def _plainness(result: CaseResult) -> tuple[object, ...]:
    result = result.smaller or result
    numbers = sum(abs(number) for number in _numbers(list(result.values.values())))
    return (_further(result), result.elements, numbers, len(result.case), result.case)


def _further(result: CaseResult) -> bool:
    """Whether the case alone was right, and only a comparison with another run is not."""
    return bool(result.findings) and result.findings[0].check in _FURTHER


def _numbers(value: Value) -> Iterator[float]:
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
    for size in range(1, _MOST_AXES + 1):
        for axes in combinations(values, size):
            if not any(other.issuperset(axes) for other in others):
                return " and ".join(f"{axis}={values[axis]}" for axis in axes)
    return result.case
