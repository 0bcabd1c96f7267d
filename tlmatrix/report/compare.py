"""Compares two runs case by case: newly failing, fixed, error ratios grown, slower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tlmatrix.report.text import count
from tlmatrix.results_file import shown_path
from tlmatrix.run.result import CaseResult, Status
from tlmatrix.triage.cause import cause_of
from tlmatrix.triage.groups import group_failures

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tlmatrix.run.records import RunRecords
    from tlmatrix.triage.groups import Group

_SMALL_RATIO = 0.1
"""Growth of an error ratio below this part of the error bound is rounding."""
_SMALL_SECONDS = 0.1
"""A case that takes less than this longer is not slower."""
_UNJUDGED = (Status.SKIPPED, Status.QUARANTINED)


@dataclass(frozen=True)
class Change:
    """A case of both runs; `before` is None if only the later run has it."""

    before: CaseResult | None
    after: CaseResult


class Comparison:
    """Two runs, compared by the spec and the id of each case.

    Args:
        before: the earlier run.
        after: the later run.
        grown: an error ratio counts as grown if it is this many times as large.
        slower: a case counts as slower if it takes this many times as long on the same backend.
    """

    def __init__(
        self, before: RunRecords, after: RunRecords, *, grown: float = 2.0, slower: float = 1.5
    ) -> None:
        old = {(result.path, result.case): result for result in before.results}
        new = {(result.path, result.case): result for result in after.results}
        common = [Change(old[key], result) for key, result in new.items() if key in old]
        added = [Change(None, result) for key, result in new.items() if key not in old]
        self.before, self.after = before, after
        self.common = len(common)
        self.removed = [result for key, result in old.items() if key not in new]
        self.failing = [c for c in common if c.after.failed and not _failed(c.before)]
        self.failing_added = [c for c in added if c.after.failed]
        self.added = len(added)
        self.fixed = [c for c in common if _failed(c.before) and _passed(c.after)]
        self.unjudged = [c for c in common if _passed(c.before) and c.after.status in _UNJUDGED]
        self.still = sum(_failed(c.before) and c.after.failed for c in common)
        self.grown = sorted((c for c in common if _grown(c, grown)), key=_growth, reverse=True)
        self.slower = sorted((c for c in common if _slower(c, slower)), key=_slowdown, reverse=True)
        known = {(r.path, cause_of(r)) for r in before.results if r.failed}
        self.new_faults: list[Group] = [
            group
            for group in group_failures(after.results)
            if not any((r.path, cause_of(r)) in known for r in group.results)
        ]

    @property
    def worse(self) -> bool:
        """Whether a case fails that did not, is no longer judged, or has no result in a run."""
        incomplete = self.before.incomplete or self.after.incomplete
        return bool(self.failing or self.failing_added or self.unjudged or incomplete)


def _failed(result: CaseResult | None) -> bool:
    return result is not None and result.failed


def _passed(result: CaseResult | None) -> bool:
    return result is not None and result.status is Status.PASSED


def _grown(change: Change, factor: float) -> bool:
    if change.before is None or change.after.failed or change.before.failed:
        return False
    old, new = change.before.error_ratio, change.after.error_ratio
    if old is None or new is None:
        return False
    return new > factor * old and new - old > _SMALL_RATIO


def _growth(change: Change) -> float:
    assert change.before is not None
    return (change.after.error_ratio or 0.0) / max(change.before.error_ratio or 0.0, 1e-9)


def _slower(change: Change, factor: float) -> bool:
    old, new = change.before, change.after
    if old is None or (old.backend, old.arch) != (new.backend, new.arch):
        return False
    if not (_passed(old) and _passed(new)):
        return False
    return new.seconds > factor * old.seconds and new.seconds - old.seconds > _SMALL_SECONDS


def _slowdown(change: Change) -> float:
    assert change.before is not None
    return change.after.seconds - change.before.seconds


def comparison_lines(found: Comparison, most: int = 20) -> Iterator[str]:
    """The lines of `tlmatrix diff`; of each kind of change at most `most` cases."""
    old, new = found.before, found.after
    yield (
        f"{count(found.common, 'case')} in both runs, {found.added:,} only in the later, "
        f"{len(found.removed):,} only in the earlier"
    )
    for run, place in ((old, "earlier"), (new, "later")):
        if run.incomplete:
            yield f"the {place} run is incomplete ({shown_path(run.path)}): {run.incomplete}"
    if new.header.seed != old.header.seed:
        yield f"the runs have other inputs: seed {old.header.seed} and {new.header.seed}"
    places = [{r.backend for r in run.results if r.backend} for run in (old, new)]
    if places[0] != places[1]:
        yield f"the backends differ: {_names(places[0])} and {_names(places[1])}"
    yield from _listed("newly failing", found.failing, most, _failure)
    yield from _listed("failing, only in the later run", found.failing_added, most, _failure)
    yield from _listed("passed before, not judged now", found.unjudged, most, _reason)
    yield from _listed("fixed", found.fixed, most, _was)
    yield from _listed("error ratio grown", found.grown, most, _ratios)
    yield from _listed("slower", found.slower, most, _seconds)
    if found.new_faults:
        yield ""
        yield f"new faults: {len(found.new_faults)}"
        for group in found.new_faults[:most]:
            result = group.example
            yield f"  {result.spec}: {_finding(result)}, in {count(len(group.results), 'case')}"
            yield f"    {(result.smaller or result).command}"
    yield ""
    yield (
        f"{len(found.failing) + len(found.failing_added):,} newly failing, {len(found.fixed):,} "
        f"fixed, {found.still:,} still failing, {len(found.grown):,} with a larger error ratio, "
        f"{len(found.slower):,} slower"
    )


def _listed(name: str, changes: Sequence[Change], most: int, words: object) -> Iterator[str]:
    assert callable(words)
    if not changes:
        return
    yield ""
    yield f"{name}: {len(changes):,}"
    for change in changes[:most]:
        yield f"  {change.after.node}"
        yield f"    {words(change)}"
    if len(changes) > most:
        yield f"  … and {len(changes) - most:,} more (--all)"


def _finding(result: CaseResult) -> str:
    shown = result.smaller or result
    if not shown.findings:
        return f"{result.status}{f': {result.message}' if result.message else ''}"
    return f"{shown.findings[0].check}: {shown.findings[0].title}"


def _failure(change: Change) -> str:
    return _finding(change.after)


def _reason(change: Change) -> str:
    return f"{change.after.status}: {change.after.message}"


def _was(change: Change) -> str:
    assert change.before is not None
    return f"was {_finding(change.before)}"


def _ratios(change: Change) -> str:
    assert change.before is not None
    return f"{change.before.error_ratio:.3g} -> {change.after.error_ratio:.3g} of the error bound"


def _seconds(change: Change) -> str:
    assert change.before is not None
    return f"{change.before.seconds:.2f} s -> {change.after.seconds:.2f} s"


def _names(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
