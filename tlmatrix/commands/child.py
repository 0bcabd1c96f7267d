"""A run in a copy of the calling process, for few cases: it begins at once, and may crash.

A fork costs milliseconds, since everything up to PyTorch is imported by then, and leaves the
calling process to report: a case that ends its process is a finding, and workers run the rest.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tlmatrix.commands.engine import Ending, Engine
from tlmatrix.plugin.crashes import lost_case
from tlmatrix.results_file import resume_command, shown_path
from tlmatrix.run.events import CaseFinished, RunFinished, RunStarted, Summary
from tlmatrix.run.records import RecordsWriter, read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess
    from types import FrameType

    from tlmatrix.commands.engine import Listener
    from tlmatrix.run.events import Event
    from tlmatrix.run.result import CaseResult

__all__ = ["can_fork", "run_in_child"]

_LOOK = 1.0
"""Seconds between two looks whether the child is still there, should its pipe stay open."""
_LAST = 10.0
"""Seconds that a child may take to end after its last word."""
_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux."""


def can_fork() -> bool:
    """Whether a copy of this process is sound: it has one thread, and no PyTorch yet."""
    return hasattr(os, "fork") and threading.active_count() == 1 and "torch" not in sys.modules


def run_in_child(
    words: Callable[[str], Sequence[str]],
    results: Path,
    report: Listener,
    *,
    announce: Callable[[], None],
    stop: bool,
) -> Ending:
    """Run pytest in a child, and in workers what is left if a case ends that.

    Args:
        words: the arguments of pytest for so many workers (`0`, `auto`).
        results: the results file of the run.
        report: gets the events of the whole run.
        announce: called when the child has begun; it may start threads.
        stop: whether the run stops at its first failure (`-x`).
    """
    run = _Run(report)
    ending = run.in_child(words("0"), announce)
    if ending is not None:
        return ending
    run.take_lost(results)
    if run.interrupted or run.complete or (stop and run.failed):
        ending = Ending(
            status=pytest.ExitCode.TESTS_FAILED if run.failed else pytest.ExitCode.OK,
            missing=run.missing,
            interrupted=run.interrupted,
            resume=resume_command(results),
        )
    else:
        ending = run.in_workers(words("auto"))
    run.end(results, ending)
    return ending


class _Run:
    """The whole run, of which a child runs the first part: what is to come, and what came out."""

    def __init__(self, report: Listener) -> None:
        self._report = report
        self._begin = time.monotonic()
        self._started: RunStarted | None = None
        self._finished: RunFinished | None = None
        self._results: dict[tuple[str, str], CaseResult] = {}
        self._running: tuple[str, str] | None = None
        self._in_parts = False
        self.interrupted = False

    @property
    def missing(self) -> int:
        """Cases without a result, as far as is known."""
        cases = sum(self._started.cases.values()) if self._started is not None else 0
        return cases - len(self._results)

    @property
    def complete(self) -> bool:
        """Whether every case has its result."""
        return self._started is not None and not self.missing

    @property
    def failed(self) -> bool:
        """Whether a case failed."""
        return any(result.failed for result in self._results.values())

    def handle(self, event: Event) -> None:
        """Keep account, and pass on what a report needs."""
        match event:
            case RunStarted() if self._started is None:
                self._started, self._begin = event, time.monotonic()
            case CaseFinished(result):
                self._results[str(Path(result.path).resolve()), result.case] = result
                self._running = None
            case RunFinished() if self._in_parts:
                self._finished = event  # Of its part alone.
                return
        self._report.handle(event)

    def note(self, words: str) -> None:
        """Pass on something to know in between."""
        self._report.note(words)

    def in_child(self, words: Sequence[str], announce: Callable[[], None]) -> Ending | None:
        """Run pytest in a child; None if that ended without a word."""
        context = multiprocessing.get_context("fork")
        line, theirs = context.Pipe()
        process = context.Process(target=_session, args=(theirs, line, list(words)))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        process.start()
        theirs.close()
        announce()
        try:
            with self._interrupting(process):
                ending = self._listen(line, process)
                process.join(_LAST)
        finally:
            line.close()
            process.kill()
            process.join()
        return ending

    def take_lost(self, results: Path) -> None:
        """The child is gone: say so of the case that it was running."""
        self._in_parts = True
        if self._running is None or self.interrupted:
            return
        path, case = self._running
        header = read_records(results).header
        lost = lost_case(
            results, shown_path(Path(path)), case, requested=header.backend, seed=header.seed
        )
        self.handle(CaseFinished(lost))

    def in_workers(self, words: Sequence[str]) -> Ending:
        """Run what has no result yet; the status is that of the whole run."""
        self.note("a case ended its process; workers run what is left")
        engine = Engine(self, judged=frozenset(self._results))
        ending = engine.ending(int(pytest.main(list(words), plugins=[engine])))
        nothing_wrong = ending.status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if nothing_wrong and self._results:
            status = pytest.ExitCode.TESTS_FAILED if self.failed else pytest.ExitCode.OK
            return replace(ending, status=status)
        return ending

    def end(self, results: Path, ending: Ending) -> None:
        """Tell of the end of a run in parts, and put it on record."""
        if self._started is None:
            return
        seconds = time.monotonic() - self._begin
        counts = Counter(result.status for result in self._results.values())
        if not ending.interrupted:
            writer = RecordsWriter(results)
            plain = {str(status): number for status, number in counts.items()}
            writer.summary(Summary(plain, round(seconds, 3), ending.status))
            writer.close()
        of_part = self._finished or RunFinished({}, 0.0, interrupted=False)
        self._report.handle(
            replace(of_part, counts=counts, seconds=seconds, interrupted=ending.interrupted)
        )

    def _listen(self, line: Connection, process: ForkProcess) -> Ending | None:
        while True:
            ready = wait([line, process.sentinel], timeout=_LOOK)
            if line in ready:
                try:
                    what, about = line.recv()
                except (EOFError, ConnectionResetError):
                    return None
                match what:
                    case "event":
                        self.handle(about)
                    case "note":
                        self.note(about)
                    case "start":
                        self._running = about
                    case "end":
                        assert isinstance(about, Ending)
                        return about
            elif not process.is_alive():
                return None

    @contextmanager
    def _interrupting(self, process: ForkProcess) -> Iterator[None]:
        """Inside, Ctrl-C goes to the child, and ends it when it comes again.

        Where it is ignored, as in a script's background jobs, it stays so.
        """
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            yield
            return

        def pass_on(_signal: int, _frame: FrameType | None) -> None:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL if self.interrupted else signal.SIGINT)
            self.interrupted = True

        before = signal.signal(signal.SIGINT, pass_on)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


class _Sender:
    """The report of a child: it sends its parent what happens."""

    def __init__(self, line: Connection) -> None:
        self._line = line

    def handle(self, event: Event) -> None:
        """Something happened."""
        self._line.send(("event", event))

    def note(self, words: str) -> None:
        """Something to know in between."""
        self._line.send(("note", words))

    def start(self, path: str, case: str) -> None:
        """A case is about to run."""
        self._line.send(("start", (path, case)))


def _session(line: Connection, parents: Connection, words: list[str]) -> None:
    """The life of a child: one session of pytest."""
    parents.close()
    os.setpgid(0, 0)  # Ctrl-C is for the parent, which passes it on.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    sender = _Sender(line)
    engine = Engine(sender, on_start=sender.start)
    status = pytest.main(words, plugins=[engine])
    line.send(("end", engine.ending(int(status))))
