"""A second pass over a failed case: what its first finding kept from being checked.

Wrong values, an access outside, or a result of another shape stop the checks that run the entry
again. The second pass makes them as if that finding did not exist, once for each cause.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.check.finding import MASKED, NOT_RUN
from tlmatrix.run.result import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from tlmatrix.check.finding import Finding
    from tlmatrix.run.result import CaseResult

_VALUES = frozenset({"numeric", "gradients", "poison"})


class SecondPass:
    """The causes that a process has looked behind."""

    def __init__(self) -> None:
        self._seen: set[tuple[str | None, ...]] = set()

    def extended(self, result: CaseResult, judge: Callable[[], CaseResult]) -> CaseResult:
        """A result with the findings of a second pass, if it is the first of its cause.

        Args:
            result: the result of a case that all checks judged.
            judge: judges the case once more, with its findings masked.
        """
        if result.status is not Status.FAILED or not _stopped(result):
            return result
        first = result.findings[0]
        cause = (result.path, *first.cause, first.source)
        if cause in self._seen:
            return result
        self._seen.add(cause)
        known = {finding.check for finding in result.findings}
        found = [_noted(each) for each in judge().findings if each.check not in known]
        return replace(result, findings=(*result.findings, *found))


def _noted(finding: Finding) -> Finding:
    detail = f"{finding.detail}\n{MASKED}" if finding.detail else MASKED
    return replace(finding, detail=detail)


def _stopped(result: CaseResult) -> bool:
    """Whether checks did not run that may find another fault.

    If only some values are wrong, relations between calls are wrong with them.
    """
    if not any(NOT_RUN in (finding.detail or "") for finding in result.findings):
        return False
    if any(finding.check == "determinism" for finding in result.findings):
        return False  # calls differ, and so do the sides of relations
    values = (finding for finding in result.findings if finding.check in _VALUES)
    return all(finding.pattern in ("everything", "shape") for finding in values)
