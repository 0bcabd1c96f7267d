"""Values that failing cases have and passing cases do not: evidence that failures are one fault.

Invalid-input cases are no evidence; callers leave them out.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tlmatrix.spec.values import label

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tlmatrix.run.result import CaseResult

_MAX_VALUES = 3
"""Most values of an axis that evidence names."""


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


def shared_values(failing: Sequence[CaseResult], passed: Sequence[CaseResult]) -> Evidence:
    """The values that all of `failing` share; empty for a single case."""
    if len(failing) < 2:
        return Evidence()
    shared = _shared(failing, passed)
    return Evidence(_axis_labels(failing[0], shared), len(_having(passed, shared)))


def evidence_of_one_fault(
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


def split_by_evidence(
    failing: Sequence[CaseResult], passed: Sequence[CaseResult]
) -> Iterator[tuple[list[CaseResult], Evidence | None]]:
    """Split `failing` into faults with their evidence; last come those without evidence.

    A fault is all of `failing`, or the largest set with one value in common if that is at least
    half of it; then the same for the rest.
    """
    left = list(failing)
    while left:
        evidence = evidence_of_one_fault(left, passed)
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
        evidence = evidence_of_one_fault(found, passed)
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
