"""Spec files and their cases as pytest's collectors and items.

An item is named by the id of its case. A failed one prints its findings, not a traceback into
tlmatrix.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tlmatrix.plugin.keywords import case_keywords
from tlmatrix.plugin.state import state_of
from tlmatrix.results_file import shown_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from _pytest._code.code import TerminalRepr

    from tlmatrix.matrix import Case
    from tlmatrix.plugin.state import State
    from tlmatrix.run.plan import Plan
    from tlmatrix.run.result import CaseResult
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.model.spec import Spec

__all__ = ["CaseFailure", "CaseItem", "SpecFile"]

_GRACE = 10.0
"""Seconds between the timeout signal and the end of the process."""
_EXIT_STATUS = 70
"""Exit status of a process that a case made unusable."""


class CaseFailure(Exception):  # noqa: N818 - a failed test, not an error
    """Raised by an item whose case failed; has its result."""

    def __init__(self, result: CaseResult) -> None:
        self.result = result
        super().__init__(result.case)


class _CaseTimeout(BaseException):
    """Raised in a case at its time limit; a `BaseException`, so `except Exception` misses it."""


class SpecFile(pytest.File):
    """A spec, whose children are the cases of the selected tier."""

    def collect(self) -> Iterator[CaseItem]:
        """Yield the cases of the tier, the invalid inputs, and the fuzz cases.

        Raises:
            SpecError: the spec is invalid, or has no case, or too many cases.
        """
        from tlmatrix.run.plan import plan
        from tlmatrix.spec.importing import make_importable
        from tlmatrix.spec.loader import load_spec

        state = state_of(self.config)
        state.prepare_process()
        make_importable(self.path, (self.config.rootpath,))
        spec = load_spec(self.path)
        planned = plan(spec, state.settings.tier, seed=state.settings.seed or None)
        planned.refuse_too_many()
        with_keywords = bool(self.config.option.keyword)
        ids = state.selected_ids(self.path)
        for case in _all_cases(planned, state) if ids is None else _cases_by_id(planned, ids):
            item: CaseItem = CaseItem.from_parent(self, name=case.id, spec=spec, case=case)
            if state.groups_file.path:
                item.group = planned.group(case)
            if with_keywords:
                item.extra_keyword_matches.update(case_keywords(case))
            yield item

    def repr_failure(  # type: ignore[override]
        self, excinfo: pytest.ExceptionInfo[BaseException]
    ) -> str | TerminalRepr:
        """The errors of a spec as lines `file:line:column: message`."""
        from tlmatrix.spec.issues import SpecError

        if isinstance(excinfo.value, SpecError):
            return "\n".join(
                str(replace(issue, path=Path(shown_path(issue.path))))
                for issue in excinfo.value.issues
            )
        return super().repr_failure(excinfo)


class CaseItem(pytest.Item):
    """One case of a spec."""

    def __init__(self, *, spec: Spec, case: Case, **kwargs: Any) -> None:  # noqa: ANN401 - pytest's own
        super().__init__(**kwargs)
        self.spec = spec
        self.case = case
        self.group: str | None = None
        self.result: CaseResult | None = None
        self.time_limit: float | None = None
        self._timed_out = False
        self._stack: list[str] = []
        self._interrupted = False
        self._watchdog: threading.Timer | None = None

    @cached_property
    def shown_path(self) -> str:
        """The path of the spec relative to the working directory."""
        return shown_path(self.path)

    def runtest(self) -> None:
        """Run and check the case; its result is recorded before it is reported to pytest."""
        state = self._state()
        runner = state.runner()
        state.record_start(self.shown_path, self.name)
        with suppress(_CaseTimeout), _one_thread(), self._interruptible(), self._timer():
            self.result = self._run_case(runner)
        if self._interrupted:
            # The signal also reaches compilers that the case runs; their failure is no finding.
            raise KeyboardInterrupt
        if self._timed_out:
            # The code under test may have replaced `_CaseTimeout` by another exception.
            self.result = self._timeout_result(self._stack)
        assert self.result is not None
        state.record_case(self.result)
        if state.expendable and (runner.lost or self._timed_out):
            # The CUDA context is lost, or an import was cut short: further cases would fail
            # here. Another process continues the run.
            os._exit(_EXIT_STATUS)
        self._raise_outcome(self.result)

    def _run_case(self, runner: Runner) -> CaseResult:
        spec, case, path = self.spec, self.case, self.shown_path
        if case.origin != "fuzz":
            return runner.run(spec, case, path=path)
        # Each fuzz case gets one of the checks that run the code again, in rotation.
        result = runner.run(spec, case, path=path, relations="rotate")
        if not result.failed or runner.lost:
            return result
        return self._state().shrinker.add_smaller(runner, spec, case, result, self.time_limit)

    def _raise_outcome(self, result: CaseResult) -> None:
        from tlmatrix.run.result import Status

        if result.failed:
            raise CaseFailure(result)
        if result.status is Status.KNOWN_BUG:
            pytest.xfail(result.message)
        if result.status in (Status.SKIPPED, Status.QUARANTINED):
            reason = f"{result.reason}: " if result.reason else ""
            pytest.skip(f"{reason}{result.message}")

    def repr_failure(  # type: ignore[override]
        self, excinfo: pytest.ExceptionInfo[BaseException]
    ) -> str | TerminalRepr:
        """The findings of the case; a traceback for an error inside tlmatrix."""
        if isinstance(excinfo.value, CaseFailure):
            return self._state().describe(excinfo.value.result)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The spec's file and the case, without a line number."""
        return self.path, None, f"{self.spec.name}: {self.name}"

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Record Ctrl-C, because the code under test may replace the exception.

        An ignored SIGINT, as in background jobs of a script, stays ignored.
        """
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            yield
            return
        handler = signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, handler)

    def _on_interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        self._interrupted = True
        raise KeyboardInterrupt

    @contextmanager
    def _timer(self) -> Iterator[None]:
        """Stop the code inside at the time limit of the case.

        SIGALRM raises an exception in Python code. If the code does not return to Python, as in a
        hanging kernel, a thread writes the result and ends the process.
        """
        seconds = self.time_limit
        if seconds is None:
            yield
            return
        watchdog = threading.Timer(seconds + min(_GRACE, seconds), self._end_process)
        watchdog.daemon = True
        watchdog.start()
        is_main = threading.current_thread() is threading.main_thread()
        if is_main:
            handler = signal.signal(signal.SIGALRM, self._on_alarm)
            left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            watchdog.cancel()
            if is_main:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, handler)
                signal.setitimer(signal.ITIMER_REAL, left)

    def _on_alarm(self, _signal: int, frame: FrameType | None) -> None:
        self._timed_out = True
        self._stack = traceback.format_stack(frame)
        raise _CaseTimeout

    def _end_process(self) -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001
        result = self._timeout_result(traceback.format_stack(frame) if frame else [])
        self._state().record_case(result)
        line = f"\n{result.node}: still running after its time limit; ending the process\n"
        os.write(2, line.encode())
        os._exit(_EXIT_STATUS)

    def _timeout_result(self, frames: list[str]) -> CaseResult:
        from tlmatrix.run.result import CaseResult, Status
        from tlmatrix.run.timeouts import out_of_time

        state = self._state()
        backend = state.runner().backend
        return CaseResult(
            spec=self.spec.name,
            path=self.shown_path,
            case=self.name,
            key=self.case.key,
            values=self.case.values,
            origin=self.case.origin,
            status=Status.TIMEOUT,
            findings=(out_of_time(frames),),
            backend=backend.name,
            arch=backend.arch,
            asked=state.settings.backend,
            seed=state.settings.seed,
        )

    def _state(self) -> State:
        return state_of(self.config)


def _all_cases(planned: Plan, state: State) -> Iterator[Case]:
    """The cases of a plan, then the fuzz cases of its tier."""
    ids = set()
    for case in planned.cases():
        ids.add(case.id)
        yield case
    if state.runs_fuzz_cases:
        from tlmatrix.fuzz.tier import tier_fuzz_cases

        yield from tier_fuzz_cases(planned.spec, planned.tier, ids, seed=state.settings.seed)


def _cases_by_id(planned: Plan, ids: frozenset[str]) -> Iterator[Case]:
    """The cases with these ids, also if they are not in the tier."""
    from tlmatrix.matrix import CaseNotFoundError, find_case

    listed = {case.id: case for case in planned.cases() if case.id in ids}
    for case_id in sorted(ids):
        with suppress(CaseNotFoundError):  # pytest reports names that match no item
            yield listed.get(case_id) or find_case(planned.spec, case_id)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread, which is faster for small tensors."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
