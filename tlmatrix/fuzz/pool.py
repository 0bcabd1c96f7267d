"""A pool of fuzz workers that survives crashes and hangs of the code under test.

The process that calls `WorkerPool.run` imports no kernel. It hands out jobs, each a part of one
spec's search, and tracks the case that every worker runs: one that crashes or hangs its process
becomes a result. The pool remembers a hash of each case that began, so that no case runs twice, and
passes known failures on to new jobs.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Protocol

from tlmatrix.fuzz.job import Job, Settings
from tlmatrix.fuzz.lost_cases import LostCase, crashed, exit_words, timed_out
from tlmatrix.fuzz.worker import worker_main
from tlmatrix.options.table import BACKEND, SEED, TIER, TIMEOUT
from tlmatrix.spec.issues import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext

    from tlmatrix.backend.gpus import GpuAssignment
    from tlmatrix.fuzz.search import FuzzFailure, FuzzReport
    from tlmatrix.run.records import RecordsWriter
    from tlmatrix.run.result import CaseResult
    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Spec

_JOB_EXAMPLES = 250
"""Most examples of one job; workers share known failures between jobs."""
_JOBS_PER_WORKER = 4
"""Jobs per worker: enough to keep all workers busy, few because each job compiles its kernels."""
_CONFIGURATION_EXAMPLES = 32
"""Least examples of one configuration on a backend that compiles kernels: jobs that are smaller
share one, as compiling its kernels takes as long as hundreds of examples."""
_MIN_SECONDS, _MAX_SECONDS = 5.0, 60.0
"""Length of one job in a search with a time limit."""
_MAX_SECONDS_COMPILED = 300.0
"""The same on a backend that compiles kernels."""
_RECYCLE_AFTER = 20_000
"""Examples after which a fresh process replaces a worker."""
_MAX_LOST = 10
"""Lost processes after which the pool stops searching a spec."""
_MAX_UNEXPLAINED = 3
"""Processes that may end between two cases before the pool stops searching a spec."""
_END_SECONDS = 5.0
"""Seconds that a worker may take to end."""
_TICK = 0.5
_HANG_SECONDS = 10.0
"""Least time limit of a case while shrinking; otherwise four times that of the slowest case, and
never more than the timeout."""
_SHRINK_SECONDS = 60.0
"""Least time for shrinking a case that was lost with its process."""


def start_context() -> ForkServerContext:
    """The start method: a fork server with preloaded modules; it runs no kernel."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tlmatrix.fuzz.preload"])
    return context


def _is_compiled(backend: str) -> bool:
    from tlmatrix.backend import backend_class  # the GPU may be on another machine

    return backend_class(backend).compiles


