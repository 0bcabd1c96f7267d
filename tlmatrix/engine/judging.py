"""Judges the cases of a run, and looks further into the first failure of each cause.

Wrong values, an access outside, or a result of another shape stop the checks that run the entry
again: a second pass makes them as if that finding did not exist. A fuzz case is shrunk.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.check.finding import MASKED, NOT_RUN
from tlmatrix.run.result import Status

if TYPE_CHECKING:
    from tlmatrix.check.finding import Finding
    from tlmatrix.fuzz.search import FuzzFailure
    from tlmatrix.matrix import Case
    from tlmatrix.run.compute_sanitizer import ComputeSanitizer
    from tlmatrix.run.result import CaseResult
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.triage.cause import Cause

_SHRINK_SECONDS = 10.0
"""Time limit of shrinking one failure: a run with failures should end soon."""
_VALUES = frozenset({"numeric", "gradients", "poison"})


class CaseJudge:
    """Runs the cases of a run in this process, and knows the causes that it has looked behind.

    Args:
        runner: runs and records the cases.
        sanitizer: runs each case again under tools of compute-sanitizer.
    """

    def __init__(self, runner: Runner, sanitizer: ComputeSanitizer | None = None) -> None:
        self.runner = runner
        self._sanitizer = sanitizer
        self._masked: set[tuple[str | None, ...]] = set()
        self._shrunk: set[tuple[str, Cause]] = set()
        self._found: list[FuzzFailure] = []

    def run(
        self, spec: Spec, case: Case, path: str, limit: float | None, *, alone: bool = False
    ) -> CaseResult:
        """Run, judge and record a case of the spec at `path` within `limit` seconds.

        `alone` is whether no other case runs, as this one ran out of memory beside others.
        """

        def refined(result: CaseResult) -> CaseResult:
            if alone and result.findings and result.findings[0].check == "memory":
                first, *others = result.findings
                noted = replace(first, title=f"{first.title}; also while no other case ran")
                return replace(result, findings=(noted, *others))
            if self.runner.broken_by:
                return result
            if self._sanitizer is not None:
                result = self._sanitizer.judge(result, limit)
            if case.origin == "fuzz":
                return self._with_smaller(spec, case, result, limit) if result.failed else result
            if case.origin != "invalid" and self.runner.backend.executes:
                return self._with_masked(spec, case, result)
            return result

        return self.runner.run(
            spec,
            case,
            path=path,
            # Of the checks that run the code again, each fuzz case gets one, in rotation.
            reruns="rotate" if case.origin == "fuzz" else "all",
            time_limit=limit or None,
            refine=refined,
        )

    def _with_masked(self, spec: Spec, case: Case, result: CaseResult) -> CaseResult:
        """A result with the findings of a second pass, if it is the first of its cause."""
        if result.status is not Status.FAILED or not _stopped(result):
            return result
        first = result.findings[0]
        cause = (result.path, *first.cause, first.source)
        if cause in self._masked:
            return result
        self._masked.add(cause)
        known = {finding.check for finding in result.findings}
        again = self.runner.judge(spec, case, path=result.path, masked=True)
        found = [_noted(each) for each in again.findings if each.check not in known]
        return replace(result, findings=(*result.findings, *found))

    def _with_smaller(
        self, spec: Spec, case: Case, result: CaseResult, limit: float | None
    ) -> CaseResult:
        """A result with the smallest case that fails like it, if it is the first of its cause.

        Shrinking takes at most a quarter of the time limit.
        """
        from tlmatrix.fuzz.search import shrink_failure
        from tlmatrix.triage.cause import cause_of

        cause = cause_of(result)
        if cause is None or (result.path, cause) in self._shrunk:
            return result
        self._shrunk.add((result.path, cause))
        seconds = min(_SHRINK_SECONDS, limit / 4) if limit else _SHRINK_SECONDS
        found = shrink_failure(spec, self.runner, case, result, seconds=seconds)
        self._shrunk.update((result.path, cause) for cause in found.causes)
        if any(found.same_fault(other) for other in self._found):
            return result
        self._found.append(found)
        if found.smallest.key == result.key:
            # Shrinking adds to the finding which elements are wrong with any data.
            return replace(result, findings=found.smallest.findings)
        return replace(result, smaller=found.smallest)


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
