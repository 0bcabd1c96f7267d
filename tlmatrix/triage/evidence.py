"""What failing cases have that passing ones do not: the first question about a set of failures.

Invalid inputs are no evidence either way and is left out by the caller.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tlmatrix.spec.values import canonical, label

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tlmatrix.run.result import CaseResult

__all__ = ["Evidence", "clusters", "common", "one_cause"]

_EXCEPTIONS = 3
"""Values that spare a case from a fault, at most; more than these is no rule."""


@dataclass(frozen=True)
class Evidence:
    """What failing cases have in common, and how far passing cases bear out that it matters."""

    shared: tuple[str, ...] = ()
    """`axis=value` that every failing case has and not every case of the spec."""
    passing: int = 0
    """Cases that have all that is shared, and passed."""
    spared: str = ""
    """`axis=value` of those that passed, where no failing case has it."""


def common(failing: Sequence[CaseResult], passed: Sequence[CaseResult]) -> Evidence:
    """What all of `failing` have, whether or not it explains them; nothing for a single case."""
    if len(failing) < 2:
        return Evidence()
    shared = _shared(failing, passed)
    return Evidence(_words(failing[0], shared), len(_having(passed, shared)))


def one_cause(failing: Sequence[CaseResult], passed: Sequence[CaseResult]) -> Evidence | None:
    """Why all of `failing` look like one fault; None where nothing says so.

    They do when nothing else passed; when no case with all that they share passed, or only cases
    with a value that none of them has; and when some axis has other values in all of them than in
    all that passed.
    """
    if len(failing) < 2:
        return None
    shared = _shared(failing, passed)
    alone = [axis for axis in shared if not _having(passed, {axis: shared[axis]})]
    if alone:
        return Evidence(_words(failing[0], alone))
    inside = _having(passed, shared)
    if not inside:
        return Evidence(_words(failing[0], shared))
    telling = _telling([*failing, *passed])
    spared = _spared(failing, inside, telling) if len(inside) < len(failing) else None
    if spared is not None:
        return Evidence(_words(failing[0], shared), len(inside), spared)
    for axis in telling:
        bad = _labels(failing, axis)
        if bad and len(bad) <= _EXCEPTIONS and not bad.keys() & _labels(passed, axis).keys():
            return Evidence((_either(axis, bad.values()),))
    return None


def clusters(
    failing: Sequence[CaseResult], passed: Sequence[CaseResult]
) -> Iterator[tuple[list[CaseResult], Evidence | None]]:
    """Split `failing` into faults: each with its evidence, and last what nothing explains.

    A fault is all there is, or the larger half of it that has one value in common.
    """
    left = list(failing)
    while left:
        evidence = one_cause(left, passed)
        found = left if evidence is not None else []
        if evidence is None:
            found, evidence = _largest(left, passed)
        if evidence is None:
            yield left, None
            return
        yield found, evidence
        taken = set(map(id, found))
        left = [result for result in left if id(result) not in taken]


def _largest(
    failing: Sequence[CaseResult], passed: Sequence[CaseResult]
) -> tuple[list[CaseResult], Evidence | None]:
    having: dict[tuple[str, str], list[CaseResult]] = defaultdict(list)
    for result in failing:
        for axis, value in result.values.items():
            having[(axis, canonical(value))].append(result)
    for found in sorted(having.values(), key=len, reverse=True):
        if 2 * len(found) < len(failing):
            break
        evidence = one_cause(found, passed)
        if evidence is not None:
            return found, evidence
    return [], None


def _shared(failing: Sequence[CaseResult], passed: Sequence[CaseResult]) -> dict[str, str]:
    """Values by axis that all of `failing` have and some of `passed` do not."""
    shared = {}
    for axis, value in failing[0].values.items():
        key = canonical(value)
        alike = all(_key(result, axis) == key for result in failing)
        if alike and any(_key(result, axis) not in (None, key) for result in passed):
            shared[axis] = key
    return shared


def _having(results: Iterable[CaseResult], values: Mapping[str, str]) -> list[CaseResult]:
    return [
        result
        for result in results
        if all(_key(result, axis) == value for axis, value in values.items())
    ]


def _telling(results: Sequence[CaseResult]) -> list[str]:
    """Axes whose values repeat: one that is new in every case parts any two sets of cases."""
    axes = results[0].values
    return [axis for axis in axes if 2 * len(_labels(results, axis)) <= len(results)]


def _spared(
    failing: Sequence[CaseResult], passed: Sequence[CaseResult], axes: Iterable[str]
) -> str | None:
    """Values of one axis that all of `passed` have and none of `failing`."""
    for axis in axes:
        good = _labels(passed, axis)
        if 0 < len(good) <= _EXCEPTIONS and not good.keys() & _labels(failing, axis).keys():
            return _either(axis, good.values())
    return None


def _labels(results: Iterable[CaseResult], axis: str) -> dict[str, str]:
    """The values of an axis, each with how it reads."""
    return {
        canonical(result.values[axis]): label(result.values[axis])
        for result in results
        if axis in result.values
    }


def _key(result: CaseResult, axis: str) -> str | None:
    return canonical(result.values[axis]) if axis in result.values else None


def _words(result: CaseResult, axes: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{axis}={label(result.values[axis])}" for axis in axes)


def _either(axis: str, labels: Iterable[str]) -> str:
    return f"{axis}=" + " or ".join(sorted(labels))
