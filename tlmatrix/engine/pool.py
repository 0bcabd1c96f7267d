"""A pool of processes that runs jobs, and survives crashes and hangs of the code under test.

The process that calls `Pool.run` imports no kernel. It sends each worker one job after another, and
tracks the case that every worker runs: one that crashes or hangs its process becomes a result. It
alone writes the results file.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Protocol

from tlmatrix.engine.lost import crashed, exit_words, timed_out
from tlmatrix.engine.server import start_context
from tlmatrix.engine.worker import Worker, run_job, worker_main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from types import FrameType

    from tlmatrix.backend.gpus import GpuAssignment
    from tlmatrix.engine.worker import Job, WorkerSettings
    from tlmatrix.run.records import RecordsWriter
    from tlmatrix.run.result import CaseResult
    from tlmatrix.spec.issues import SpecError

_RECYCLE_AFTER = 20_000
"""Cases after which a fresh process replaces a worker."""
_END_SECONDS = 5.0
"""Seconds that a worker may take to end."""
_TICK = 0.5
_AGAIN = 10.0
"""Seconds after the first Ctrl-C from which another one interrupts at once."""


class WorkerProcess(Protocol):
    """A worker's process: one of this machine, or one of another."""

    @property
    def exitcode(self) -> int | None:
        """The exit code; None while it runs, and of a process that was lost with its machine."""

    def kill(self) -> None:
        """End the process."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until the process has ended."""


class Executor(Protocol):
    """Places workers."""

    def start(
        self, settings: WorkerSettings, name: str, gpu: str, job: Job
    ) -> tuple[WorkerProcess, Connection]:
        """Start a worker for a job, on a GPU, "" for any; its process, and the connection to it."""


class LocalProcesses:
    """Starts workers as processes of this machine, which a server with their imports forks."""

    def start(
        self, settings: WorkerSettings, name: str, gpu: str, _job: Job
    ) -> tuple[WorkerProcess, Connection]:
        """Start a worker with the environment of this process."""
        context = start_context()
        ours, theirs = context.Pipe()
        settings = replace(settings, environment=dict(os.environ))
        process = context.Process(target=worker_main, args=(theirs, settings, name, gpu))
        process.start()
        theirs.close()
        return process, ours


class CtrlC:
    """Ctrl-C while a pool runs and its command reports: raised once, between two messages.

    Further ones change nothing, also after the block, as results and the command to continue
    would be lost, unless the end takes longer than `_AGAIN` seconds. An ignored SIGINT, as in
    background jobs of a script, stays ignored.
    """

    def __init__(self) -> None:
        self._first: float | None = None
        self.woken, self._waking = os.pipe()
        """A file that can be read from the first Ctrl-C on."""

    @contextmanager
    def deferred(self) -> Iterator[CtrlC]:
        """Handle SIGINT inside, if this is the main thread and SIGINT is not ignored."""
        on_main_thread = threading.current_thread() is threading.main_thread()
        ignored = signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None)
        before = None
        if on_main_thread and not ignored:
            before = signal.signal(signal.SIGINT, self._handle)
        try:
            yield self
        finally:
            # After a Ctrl-C the command still says how to continue, and the process ends.
            if before is not None and self._first is None:
                signal.signal(signal.SIGINT, before)
            os.close(self.woken)
            os.close(self._waking)

    def note(self) -> None:
        """Note the first Ctrl-C, also one that a case received."""
        if self._first is None:
            self._first = time.monotonic()
            os.write(self._waking, b"\n")

    def check(self) -> None:
        """Raise KeyboardInterrupt if there was a Ctrl-C."""
        if self._first is not None:
            raise KeyboardInterrupt

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        if self._first is not None and time.monotonic() - self._first > _AGAIN:
            raise KeyboardInterrupt
        self.note()


