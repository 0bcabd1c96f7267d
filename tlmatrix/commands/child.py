"""Runs few cases in a fork of the calling process, which starts fast and may crash.

A fork takes milliseconds, because everything but PyTorch is imported before it. The calling process
reports. If a case ends the child, that is a finding, and workers run the remaining cases.
"""

from __future__ import annotations

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
from tlmatrix.parents import end_with
from tlmatrix.plugin.crashes import lost_case
from tlmatrix.results_file import resume_command, shown_path
from tlmatrix.run.events import CaseFinished, RunFinished, RunStarted, Summary
from tlmatrix.run.records import RecordsWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess
    from types import FrameType

    from tlmatrix.commands.engine import Listener
    from tlmatrix.run.events import Event
    from tlmatrix.run.result import CaseResult

_POLL = 1.0
"""Seconds between checks that the child is alive, as its pipe may stay open without it."""
_JOIN = 10.0
"""Seconds that a child may take to end after its last message."""


def can_fork() -> bool:
    """Whether this process can be forked: it has one thread and has not used a GPU.

    Threads of libraries count too, so where they cannot be counted, PyTorch must not be imported.
    """
    tasks = Path("/proc/self/task")
    if not hasattr(os, "fork"):
        return False
    if not tasks.exists():
        return threading.active_count() == 1 and "torch" not in sys.modules
    torch = sys.modules.get("torch")
    return len(list(tasks.iterdir())) == 1 and not (torch and torch.cuda.is_initialized())


def run_in_child(
    arguments: Callable[[str], Sequence[str]],
    results: Path,
    report: Listener,
    *,
    announce: Callable[[], None],
    stop: bool,
) -> Ending:
    """Run pytest in a child; if a case ends it, run the remaining cases in workers.

    Args:
        arguments: returns the arguments of pytest for a number of workers (`0`, `auto`).
        results: the results file of the run.
        report: receives the events of the whole run.
        announce: called after the fork; it may start threads.
        stop: whether the run stops at its first failure (`-x`).
    """
    run = _Run(report)
    ending = run.in_child(arguments("0"), announce)
    if ending is not None:
        return ending
    run.record_lost_case(results)
    if run.interrupted or run.complete or (stop and run.failed):
        ending = Ending(
            status=pytest.ExitCode.TESTS_FAILED if run.failed else pytest.ExitCode.OK,
            missing=run.missing,
            interrupted=run.interrupted,
            resume=resume_command(results),
        )
    else:
        ending = run.in_workers(arguments("auto"))
    return run.end(results, ending)


