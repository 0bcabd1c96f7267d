"""Failures grouped by what a person would call the same, with what the cases have in common."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tlmatrix.spec.values import canonical, label

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tlmatrix.run.result import CaseResult

__all__ = ["Group", "group_failures"]


@dataclass(frozen=True)
class Group:
    """Cases of one spec that fail the same way; `example` is one of them."""

    results: tuple[CaseResult, ...]
    shared: tuple[str, ...]
    """`axis=value` that all of these cases have and not every case of the spec."""
    passing: int
    """Cases of the spec that have all that is shared, and passed."""

    @property
    def example(self) -> CaseResult:
        """The same one in every run, whatever order the workers ran in."""
        return min(self.results, key=lambda result: (len(result.case), result.case))


def group_failures(results: Iterable[CaseResult]) -> list[Group]:
    """Groups of the failing cases, the largest first.

    Two cases belong together when they are of one spec, ended alike and their first finding has
    the same cause.
    """
    results = list(results)
    by_spec: dict[str, list[CaseResult]] = defaultdict(list)
    causes: dict[tuple[object, ...], list[CaseResult]] = defaultdict(list)
    for result in results:
        by_spec[result.path].append(result)
        if result.failed:
            cause = result.findings[0].cause if result.findings else ()
            causes[(result.path, result.status, cause)].append(result)
    groups = [_group(found, by_spec[found[0].path]) for found in causes.values()]
    return sorted(groups, key=lambda group: (-len(group.results), group.example.node))


def _group(found: Sequence[CaseResult], everything: Sequence[CaseResult]) -> Group:
    shared = {}
    for axis, value in found[0].values.items():
        key = canonical(value)
        alike = all(canonical(result.values.get(axis)) == key for result in found)
        varies = any(axis in other.values and canonical(other.values[axis]) != key
                     for other in everything)  # fmt: skip
        if alike and varies:
            shared[axis] = key
    passing = [
        result
        for result in everything
        if not result.failed
        and all(
            axis in result.values and canonical(result.values[axis]) == key
            for axis, key in shared.items()
        )
    ]
    # With one case, everything is shared and nothing is learnt.
    words = tuple(f"{axis}={label(found[0].values[axis])}" for axis in shared)
    return Group(tuple(found), words if len(found) > 1 else (), len(passing))