@contextmanager
def muted() -> Iterator[None]:
    """Discard what the code inside prints, until it calls a debugger."""
    descriptors = {number: os.dup(number) for number in (1, 2)}
    streams = ExitStack()

    def unmute() -> None:
        streams.close()
        for number, original in descriptors.items():
            os.dup2(original, number)

    def debug(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - those of a breakpoint
        unmute()
        return sys.__breakpointhook__(*arguments, **options)  # noqa: T100 - that of the user

    before, sys.breakpointhook = sys.breakpointhook, debug
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123 - not a path
            streams.enter_context(redirect_stdout(nowhere))
            streams.enter_context(redirect_stderr(nowhere))
            for number in descriptors:
                os.dup2(nowhere.fileno(), number)
            try:
                yield
            finally:
                unmute()
    finally:
        sys.breakpointhook = before
        for original in descriptors.values():
            os.close(original)


@dataclass(frozen=True)
class Loss:
    """A worker that ended while it had a job.

    Attributes:
        done: the number of cases of the job that have results.
        running: the case that has none because of the loss; None if it ended between two cases,
            or if the case has a result because it ended its process.
        words: how the process ended, or why it was lost with its machine.
        machine: whether it was lost with its machine.
        refused: whether it never began, because no machine can run it.
    """

    done: int
    running: CaseResult | None
    words: str
    machine: bool = False
    refused: bool = False


class Work(Protocol):
    """The jobs of a pool, and what their events mean."""

    def next_job(self) -> Job | None:
        """The next job; None if there is none, or none before another one ends."""

    @property
    def over(self) -> bool:
        """Whether running jobs are to be ended."""

    def ended(self, job: Any, result: CaseResult) -> bool:  # noqa: ANN401 - a job of this work
        """A case ended; whether its result is recorded."""

    def message(self, job: Any, kind: str, content: Any) -> Any:  # noqa: ANN401
        """Another message of a job; returns the answer to `ask`."""

    def done(self, job: Any, report: Any) -> None:  # noqa: ANN401
        """A job ended."""

    def broken(self, job: Any, done: int, report: Any) -> None:  # noqa: ANN401
        """The process of a job can run no case after its first `done`."""

    def failed(self, job: Any, done: int, error: SpecError | str) -> None:  # noqa: ANN401
        """A job ended by an error of a spec, or of tlmatrix with this traceback."""

    def lost(self, job: Any, loss: Loss, result: CaseResult | None) -> None:  # noqa: ANN401
        """A job ended with its process; `result` is that of the case which ended it."""

    def tick(self) -> None:
        """Called about twice a second."""


@dataclass
class _Member:
    """A worker of the pool, and what it does now."""

    name: str
    process: WorkerProcess | None = None
    connection: Connection | None = None
    job: Job | None = None
    running: CaseResult | None = None
    """The case that it runs, as a result to be completed."""
    since: float = 0.0
    done: int = 0
    """Cases of its current job."""
    total: int = 0


@dataclass
class Pool:
    """Runs jobs in `size` processes, or with 0 in this one.

    Attributes:
        work: its jobs.
        settings: those of the workers.
        records: the results file.
        size: the number of workers.
        gpus: assigns each worker a GPU.
        ctrl_c: handles Ctrl-C.
        executor: places the workers.
    """

    work: Work
    settings: WorkerSettings
    records: RecordsWriter
    size: int
    gpus: GpuAssignment
    ctrl_c: CtrlC
    executor: Executor = field(default_factory=LocalProcesses)
    _members: list[_Member] = field(default_factory=list)
    _leaving: list[_Member] = field(default_factory=list)
    """Workers that have no further job, and may still be ending."""
    _names: Iterator[int] = field(default_factory=itertools.count)

    def run(self) -> None:
        """Run all jobs.

        Raises:
            KeyboardInterrupt: Ctrl-C; the workers have ended.
        """
        if not self.size:
            self._run_here()
            return
        try:
            for _ in range(self.size):
                self._start_worker()
            # The last jobs may wait until all others have ended.
            while not self.work.over and (self._members or self._start_worker()):
                self._receive()
                self.ctrl_c.check()
                self.work.tick()
        finally:
            for member in self._members:
                assert member.process is not None
                member.process.kill()
            for member in self._members:
                assert member.process is not None
                member.process.join()
            for member in self._leaving:
                self._join(member)

    def _run_here(self) -> None:
        """Run all jobs in this process."""
        member = _Member("main")

        def send(kind: str, content: Any) -> Any:  # noqa: ANN401 - any message
            return self._handle(member, kind, content)

        def over() -> bool:
            self.ctrl_c.check()
            return self.work.over

        worker = Worker(self.settings, member.name, send, expendable=False, over=over)
        try:
            with muted():
                while not over() and (job := self.work.next_job()) is not None:
                    member.job, member.done = job, 0
                    send(*run_job(job, worker))
        finally:
            worker.close()

    def _start_worker(self, job: Job | None = None) -> bool:
        """Start a worker with a job, by default the next one; False if there is none."""
        job = job or self.work.next_job()
        if job is None:
            return False
        name = f"worker {next(self._names)}"
        process, connection = self.executor.start(self.settings, name, self.gpus.assign(name), job)
        member = _Member(name, process, connection)
        self._members.append(member)
        self._send(member, job)
        return True

    def _send(self, member: _Member, job: Job | None) -> None:
        """Send a worker a job, or None to end it; that it is lost shows when it is read."""
        member.job, member.done, member.running = job, 0, None
        assert member.connection is not None
        with suppress(OSError):
            member.connection.send(job)

    def _receive(self) -> None:
        """Handle messages for up to `_TICK` seconds, and workers that crashed or hang."""
        members: dict[object, _Member] = {each.connection: each for each in self._members}
        lines = [each.connection for each in self._members if each.connection is not None]
        for ready in wait([*lines, self.ctrl_c.woken], _TICK):
            if ready == self.ctrl_c.woken:
                return
            member = members[ready]
            assert member.connection is not None
            try:
                message = member.connection.recv()
            except (EOFError, ConnectionResetError):
                self._on_loss(member, late=False)
                continue
            answer = self._handle(member, *message)
            if message[0] == "ask":
                with suppress(OSError):
                    member.connection.send(answer)
            if self.work.over:
                return
        now = time.monotonic()
        for member in list(self._members):
            limit = member.job.limit if member.job is not None else 0.0
            if member.running is not None and limit and now - member.since > limit:
                self._on_loss(member, late=True)

    def _handle(self, member: _Member, kind: str, content: Any) -> Any:  # noqa: ANN401 - any message
        job = member.job
        match kind:
            case "start":
                member.running, recorded = content
                member.since = time.monotonic()
                if recorded:
                    self.records.start(member.running.path, member.running.case, member.name)
            case "result":
                result, lines = content
                member.running = None
                member.done += 1
                member.total += 1
                if self.work.ended(job, result):
                    self._write(lines)
            case "record":
                self._write(content)
            case "done":
                self.work.done(job, content)
                self._next_job(member)
            case "broken":
                if member.process is not None:
                    self._remove(member)
                self.work.broken(job, member.done, content)
                self._replace(member)
            case "failed":
                self.work.failed(job, member.done, content)
                self._next_job(member)
            case _:
                return self.work.message(job, kind, content)
        return None

    def _write(self, lines: list[bytes]) -> None:
        for line in lines:
            self.records.copy(line)

    def _next_job(self, member: _Member) -> None:
        """Send a worker its next job, or end it."""
        if member.process is None or self.work.over:
            return
        last, job = member.job, self.work.next_job()
        assert last is not None
        if job is not None and member.total < _RECYCLE_AFTER and job.gpus == last.gpus:
            self._send(member, job)
            return
        self._send(member, None)
        if job is None:
            # Others wait for answers: a process that uses a GPU takes half a second to end.
            self._members.remove(member)
            self._leaving.append(member)
            self.gpus.release(member.name)
            return
        self._remove(member)
        self._start_worker(job)

    def _remove(self, member: _Member) -> None:
        """Wait for a worker's process to end and release its GPU."""
        self._join(member)
        self._members.remove(member)
        self.gpus.release(member.name)

    @staticmethod
    def _join(member: _Member) -> None:
        """Wait for a worker's process to end, or end it."""
        assert member.process is not None
        assert member.connection is not None
        member.process.join(_END_SECONDS)
        if member.process.exitcode is None:
            member.process.kill()
            member.process.join()
        member.connection.close()

    def _replace(self, member: _Member) -> None:
        """Start a worker in place of one that ended."""
        if member.process is not None and not self.work.over:
            self._start_worker()

    def _on_loss(self, member: _Member, *, late: bool) -> None:
        """Replace a worker that crashed, hangs, or was lost with its machine."""
        process, job, running = member.process, member.job, member.running
        assert process is not None
        if not late:
            process.join(_END_SECONDS)  # the connection closes before there is an exit code
        process.kill()
        self._remove(member)
        if job is None:
            return
        code = process.exitcode
        if code is None:
            refused, words = getattr(process, "refused", False), getattr(process, "error", "")
            self.work.lost(job, Loss(member.done, running, words, True, refused), None)
        else:
            result = None
            if running is not None:
                result = timed_out(running) if late else crashed(running, code)
                if self.work.ended(job, result):
                    self.records.case(result)
            done = member.done + (result is not None)
            self.work.lost(job, Loss(done, None, exit_words(code)), result)
        self._replace(member)
