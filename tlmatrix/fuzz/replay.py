"""The verdict on a regression: fixed, failing, in error, or skipped."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from tlmatrix.run.result import Status

if TYPE_CHECKING:
    from tlmatrix.run.result import CaseResult


class Verdict(StrEnum):
    """The state of a regression after a run."""

    FIXED = "FIXED"
    FAILED = "FAILED"
    """A check has a finding, known bug or not."""
    ERROR = "ERROR"
    """The code raised, crashed or timed out, or the spec does not match it."""
    SKIPPED = "SKIPPED"
    """The case cannot run here, or is quarantined."""


_OF_STATUS = {
    Status.PASSED: Verdict.FIXED,
    Status.FAILED: Verdict.FAILED,
    Status.KNOWN_BUG: Verdict.FAILED,
    Status.ERROR: Verdict.ERROR,
    Status.CRASHED: Verdict.ERROR,
    Status.TIMEOUT: Verdict.ERROR,
    Status.SKIPPED: Verdict.SKIPPED,
    Status.QUARANTINED: Verdict.SKIPPED,
}


def verdict(result: CaseResult) -> Verdict:
    """The verdict on a regression with this result."""
    if any(finding.check == "known_bugs" for finding in result.findings):
        return Verdict.FIXED  # it passed, so its entry in known_bugs is stale
    return _OF_STATUS[result.status]


def reason(result: CaseResult) -> str:
    """The first finding and the message of a result, in one line; empty if it has neither."""
    parts = [f"{finding.check}: {finding.title}" for finding in result.findings[:1]]
    if len(result.findings) > 1:
        parts.append(f"and {len(result.findings) - 1} more")
    return "; ".join([*parts, *([result.message] if result.message else [])])