class _Run:
    """A run whose first part is in a child: the expected cases and their results."""

    def __init__(self, report: Listener) -> None:
        self._report = report
        self._begin = time.monotonic()
        self._started: RunStarted | None = None
        self._finished: RunFinished | None = None
        self._results: dict[tuple[str, str], CaseResult] = {}
        self._running: tuple[str, str] | None = None
        self._child_lost = False
        self.interrupted = False

    @property
    def missing(self) -> int:
        """The number of known cases without a result."""
        cases = sum(self._started.cases.values()) if self._started is not None else 0
        return cases - len(self._results)

    @property
    def complete(self) -> bool:
        """Whether every case has a result."""
        return self._started is not None and not self.missing

    @property
    def failed(self) -> bool:
        """Whether a case failed."""
        return any(result.failed for result in self._results.values())

    def handle(self, event: Event) -> None:
        """Keep the state of the run, and pass events to the report."""
        match event:
            case RunStarted() if self._started is None:
                self._started, self._begin = event, time.monotonic()
            case CaseFinished(result):
                self._results[str(Path(result.path).resolve()), result.case] = result
                self._running = None
            case RunFinished() if self._child_lost:
                self._finished = event  # Only of the part in workers.
                return
        self._report.handle(event)

    def note(self, text: str) -> None:
        """Pass a note to the report."""
        self._report.note(text)

    def in_child(self, arguments: Sequence[str], announce: Callable[[], None]) -> Ending | None:
        """Run pytest in a child; None if it ended without its outcome."""
        context = multiprocessing.get_context("fork")
        line, theirs = context.Pipe()
        process = context.Process(target=_session, args=(theirs, line, list(arguments)))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        process.start()
        theirs.close()
        announce()
        try:
            with self._interrupting(process):
                ending = self._listen(line, process)
                process.join(_JOIN)
        finally:
            line.close()
            process.kill()
            process.join()
        return ending

    def record_lost_case(self, results: Path) -> None:
        """Record and report the case that the child ran when it ended."""
        self._child_lost = True
        if self._running is None or self.interrupted:
            return
        header = self._started.header if self._started is not None else None
        if header is None:
            return
        path, case = self._running
        records = RecordsWriter(results)
        lost = lost_case(
            records, shown_path(Path(path)), case, requested=header.backend, seed=header.seed
        )
        records.close()
        self.handle(CaseFinished(lost))

    def in_workers(self, arguments: Sequence[str]) -> Ending:
        """Run the cases without a result; the returned status is that of the whole run."""
        self.note("a case ended its process; workers run the remaining cases")
        header = self._started.header if self._started is not None else None
        sources = header.sources if header is not None else None
        engine = Engine(self, finished=frozenset(self._results), sources=sources)
        ending = engine.ending(int(pytest.main(list(arguments), plugins=[engine])))
        nothing_wrong = ending.status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if nothing_wrong and self._results:
            status = pytest.ExitCode.TESTS_FAILED if self.failed else pytest.ExitCode.OK
            return replace(ending, status=status)
        return ending

    def end(self, results: Path, ending: Ending) -> Ending:
        """Record and report the end of a run that workers completed."""
        if self._started is None:
            return ending
        seconds = time.monotonic() - self._begin
        counts = Counter(result.status for result in self._results.values())
        writer = RecordsWriter(results)
        if self._started.header is not None:
            writer.complete(self._started.header, self._results.values())
        if not ending.interrupted:
            plain = {str(status): number for status, number in counts.items()}
            writer.summary(Summary(plain, round(seconds, 3), ending.status))
        writer.close()
        of_part = self._finished or RunFinished({}, 0.0, interrupted=False)
        self._report.handle(
            replace(
                of_part,
                counts=counts,
                seconds=seconds,
                interrupted=ending.interrupted,
                stopped=self._stopped(ending),
                unrecorded=writer.error,
            )
        )
        return replace(ending, unrecorded=writer.error)

    def _stopped(self, ending: Ending) -> str:
        """Why cases did not run; empty if all did."""
        if not self.missing:
            return ""
        if ending.interrupted:
            return "Ctrl-C"
        stopped = self._finished.stopped if self._finished is not None else ""
        return stopped or "stopped at the first failure"

    def _listen(self, line: Connection, process: ForkProcess) -> Ending | None:
        while True:
            ready = wait([line, process.sentinel], timeout=_POLL)
            if line in ready:
                try:
                    kind, data = line.recv()
                except (EOFError, ConnectionResetError):
                    return None
                match kind:
                    case "event":
                        self.handle(data)
                    case "note":
                        self.note(data)
                    case "start":
                        self._running = data
                    case "end":
                        assert isinstance(data, Ending)
                        return data
            elif not process.is_alive():
                return None

    @contextmanager
    def _interrupting(self, process: ForkProcess) -> Iterator[None]:
        """Pass Ctrl-C to the child; a second one kills it.

        An ignored SIGINT, as in background jobs of a script, stays ignored.
        """
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            yield
            return

        def forward(_signal: int, _frame: FrameType | None) -> None:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL if self.interrupted else signal.SIGINT)
            self.interrupted = True

        before = signal.signal(signal.SIGINT, forward)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


class _Sender:
    """The report of a child, which sends events to its parent."""

    def __init__(self, line: Connection) -> None:
        self._line = line

    def handle(self, event: Event) -> None:
        """Send an event."""
        self._line.send(("event", event))

    def note(self, text: str) -> None:
        """Send a note."""
        self._line.send(("note", text))

    def start(self, path: str, case: str) -> None:
        """Send that a case begins."""
        self._line.send(("start", (path, case)))


def _session(line: Connection, parents: Connection, arguments: list[str]) -> None:
    """Run one session of pytest in the child."""
    parents.close()
    os.setpgid(0, 0)  # The terminal sends Ctrl-C to the parent alone, which forwards it.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    end_with(os.getppid())
    sender = _Sender(line)
    engine = Engine(sender, on_start=sender.start)
    status = pytest.main(arguments, plugins=[engine])
    line.send(("end", engine.ending(int(status))))
