"""What a failing drawn case gets besides its result: the smallest case that fails alike.

Only the first failure of a cause is worth that time, in each process.
"""

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

__all__ = ["Shrinking"]

_SECONDS = 10.0
"""For one cause, at most: a run with a failure should still end soon."""


class Shrinking:
    """The causes of one process that were shrunk."""

    def __init__(self) -> None:
        self._known: set[tuple[str, Cause]] = set()
        self._found: list[FuzzFailure] = []

    def shrunk(
        self, runner: Runner, spec: Spec, case: Case, result: CaseResult, allowed: float | None
    ) -> CaseResult:
        """The result, with the smallest case that fails alike if this is the first of its cause.

        `allowed` is the time a case may take, of which shrinking uses a part.
        """
        from tlmatrix.fuzz.search import shrink_failure
        from tlmatrix.triage.cause import cause_of

        cause = cause_of(result)
        if cause is None or (result.path, cause) in self._known:
            return result
        self._known.add((result.path, cause))
        seconds = _SECONDS if allowed is None else min(_SECONDS, allowed / 4)
        found = shrink_failure(spec, runner, case, result, seconds=seconds)
        self._known.update((result.path, cause) for cause in found.causes)
        if any(found.same_fault(other) for other in self._found):
            return result
        self._found.append(found)
        if found.smallest.key == result.key:
            # Its finding may say more by now: which elements are wrong whatever the data.
            return replace(result, findings=found.smallest.findings)
        return replace(result, smaller=found.smallest)
