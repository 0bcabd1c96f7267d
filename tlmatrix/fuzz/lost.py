"""Cases that end their process, or do not end: results for them, and the smallest that does so.

Every attempt to shrink one runs in a child process, which may be lost with it. On the interpreter
a child is a fork of a process that has imported everything, and costs milliseconds; where a GPU is
in use, which no fork may share, it is a new process.
"""

from __future__ import annotations

import math
import multiprocessing
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tlmatrix.check.finding import Finding
from tlmatrix.run.result import CaseResult, Status
from tlmatrix.run.timeouts import out_of_time

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from tlmatrix.check.further import Relations
    from tlmatrix.fuzz.search import Found
    from tlmatrix.matrix import Case
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.models import Spec

__all__ = ["Children", "Lost", "crashed", "forked", "live", "shrunk_lost", "timed_out"]

_START = 120.0
"""Seconds that a child may take until it is ready."""
_GRACE = 5
"""Seconds that the end of a process may take; and after which a child whose time is up ends itself,
should nobody be left to end it."""


@dataclass(frozen=True)
class Lost:
    """A case that was lost with its process, as a result.

    `limit` are the seconds after which a smaller one is taken to hang, `seconds` those that
    shrinking may take.
    """

    result: CaseResult
    limit: float
    seconds: float


def crashed(running: CaseResult, code: int | None) -> CaseResult:
    """The result of a case whose process ended with `code`, negative for a signal."""
    how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"{code}"
    finding = Finding(
        check="crash",
        title=f"the process ended while this case was running ({how})",
        hint="a segmentation fault, os._exit, or the system out of memory; run the command below "
        "to see it alone",
        pattern=how,
    )
    return replace(running, status=Status.CRASHED, findings=(finding,))


def timed_out(running: CaseResult, _code: int | None = None) -> CaseResult:
    """The result of a case that did not end in its time."""
    return replace(running, status=Status.TIMEOUT, findings=(out_of_time(),))


class Children:
    """A child process that runs cases, one after the other; another one after it was lost.

    `begin` starts one, which lives by `live`, and gives it with the line to it.
    """

    def __init__(self, begin: Callable[[], tuple[BaseProcess, Connection]]) -> None:
        self._begin = begin
        self._child: tuple[BaseProcess, Connection] | None = None

    def run(self, case: Case, relations: Relations, blank: CaseResult, limit: float) -> CaseResult:
        """The result of a case; `blank` is one without an end."""
        if self._child is None:
            self._child = self._begin()
            self._hear(_START)
        process, line = self._child
        line.send((case.spec, dict(case.values), relations, limit))
        told = self._hear(limit)
        if isinstance(told, CaseResult):
            return told
        if told == "gone":
            process.join(_GRACE)  # Its line is closed first, and then there is an exit code.
        self.end()
        return timed_out(blank) if told == "late" else crashed(blank, process.exitcode)

    def _hear(self, seconds: float) -> Any:  # noqa: ANN401 - a result, "ready", "late" or "gone"
        assert self._child is not None
        _, line = self._child
        try:
            return line.recv() if line.poll(seconds) else "late"
        except (EOFError, ConnectionResetError):
            return "gone"

    def end(self) -> None:
        """No child is left afterwards."""
        if self._child is not None:
            process, line = self._child
            line.close()
            process.kill()
            process.join()
            self._child = None


def live(line: Connection, runner: Runner, spec: Spec, path: str) -> None:
    """The life of a child: cases of `spec` until nobody sends one, or one is its end."""
    from tlmatrix.matrix import Case

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    line.send("ready")
    while True:
        try:
            name, values, relations, limit = line.recv()
        except EOFError:
            return
        case = Case(name, values, "fuzz")
        signal.alarm(math.ceil(limit) + _GRACE)
        result = runner.run(spec, case, path=path, relations=relations)
        signal.alarm(0)
        line.send(replace(result, values={}, findings=(), kernels=(), coverage=None))


def forked(
    runner: Runner, spec: Spec, path: str, ours: Connection
) -> tuple[BaseProcess, Connection]:
    """A child that shares what this process has imported, and not its line `ours`."""
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()

    def start() -> None:
        mine.close()
        ours.close()
        live(theirs, runner, spec, path)

    process = context.Process(target=start)
    process.start()
    theirs.close()
    return process, mine


def shrunk_lost(spec: Spec, lost: Lost, children: Children) -> Found:
    """The smallest case found that is lost as `lost.result` is."""
    from tlmatrix.fuzz.grouping import cause_of
    from tlmatrix.fuzz.search import Found
    from tlmatrix.fuzz.shrink import shrink
    from tlmatrix.matrix import Case

    result = lost.result
    cause = cause_of(result)
    assert cause is not None
    first = Case(result.spec, result.values, "fuzz")

    def run(case: Case, relations: Relations) -> CaseResult:
        blank = replace(result, case=case.id, key=case.key, values=dict(case.values))
        return children.run(case, relations, blank, lost.limit)

    def alike(ended: CaseResult) -> bool:
        its = cause_of(ended) if ended.status in (Status.CRASHED, Status.TIMEOUT) else None
        return its is not None and its[:2] == cause[:2]

    try:
        # Mostly the first run is the end of it; else one of those that further checks make.
        relations: Relations = frozenset()
        if not alike(run(first, relations)):
            relations = "all"
            if not alike(run(first, relations)):
                return Found(cause, _once(result), result, ended=False)
        done = shrink(spec, first, lambda case: alike(run(case, relations)), seconds=lost.seconds)
    finally:
        children.end()
    smallest = replace(result, case=done.case.id, key=done.case.key, values=dict(done.case.values))
    return Found(cause, smallest, result, tried=done.tried, ended=done.ended)


def _once(result: CaseResult) -> CaseResult:
    """A result that did not come again."""
    finding = result.findings[0]
    note = "run again by itself, the case ended well: what ran before it may matter"
    return replace(result, findings=(replace(finding, detail=note), *result.findings[1:]))
