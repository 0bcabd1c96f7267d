"""Shrinks failing fuzz cases of a tier: in each process, the first failure of each cause."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tlmatrix.fuzz.search import FuzzFailure
    from tlmatrix.matrix import Case
    from tlmatrix.run.result import CaseResult
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.triage.cause import Cause

_SECONDS = 10.0
"""Time limit of shrinking one failure: a run with failures should end soon."""


class Shrinker:
    """Shrinks failures, and remembers the causes that it has shrunk."""

    def __init__(self) -> None:
        self._known: set[tuple[str, Cause]] = set()
        self._found: list[FuzzFailure] = []

    def add_smaller(
        self, runner: Runner, spec: Spec, case: Case, result: CaseResult, limit: float | None
    ) -> CaseResult:
        """Shrink a failing case if its cause is new, and add the smallest case to its result.

        `limit` is the time limit of a case in seconds, of which shrinking takes at most a quarter.
        """
        from tlmatrix.fuzz.search import shrink_failure
        from tlmatrix.triage.cause import cause_of

        cause = cause_of(result)
        if cause is None or (result.path, cause) in self._known:
            return result
        self._known.add((result.path, cause))
        seconds = _SECONDS if limit is None else min(_SECONDS, limit / 4)
        found = shrink_failure(spec, runner, case, result, seconds=seconds)
        self._known.update((result.path, cause) for cause in found.causes)
        if any(found.same_fault(other) for other in self._found):
            return result
        self._found.append(found)
        if found.smallest.key == result.key:
            # Shrinking adds to the finding which elements are wrong with any data.
            return replace(result, findings=found.smallest.findings)
        return replace(result, smaller=found.smallest)
