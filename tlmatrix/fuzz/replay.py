"""What became of a regression: fixed, or failing still, or not to be judged."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from tlmatrix.run.result import Status

if TYPE_CHECKING:
    from tlmatrix.run.result import CaseResult

__all__ = ["Verdict", "verdict", "why"]


class Verdict(StrEnum):
    """How a regression stands today."""

    FIXED = "FIXED"
    FAILED = "FAILED"
    """A check has a finding, known bug or not."""
    ERROR = "ERROR"
    """The code raised, crashed or did not end, or the spec does not fit."""
    SKIPPED = "SKIPPED"
    """It cannot run here, or must not (quarantined)."""


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
    """How the regression stands whose result this is."""
    if any(finding.check == "known_bugs" for finding in result.findings):
        return Verdict.FIXED  # Passing is the failure there: its entry in known_bugs is stale.
    return _OF_STATUS[result.status]


def why(result: CaseResult) -> str:
    """In a line why it is not fixed, or what else there is to know; empty where nothing is."""
    told = [f"{finding.check}: {finding.title}" for finding in result.findings[:1]]
    if len(result.findings) > 1:
        told.append(f"and {len(result.findings) - 1} more")
    return "; ".join([*told, *([result.message] if result.message else [])])
