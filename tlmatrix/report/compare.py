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
    from collections.abc import Iterator

    from tlmatrix.run.records import RunRecords
    from tlmatrix.triage.groups import Group

_SMALL_RATIO = 0.1
"""Growth of an error ratio below this part of the error bound is rounding."""
_SMALL_SECONDS = 0.1
"""A case that takes less than this longer is not slower."""
_UNJUDGED = (Status.SKIPPED, Status.QUARANTINED)


@dataclass(frozen=True)
class Change:
    """A case of both runs."""

    before: CaseResult
    after: CaseResult

    def grown(self, factor: float) -> bool:
        """Whether its error ratio is that many times as large, although it passes."""
        if self.after.failed or self.before.failed:
            return False
        old, new = self.before.error_ratio, self.after.error_ratio
        if old is None or new is None:
            return False
        return new > factor * old and new - old > _SMALL_RATIO

    def slower(self, factor: float) -> bool:
        """Whether it takes that many times as long on the same backend."""
        old, new = self.before, self.after
        if (old.backend, old.arch) != (new.backend, new.arch) or not (
            _passed(old) and _passed(new)
        ):
            return False
        return new.seconds > factor * old.seconds and new.seconds - old.seconds > _SMALL_SECONDS

    @property
    def growth(self) -> float:
        """How many times as large its error ratio is."""
        return (self.after.error_ratio or 0.0) / max(self.before.error_ratio or 0.0, 1e-9)

    @property
    def delay(self) -> float:
        """How many seconds longer it takes."""
        return self.after.seconds - self.before.seconds


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
        added = [result for key, result in new.items() if key not in old]
        self.before, self.after = before, after
        self.common, self.added = len(common), len(added)
        self.removed = [result for key, result in old.items() if key not in new]
        self.failing = [c for c in common if c.after.failed and not c.before.failed]
        self.failing_added = [result for result in added if result.failed]
        self.fixed = [c for c in common if c.before.failed and _passed(c.after)]
        self.unjudged = [c for c in common if _passed(c.before) and c.after.status in _UNJUDGED]
        self.still = sum(c.before.failed and c.after.failed for c in common)
        self.grown = sorted((c for c in common if c.grown(grown)), key=lambda c: -c.growth)
        self.slower = sorted((c for c in common if c.slower(slower)), key=lambda c: -c.delay)
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


def _passed(result: CaseResult) -> bool:
    return result.status is Status.PASSED


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
    for name, rows in _changes(found):
        if rows:
            yield ""
            yield f"{name}: {len(rows):,}"
        for result, words in rows[:most]:
            yield f"  {result.node}"
            yield f"    {words}"
        if len(rows) > most:
            yield f"  … and {len(rows) - most:,} more (--all)"
    if found.new_faults:
        yield ""
        yield f"new faults: {len(found.new_faults)}"
        for group in found.new_faults[:most]:
            result = group.example
            yield f"  {result.spec}: {_finding(result)}, in {count(len(group.results), 'case')}"
            yield f"    {result.shown.command}"
    yield ""
    yield (
        f"{len(found.failing) + len(found.failing_added):,} newly failing, {len(found.fixed):,} "
        f"fixed, {found.still:,} still failing, {len(found.grown):,} with a larger error ratio, "
        f"{len(found.slower):,} slower"
    )


def _changes(found: Comparison) -> Iterator[tuple[str, list[tuple[CaseResult, str]]]]:
    """Each kind of change, with its cases and what changed."""
    yield "newly failing", [(c.after, _finding(c.after)) for c in found.failing]
    added = [(result, _finding(result)) for result in found.failing_added]
    yield "failing, only in the later run", added
    unjudged = [(c.after, f"{c.after.status}: {c.after.message}") for c in found.unjudged]
    yield "passed before, not judged now", unjudged
    yield "fixed", [(c.after, f"was {_finding(c.before)}") for c in found.fixed]
    words = "{:.3g} -> {:.3g} of the error bound"
    ratios = [(c, words.format(c.before.error_ratio, c.after.error_ratio)) for c in found.grown]
    yield "error ratio grown", [(c.after, text) for c, text in ratios]
    seconds = [(c, f"{c.before.seconds:.2f} s -> {c.after.seconds:.2f} s") for c in found.slower]
    yield "slower", [(c.after, text) for c, text in seconds]


def _finding(result: CaseResult) -> str:
    if result.shown.findings:
        return result.headline
    return f"{result.status}{f': {result.message}' if result.message else ''}"


def _names(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