def job_sizes(wanted: Mapping[str, int], workers: int) -> dict[str, int]:
    """The number of examples per job of each spec, given the number `wanted` of each.

    The search of a single spec is split among all workers. With many specs, jobs are larger, so
    that each worker gets `_JOBS_PER_WORKER` of them.
    """
    least = sum(wanted.values()) // (_JOBS_PER_WORKER * workers)
    return {
        path: min(_JOB_EXAMPLES, max(-(-examples // workers), least))
        for path, examples in wanted.items()
    }


def jobs_per_configuration(examples: int) -> int:
    """The number of jobs of so many examples that share a configuration."""
    return max(1, _CONFIGURATION_EXAMPLES // examples)


class WorkerPoolError(RuntimeError):
    """A worker failed outside of the code under test."""


@dataclass(frozen=True)
class Target:
    """A spec to search, the path of its file as the user gave it, and its tier's examples."""

    spec: Spec
    path: str
    examples: int


class Listener(Protocol):
    """Receives the events of a search, in the calling process."""

    def ended(self, result: CaseResult) -> None:
        """An example ended; results of passing ones have only the fields that counting needs."""

    def found(self, found: FuzzFailure) -> None:
        """A failure was found and shrunk."""

    def searched(self, report: FuzzReport) -> None:
        """A job ended."""

    def tick(self) -> None:
        """Called about twice a second."""


class WorkerProcess(Protocol):
    """A worker's process: one of this machine, or one of another."""

    @property
    def exitcode(self) -> int | None:
        """The exit code; None while it runs, and of a process that was lost with its machine."""

    def kill(self) -> None:
        """End the process."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until the process has ended."""


class Launcher(Protocol):
    """Starts workers."""

    def start(self, settings: Settings, gpu: str) -> tuple[WorkerProcess, Connection]:
        """Start a worker on a GPU, "" for any; return its process and the connection to it."""


class LocalWorkers:
    """Starts workers as processes of this machine."""

    def start(self, settings: Settings, gpu: str) -> tuple[WorkerProcess, Connection]:
        """Start a worker; see `Launcher`."""
        context = start_context()
        ours, theirs = context.Pipe()
        process = context.Process(target=worker_main, args=(theirs, settings, gpu))
        process.start()
        theirs.close()
        return process, ours


@dataclass
class _Worker:
    name: str
    process: WorkerProcess
    connection: Connection
    job: Job | None = None
    running: CaseResult | None = None
    """The case that it runs, as a result to be completed."""
    since: float = 0.0
    done: int = 0
    """Examples of its current job."""
    total: int = 0
    unwritten: list[bytes] = field(default_factory=list)
    """Records that it sent of the case that it runs."""


@dataclass
class WorkerPool:
    """Runs the searches of some specs and reports events to a listener; see `run`."""

    targets: Sequence[Target]
    settings: Settings
    listener: Listener
    gpus: GpuAssignment
    """Assigns each worker a GPU."""
    launcher: Launcher = field(default_factory=LocalWorkers)
    _workers: list[_Worker] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)
    _found: dict[str, list[FuzzFailure]] = field(default_factory=dict)
    _lost: Counter[str] = field(default_factory=Counter)
    _finished: set[str] = field(default_factory=set)
    """Paths of specs that are exhausted, or lost too many processes."""
    _unexplained: dict[str, list[str]] = field(default_factory=dict)
    """How processes ended between two cases, by path."""
    _errors: dict[str, str] = field(default_factory=dict)
    """Errors of tlmatrix that stopped the search of a spec, by path."""
    _invalid: dict[Issue, None] = field(default_factory=dict)
    """Errors in specs that generation found."""
    stopped: dict[str, str] = field(default_factory=dict)
    """Why specs were not searched to the end, by path."""
    unrecorded: str = ""
    """Why the results file lacks records; empty if it has all."""
    _numbers: Counter[str] = field(default_factory=Counter)
    _requeued: deque[Job] = field(default_factory=deque)
    _shrink_jobs: deque[Job] = field(default_factory=deque)
    _unshrunk: list[FuzzFailure] = field(default_factory=list)
    """Failures that are reported once shrunk, or at the end of the search."""
    _slowest: float = 0.0
    _names: Iterator[int] = field(default_factory=itertools.count)
    _end: float | None = None

    def run(self) -> None:
        """Search until the requested examples or time are used up; Ctrl-C ends the workers.

        Raises:
            SpecError: cases of a spec cannot be generated; the other specs were searched.
            WorkerPoolError: workers of a spec failed, or ended again and again, between two cases,
                so that it was not searched to the end; the other specs were.
        """
        from tlmatrix.run.records import RecordsWriter

        if self.settings.seconds is not None:
            self._end = time.monotonic() + self.settings.seconds
        self._jobs = self._schedule()
        records = RecordsWriter(self.settings.results)
        try:
            for _ in range(self.settings.workers):
                self._start_worker()
            while self._workers:
                self._receive(records)
                self.listener.tick()
        finally:
            for worker in self._workers:
                worker.process.kill()
                worker.process.join()
            for found in self._unshrunk:
                self.listener.found(found)
            self.unrecorded = self.unrecorded or records.error
            if records.removed:
                self.unrecorded = self.unrecorded or "the file was removed during the search"
            records.close()
        if self._errors:
            words = [
                f"{path}: not searched to the end: {how}" for path, how in self._errors.items()
            ]
            raise WorkerPoolError("\n".join(words))
        if self._invalid:
            raise SpecError(self._invalid)

    def _schedule(self) -> Iterator[Job]:
        """Yield all jobs, round-robin over the specs; without end in a search with a time limit."""
        settings = self.settings
        if settings.seconds is None:
            wanted = {each.path: settings.examples or each.examples for each in self.targets}
            sizes = job_sizes(wanted, settings.workers)
            while any(wanted.values()):
                for path, left in wanted.items():
                    size = min(left, sizes[path])
                    if size:
                        wanted[path] -= size
                        sharing = jobs_per_configuration(sizes[path])
                        yield self._job(path, size, None, sharing)
            return
        share = settings.seconds * settings.workers / len(self.targets)
        compiled = _is_compiled(settings.options[BACKEND])
        most = _MAX_SECONDS_COMPILED if compiled else _MAX_SECONDS
        share = min(max(share, _MIN_SECONDS), most)
        while len(self._finished) < len(self.targets):
            for target in self.targets:
                yield self._job(target.path, None, share)

    def _job(self, path: str, examples: int | None, seconds: float | None, sharing: int = 1) -> Job:
        from tlmatrix.fuzz.generation import derive_seed

        options, number = self.settings.options, self._numbers[path]
        self._numbers[path] += 1
        return Job(
            path, options[TIER], derive_seed(options[SEED], number + 1), examples, seconds,
            configuration=options[SEED] + 1 + number // sharing,
        )  # fmt: skip

    def _next(self) -> Job | None:
        """The next job; shrinking comes first, finished specs are skipped."""
        if self._shrink_jobs:
            return self._shrink_jobs.popleft()
        while True:
            left = None if self._end is None else self._end - time.monotonic()
            if left is not None and left <= 0:
                return None
            job = self._requeued.popleft() if self._requeued else next(self._jobs, None)
            if job is None:
                return None
            if job.path not in self._finished:
                seconds = job.seconds if left is None else min(job.seconds or left, left)
                known = tuple(self._found.get(job.path, ()))
                return replace(job, seconds=seconds, known=known)

    def _start_worker(self) -> None:
        """Start a worker with the next job, if there is one."""
        job = self._next()
        if job is None:
            return
        name = f"worker {next(self._names)}"
        process, connection = self.launcher.start(self.settings, self.gpus.assign(name))
        worker = _Worker(name, process, connection)
        self._workers.append(worker)
        self._send(worker, job)

    def _send(self, worker: _Worker, job: Job) -> None:
        worker.job, worker.done, worker.running = job, 0, None
        worker.since = time.monotonic()
        self._tell(worker, job)

    def _tell(self, worker: _Worker, message: object) -> None:
        """Send a message; that a worker has ended shows when its connection is read."""
        with suppress(OSError):
            worker.connection.send(message)

    def _receive(self, records: RecordsWriter) -> None:
        """Handle messages for up to `_TICK` seconds, and workers that crashed or hang."""
        by_connection = {worker.connection: worker for worker in self._workers}
        for connection in wait(list(by_connection), _TICK):
            worker = by_connection[connection]  # type: ignore[index]
            try:
                kind, content = worker.connection.recv()
                if kind in ("result", "shrunk", "done", "broken"):
                    # Not before: a case that is lost with its machine has no record.
                    _write_records(worker, records)
                self._handle(worker, kind, content)
            except (EOFError, ConnectionResetError):
                self._lost_worker(worker, records, crashed)
        now, limit = time.monotonic(), self.settings.options[TIMEOUT]
        for worker in list(self._workers):
            late = limit and now - worker.since > limit
            if worker.running is not None and late:
                self._lost_worker(worker, records, timed_out)

    def _handle(self, worker: _Worker, kind: str, content: Any) -> None:  # noqa: ANN401 - any message
        match kind:
            case "record":
                worker.unwritten.append(content)
            case "is new":
                self._tell(worker, content not in self._seen)
                self._seen.add(content)
            case "start":
                worker.running, worker.since = content, time.monotonic()
            case "result":
                worker.running = None
                worker.done += 1
                worker.total += 1
                self._slowest = max(self._slowest, content.seconds)
                self.listener.ended(content)
            case "found":
                self._add_failure(content)
            case "shrunk":
                self._report_shrunk(content)
                self._next_job(worker)
            case "done":
                self._job_done(worker, content)
            case "broken":
                self._replace_broken(worker, content)
            case "invalid" | "failed":
                self._job_failed(worker, content)
            case "outdated":
                assert worker.job is not None
                self._finished.add(worker.job.path)
                self.stopped.setdefault(worker.job.path, content)
            case "unrecorded":
                self.unrecorded = self.unrecorded or content

    def _add_failure(self, found: FuzzFailure) -> None:
        """Report a failure unless another worker reported the same one before."""
        mine = self._found.setdefault(found.smallest.path, [])
        if not any(found.same_fault(other) for other in mine):
            mine.append(found)
            self.listener.found(found)

    def _job_done(self, worker: _Worker, report: FuzzReport) -> None:
        worker.running = None
        if report.exhausted:
            self._finished.add(report.path)
            self.stopped.setdefault(report.path, "no more cases")
        self.listener.searched(report)
        self._next_job(worker)

    def _job_failed(self, worker: _Worker, error: SpecError | str) -> None:
        """Stop searching a spec: it is invalid, or tlmatrix failed, with this traceback."""
        assert worker.job is not None
        path = worker.job.path
        if worker.job.lost is not None:
            self._report_shrunk(None, worker.job.lost)
        if isinstance(error, SpecError):
            self._invalid |= dict.fromkeys(error.issues)
            self._finished.add(path)
            self.stopped.setdefault(path, "its cases cannot be generated")
        elif path not in self._errors:
            last = error.strip().splitlines()[-1]
            self._give_up(path, f"internal error in a fuzz worker: {last}")
            self._errors[path] += f"\n{error}"
        worker.running = None
        self._next_job(worker)

    def _give_up(self, path: str, reason: str) -> None:
        """Stop searching a spec because of an error that is not of the code under test."""
        self._finished.add(path)
        self.stopped[path] = self._errors[path] = reason

    def _replace_broken(self, worker: _Worker, report: FuzzReport) -> None:
        """Replace a worker that a case left unusable; its job goes on in another one."""
        assert worker.job is not None
        self.listener.searched(report)
        self._remove(worker)
        self._count_lost(worker.job, worker.done)
        self._start_worker()

    def _next_job(self, worker: _Worker) -> None:
        """Send a worker its next job, or end it."""
        job = self._next()
        if job is not None and worker.total < _RECYCLE_AFTER:
            self._send(worker, job)
            return
        self._tell(worker, None)
        self._remove(worker)
        if job is not None:
            self._requeued.appendleft(job)
            self._start_worker()

    def _remove(self, worker: _Worker) -> None:
        """Wait for a worker's process to end and release its GPU."""
        worker.process.join(_END_SECONDS)
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join()
        worker.connection.close()
        self._workers.remove(worker)
        self.gpus.release(worker.name)

    def _lost_worker(
        self,
        worker: _Worker,
        records: RecordsWriter,
        completed: Callable[[CaseResult, int | None], CaseResult],
    ) -> None:
        """Replace a worker that crashed or hangs; `completed` makes the result of its case."""
        worker.process.kill()
        self._remove(worker)
        job, running = worker.job, worker.running
        if job is None:
            return
        if worker.process.exitcode is None:
            self._lost_machine(worker, job)
        elif job.lost is not None:
            self._report_shrunk(None, job.lost)
        elif running is None:
            how = self._unexplained.setdefault(job.path, [])
            how.append(exit_words(worker.process.exitcode))
            if len(how) >= _MAX_UNEXPLAINED:
                words = ", ".join(how)
                self._give_up(job.path, f"fuzz workers ended between two cases ({words})")
            self._requeue(job, worker.done)
        else:
            result = completed(running, worker.process.exitcode)
            _write_records(worker, records)
            records.case(result)
            self.listener.ended(result)
            self._queue_shrinking(job, result)
            self._count_lost(job, worker.done + 1)
        self._start_worker()

    def _lost_machine(self, worker: _Worker, job: Job) -> None:
        """Run the rest of a job whose worker was lost with its machine; no case is to blame."""
        from tlmatrix.fuzz.generation import derive_seed

        if job.lost is not None:
            self._report_shrunk(None, job.lost)
            return
        if worker.running is not None:
            self._seen.discard(derive_seed(worker.running.key))
        reason = getattr(worker.process, "error", "")
        self._count_lost(job, worker.done, f"{_MAX_LOST} workers were lost: {reason}")

    def _count_lost(
        self, job: Job, done: int, reason: str = f"{_MAX_LOST} cases ended their processes"
    ) -> None:
        """Count a lost process of a job, and search on unless there were too many."""
        self._lost[job.path] += 1
        if self._lost[job.path] >= _MAX_LOST:
            self._finished.add(job.path)
            self.stopped.setdefault(job.path, reason)
        else:
            self._requeue(job, done)

    def _requeue(self, job: Job, done: int) -> None:
        """Queue the rest of a job of which `done` examples ran."""
        left = None if job.examples is None else job.examples - done
        if left is None or left > 0:
            self._requeued.append(self._job(job.path, left, job.seconds))

    def _queue_shrinking(self, job: Job, result: CaseResult) -> None:
        """Queue the shrinking of a case that was lost with its process, if the failure is new."""
        from tlmatrix.fuzz.search import FuzzFailure
        from tlmatrix.triage.cause import cause_of

        cause = cause_of(result)
        assert cause is not None
        found = FuzzFailure(cause, result, result, ended=False)
        mine = self._found.setdefault(result.path, [])
        if any(found.same_fault(other) for other in mine):
            return
        mine.append(found)
        self._unshrunk.append(found)
        limit = min(
            self.settings.options[TIMEOUT] or math.inf, max(_HANG_SECONDS, 4 * self._slowest)
        )
        lost = LostCase(result, limit, max(_SHRINK_SECONDS, 6 * limit))
        self._shrink_jobs.append(Job(job.path, job.tier, lost=lost))

    def _report_shrunk(self, shrunk: FuzzFailure | None, lost: LostCase | None = None) -> None:
        """Report a shrunk failure, or `lost` as it was found if the worker that shrank it ended."""
        first = shrunk.first if shrunk is not None else lost.result if lost is not None else None
        assert first is not None
        for found in [each for each in self._unshrunk if each.first.key == first.key]:
            self._unshrunk.remove(found)
            mine = self._found[first.path]
            mine[mine.index(found)] = shrunk or found
            self.listener.found(shrunk or found)


def _write_records(worker: _Worker, records: RecordsWriter) -> None:
    """Write the records that a worker on another machine sent."""
    for line in worker.unwritten:
        records.copy(line)
    worker.unwritten.clear()
