"""Spec files and their cases as pytest sees them.

A case is an item named by its id. What it prints when it fails are its findings, not a Python
traceback: the frames that lead to a comparison inside tlmatrix help nobody.
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
"""Seconds between asking a case to stop and ending its process."""
_ENDED = 70
"""Exit status of a process that a case left unusable."""


class CaseFailure(Exception):  # noqa: N818 - it reports a failure; nothing went wrong here
    """A case that makes the run fail; carries its result."""

    def __init__(self, result: CaseResult) -> None:
        self.result = result
        super().__init__(result.case)


class _CaseTimeout(BaseException):
    """Raised in the middle of a case whose time is up; no handler of `Exception` may eat it."""


class SpecFile(pytest.File):
    """A spec; its children are the cases of the tier that was asked for."""

    def collect(self) -> Iterator[CaseItem]:
        """Every case, every invalid input, and the drawn cases of the tier.

        Raises:
            SpecError: the spec is wrong, or has no case, or more than a run can hold.
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
        named = state.named(self.path)
        for case in _with_draws(planned, state) if named is None else _named(planned, named):
            item: CaseItem = CaseItem.from_parent(self, name=case.id, spec=spec, case=case)
            if state.sharing.file:
                item.group = planned.group(case)
            if with_keywords:
                item.extra_keyword_matches.update(case_keywords(case))
            yield item

    def repr_failure(  # type: ignore[override]
        self, excinfo: pytest.ExceptionInfo[BaseException]
    ) -> str | TerminalRepr:
        """A spec's errors as `file:line:column: message` lines; anything else as pytest does."""
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
        self.seconds_allowed: float | None = None
        self._timed_out = False
        self._stack: list[str] = []
        self._interrupted = False
        self._watchdog: threading.Timer | None = None

    @cached_property
    def shown_path(self) -> str:
        """The spec's file as one would write it in the working directory."""
        return shown_path(self.path)

    def runtest(self) -> None:
        """Run and judge the case; the result goes to the results file before pytest hears of it."""
        state = self._state()
        runner = state.runner()
        state.record_start(self.shown_path, self.name)
        with suppress(_CaseTimeout), _one_thread(), self._interruptible(), self._timer():
            self.result = self._judged(runner)
        if self._interrupted:
            # Compilers of the code under test got the signal too, and their failure is no finding.
            raise KeyboardInterrupt
        if self._timed_out:
            # The code under test may have turned our exception into its own.
            self.result = self._timeout_result(self._stack)
        assert self.result is not None
        state.record_case(self.result)
        if state.expendable and (runner.lost or self._timed_out):
            # A CUDA context after a fault, or modules whose import was cut short: whatever ran
            # next would fail for no fault of its own. Another process goes on.
            os._exit(_ENDED)
        self._tell_pytest(self.result)

    def _judged(self, runner: Runner) -> CaseResult:
        spec, case, path = self.spec, self.case, self.shown_path
        if case.origin != "fuzz":
            return runner.run(spec, case, path=path)
        # One of many: the checks that run the code again take turns.
        result = runner.run(spec, case, path=path, reruns="rotate")
        if not result.failed or runner.lost:
            return result
        return self._state().shrinking.shrunk(runner, spec, case, result, self.seconds_allowed)

    def _tell_pytest(self, result: CaseResult) -> None:
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
        """The findings of the case; a traceback only for an error inside tlmatrix."""
        if isinstance(excinfo.value, CaseFailure):
            return self._state().describe(excinfo.value.result)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The spec's file and the case; there is no line of Python to show."""
        return self.path, None, f"{self.spec.name}: {self.name}"

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Remember a Ctrl-C that comes inside, where it may be turned into another exception.

        Where it is ignored, as in a script's background jobs, it stays so.
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
        """Stop what runs inside after the time allowed, and the process where that does not help.

        A signal raises an exception in Python code. Code that never returns to Python (a hanging
        kernel) does not see it; then a thread writes the result and ends the process.
        """
        seconds = self.seconds_allowed
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
        line = f"\n{result.node}: no end in sight; the process is stopped\n"
        os.write(2, line.encode())
        os._exit(_ENDED)

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


def _with_draws(planned: Plan, state: State) -> Iterator[Case]:
    """The cases of a plan, then those that its tier draws."""
    ids = set()
    for case in planned.cases():
        ids.add(case.id)
        yield case
    if state.fuzzes:
        from tlmatrix.fuzz.tier import tier_fuzz_cases

        yield from tier_fuzz_cases(planned.spec, planned.tier, ids, seed=state.settings.seed)


def _named(planned: Plan, ids: frozenset[str]) -> Iterator[Case]:
    """The cases of these ids, whether or not the tier has or draws them; of no other, nothing."""
    from tlmatrix.matrix import CaseNotFoundError, find_case

    listed = {case.id: case for case in planned.cases() if case.id in ids}
    for case_id in sorted(ids):
        with suppress(CaseNotFoundError):  # pytest itself says of a name that there is no such item
            yield listed.get(case_id) or find_case(planned.spec, case_id)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small tensors on several threads wait for each other longer than they compute."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
