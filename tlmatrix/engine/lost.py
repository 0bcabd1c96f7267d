"""Results and shrinking of lost cases, which crash or hang their process.

Every attempt to shrink one runs in a child process that may be lost as well. On the interpreter
a child is forked in milliseconds from a process with all imports; with a GPU, which a fork cannot
share, it is spawned.
"""

from __future__ import annotations

import faulthandler
import math
import multiprocessing
import os
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tlmatrix.engine.worker import load
from tlmatrix.processes import end_with
from tlmatrix.run.limits import out_of_time
from tlmatrix.run.result import CaseResult, Status, crash_finding

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from tlmatrix.check.registry import Reruns
    from tlmatrix.engine.worker import WorkerSettings
    from tlmatrix.fuzz.search import FuzzFailure
    from tlmatrix.matrix import Case
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.model.spec import Spec

_START = 120.0
"""Seconds for a child to start."""
_GRACE = 5
"""Seconds for a process to end; also how long after its limit a child without a parent ends
itself."""


@dataclass(frozen=True)
class LostCase:
    """The result of a case that was lost with its process.

    `limit` is the time limit of each smaller case, `seconds` that of shrinking.
    """

    result: CaseResult
    limit: float
    seconds: float


def crashed(running: CaseResult, code: int | None) -> CaseResult:
    """The result of a case whose process ended with `code`, negative for a signal."""
    finding = crash_finding(exit_words(code))
    return replace(running, status=Status.CRASHED, findings=(finding,))


def exit_words(code: int | None) -> str:
    """How a process ended: `signal SIGSEGV`, or its exit code."""
    return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"{code}"


def timed_out(running: CaseResult, _code: int | None = None) -> CaseResult:
    """The result of a case that exceeded its time limit."""
    return replace(running, status=Status.TIMEOUT, findings=(out_of_time(),))


class ChildProcess:
    """Runs cases in a child process, and replaces the child after it was lost.

    `start` starts a child that runs `serve_cases`, and returns it with a connection.
    """

    def __init__(self, start: Callable[[], tuple[BaseProcess, Connection]]) -> None:
        self._start = start
        self._child: tuple[BaseProcess, Connection] | None = None

    def run(self, case: Case, reruns: Reruns, blank: CaseResult, limit: float) -> CaseResult:
        """Run a case; `blank` is its result before it ran, which a lost case completes."""
        if self._child is None:
            self._child = self._start()
            self._receive(_START)
        process, connection = self._child
        connection.send((case.spec, dict(case.values), reruns, limit))
        answer = self._receive(limit)
        if isinstance(answer, CaseResult):
            return answer
        if answer == "ended":
            process.join(_GRACE)  # the connection closes before there is an exit code
        self.end()
        return timed_out(blank) if answer == "late" else crashed(blank, process.exitcode)

    def _receive(self, seconds: float) -> Any:  # noqa: ANN401 - a result, "ready", "late", "ended"
        assert self._child is not None
        _, connection = self._child
        try:
            return connection.recv() if connection.poll(seconds) else "late"
        except (EOFError, ConnectionResetError):
            return "ended"

    def end(self) -> None:
        """End the child."""
        if self._child is not None:
            process, connection = self._child
            connection.close()
            process.kill()
            process.join()
            self._child = None


def serve_cases(connection: Connection, runner: Runner, spec: Spec, path: str) -> None:
    """Run cases of `spec` in a child process until the connection closes."""
    from tlmatrix.matrix import Case

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.disable()  # the first crash has been reported
    connection.send("ready")
    while True:
        try:
            name, values, reruns, limit = connection.recv()
        except EOFError:
            return
        case = Case(name, values, "fuzz")
        signal.alarm(math.ceil(limit) + _GRACE)
        result = runner.judge(spec, case, path=path, reruns=reruns)
        signal.alarm(0)
        connection.send(replace(result, values={}, findings=(), kernels=(), coverage=None))


def fork_child(runner: Runner, spec: Spec, path: str) -> tuple[BaseProcess, Connection]:
    """Fork a child, which has this process's imports and ends with it."""
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()

    def start() -> None:
        end_with(os.getppid())
        mine.close()
        serve_cases(theirs, runner, spec, path)

    process = context.Process(target=start)
    process.start()
    theirs.close()
    return process, mine


def spawn_child(path: str, settings: WorkerSettings) -> tuple[BaseProcess, Connection]:
    """Start a child that shares no state with this process and so may use the same GPU."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_serve_spawned, args=(theirs, path, settings))
    process.start()
    theirs.close()
    return process, mine


def _serve_spawned(connection: Connection, path: str, settings: WorkerSettings) -> None:
    runner = settings.runner("child")
    serve_cases(connection, runner, load(path, runner.roots), path)


def shrink_lost(spec: Spec, lost: LostCase, children: ChildProcess) -> FuzzFailure:
    """Shrink a lost case; attempts that crash or hang in the same way count as failing."""
    from tlmatrix.fuzz.search import FuzzFailure
    from tlmatrix.fuzz.shrink import shrink
    from tlmatrix.matrix import Case
    from tlmatrix.triage.cause import cause_of

    result = lost.result
    cause = cause_of(result)
    assert cause is not None
    first = Case(result.spec, result.values, "fuzz")

    def run(case: Case, reruns: Reruns) -> CaseResult:
        blank = replace(result, case=case.id, key=case.key, values=dict(case.values))
        return children.run(case, reruns, blank, lost.limit)

    def same_cause(ended: CaseResult) -> bool:
        its = cause_of(ended) if ended.status in (Status.CRASHED, Status.TIMEOUT) else None
        return its is not None and its[:2] == cause[:2]

    try:
        # Mostly the first call crashes or hangs; otherwise one of those that further checks make.
        reruns: Reruns = frozenset()
        if not same_cause(run(first, reruns)):
            reruns = "all"
            if not same_cause(run(first, reruns)):
                return FuzzFailure(cause, _not_reproduced(result), result, ended=False)
        done = shrink(spec, first, lambda case: same_cause(run(case, reruns)), seconds=lost.seconds)
    finally:
        children.end()
    smallest = replace(result, case=done.case.id, key=done.case.key, values=dict(done.case.values))
    return FuzzFailure(cause, smallest, result, tried=done.tried, ended=done.ended)


def _not_reproduced(result: CaseResult) -> CaseResult:
    """The result of a case that was not lost when it ran again."""
    finding = result.findings[0]
    note = "the case ended well when it ran again by itself; it may depend on cases before it"
    return replace(result, findings=(replace(finding, detail=note), *result.findings[1:]))
