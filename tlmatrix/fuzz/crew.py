"""Searches in several processes: for hours, whatever the code under test does to a process.

The process that calls `Crew.run` imports no kernel. It hands out jobs, a part of one spec's search
each, and knows what every worker is running: a case that ends its process is a result, and so is
one that does not end. A case runs once, for the crew keeps a number for each that was begun;
searches tell it, and each other through it, which faults are known.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import time
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Protocol

from tlmatrix.fuzz.lost import Lost, crashed, timed_out
from tlmatrix.fuzz.worker import Job, work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext, SpawnContext
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from tlmatrix.backend.gpus import Spread
    from tlmatrix.fuzz.search import Found, FuzzReport
    from tlmatrix.run.records import RecordsWriter
    from tlmatrix.run.result import CaseResult
    from tlmatrix.spec.models import Spec

__all__ = ["Crew", "CrewError", "Listener", "Settings", "Target", "job_sizes"]

_SLICE = 250
"""Examples of one job, at most: workers learn from each other what is known between jobs."""
_JOBS = 4
"""Jobs a worker, at least as many as keep all busy to the end: where kernels are compiled, each
job compiles its own."""
_LEAST_SECONDS, _MOST_SECONDS = 5.0, 60.0
"""Of one job, where a search goes by time."""
_MOST_COMPILED = 300.0
"""The same where its kernels are compiled first."""
_RECYCLED = 20_000
"""Examples after which a process is replaced by a fresh one."""
_GIVEN_UP = 10
"""Processes that one spec may cost; after them the rest of its search is left out."""
_TICK = 0.5
_HANGS = 10.0
"""Seconds after which a smaller case is taken to hang, if the timeout is not shorter; or four times
what the slowest one took."""
_SHRINKING = 60.0
"""Seconds for shrinking a case that was lost with its process."""


def _context(backend: str) -> SpawnContext | ForkServerContext:
    """How processes start: forked from one that has the imports, unless they may use a GPU.

    CUDA does not survive a fork, nor may a worker share what another one has asked of it.
    """
    from tlmatrix.backend import backend_named

    if backend_named(backend).name != "interpreter":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tlmatrix.fuzz.warm"])
    return context


def _is_compiled(backend: str) -> bool:
    from tlmatrix.backend import backend_named

    return backend_named(backend).name == "cuda"


def job_sizes(wanted: Mapping[str, int], workers: int) -> dict[str, int]:
    """How many examples one job of each spec has, of as many as are `wanted` of it.

    A search of one spec is shared by all workers; one of many specs need not be, and has some
    jobs a worker in all.
    """
    least = sum(wanted.values()) // (_JOBS * workers)
    return {
        path: min(_SLICE, max(-(-examples // workers), least)) for path, examples in wanted.items()
    }


class CrewError(RuntimeError):
    """A search broke by itself, and not in the code under test."""


@dataclass(frozen=True)
class Target:
    """A spec to search, how the user calls its file, and how many examples its tier has."""

    spec: Spec
    path: str
    examples: int


@dataclass(frozen=True)
class Settings:
    """What a search is asked for: `examples` of every spec, or `seconds` for all together.

    Without either, as many examples as the tier of each spec says. `timeout` is in seconds a case;
    0 means none. With `strict`, a kernel that the interpreter does not model is an error.
    """

    tier: str
    backend: str
    examples: int | None
    seconds: float | None
    seed: int
    workers: int
    timeout: float
    results: Path
    strict: bool = False
    roots: tuple[Path, ...] = ()


class Listener(Protocol):
    """Hears what happens, in the calling process."""

    def ended(self, result: CaseResult) -> None:
        """An example has its result; of one that passed, only what counting needs."""

    def found(self, found: Found) -> None:
        """A fault was found, and shrunk."""

    def searched(self, report: FuzzReport) -> None:
        """A part of a search came to its end."""

    def tick(self) -> None:
        """Time passes."""


@dataclass
class _Worker:
    name: str
    process: BaseProcess
    line: Connection
    job: Job | None = None
    running: CaseResult | None = None
    """The case that it runs, as a result without an end."""
    since: float = 0.0
    done: int = 0
    """Examples of its job."""
    total: int = 0


@dataclass
class Crew:
    """Runs the searches of some specs and tells a listener; see `run`."""

    targets: Sequence[Target]
    settings: Settings
    listener: Listener
    spread: Spread
    """The GPUs of this machine, one for each worker."""
    _workers: list[_Worker] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)
    _found: dict[str, list[Found]] = field(default_factory=dict)
    _lost: Counter[str] = field(default_factory=Counter)
    _over: set[str] = field(default_factory=set)
    """Paths of specs with nothing left to draw, or given up."""
    _numbers: Counter[str] = field(default_factory=Counter)
    _left: deque[Job] = field(default_factory=deque)
    _losses: deque[Job] = field(default_factory=deque)
    _unshrunk: list[Found] = field(default_factory=list)
    """Faults that are told when they are shrunk, or when the search ends before."""
    _slowest: float = 0.0
    _names: Iterator[int] = field(default_factory=itertools.count)
    _end: float | None = None

    def run(self) -> None:
        """Search until everything that was asked for is done; Ctrl-C ends the workers."""
        from tlmatrix.run.records import RecordsWriter

        if self.settings.seconds is not None:
            self._end = time.monotonic() + self.settings.seconds
        self._jobs = self._schedule()
        records = RecordsWriter(self.settings.results)
        try:
            for _ in range(self.settings.workers):
                self._begin()
            while self._workers:
                self._listen(records)
                self.listener.tick()
        finally:
            for worker in self._workers:
                worker.process.kill()
                worker.process.join()
            for found in self._unshrunk:
                self.listener.found(found)
            records.close()

    def _schedule(self) -> Iterator[Job]:
        """Every job in its turn; without an end where the search goes by time."""
        settings = self.settings
        if settings.seconds is None:
            wanted = {each.path: settings.examples or each.examples for each in self.targets}
            sizes = job_sizes(wanted, settings.workers)
            while any(wanted.values()):
                for path, left in wanted.items():
                    size = min(left, sizes[path])
                    if size:
                        wanted[path] -= size
                        yield self._job(path, size, None)
            return
        share = settings.seconds * settings.workers / len(self.targets)
        most = _MOST_COMPILED if _is_compiled(settings.backend) else _MOST_SECONDS
        share = min(max(share, _LEAST_SECONDS), most)
        while len(self._over) < len(self.targets):
            for target in self.targets:
                yield self._job(target.path, None, share)

    def _job(self, path: str, examples: int | None, seconds: float | None) -> Job:
        from tlmatrix.fuzz.draws import seed_of

        self._numbers[path] += 1
        number = self._numbers[path]
        seed = seed_of(self.settings.seed, number)
        return Job(
            path, self.settings.tier, seed, examples, seconds, number=self.settings.seed + number
        )

    def _next(self) -> Job | None:
        """The next job that is worth doing."""
        if self._losses:
            return self._losses.popleft()
        while True:
            left = None if self._end is None else self._end - time.monotonic()
            if left is not None and left <= 0:
                return None
            job = self._left.popleft() if self._left else next(self._jobs, None)
            if job is None:
                return None
            if job.path not in self._over:
                seconds = job.seconds if left is None else min(job.seconds or left, left)
                known = tuple(self._found.get(job.path, ()))
                return replace(job, seconds=seconds, known=known)

    def _begin(self) -> None:
        """A new process with a job, where there is one."""
        job = self._next()
        if job is None:
            return
        context = _context(self.settings.backend)
        ours, theirs = context.Pipe()
        name = f"worker {next(self._names)}"
        process = context.Process(target=work, args=(theirs, self.settings, self.spread.give(name)))
        process.start()
        theirs.close()
        worker = _Worker(name, process, ours)
        self._workers.append(worker)
        self._give(worker, job)

    def _give(self, worker: _Worker, job: Job) -> None:
        worker.job, worker.done, worker.running = job, 0, None
        worker.since = time.monotonic()
        worker.line.send(job)

    def _listen(self, records: RecordsWriter) -> None:
        """Hear the workers for a moment; take note of those that are gone or stuck."""
        by_line = {worker.line: worker for worker in self._workers}
        for line in wait(list(by_line), _TICK):
            worker = by_line[line]  # type: ignore[index]
            try:
                self._hear(worker, *worker.line.recv())
            except (EOFError, ConnectionResetError):
                self._gone(worker, records, crashed)
        now = time.monotonic()
        for worker in list(self._workers):
            late = self.settings.timeout and now - worker.since > self.settings.timeout
            if worker.running is not None and late:
                self._gone(worker, records, timed_out)

    def _hear(self, worker: _Worker, what: str, about: Any) -> None:  # noqa: ANN401 - any message
        match what:
            case "ask":
                worker.line.send(about not in self._seen)
                self._seen.add(about)
            case "start":
                worker.running, worker.since = about, time.monotonic()
            case "result":
                worker.running = None
                worker.done += 1
                worker.total += 1
                self._slowest = max(self._slowest, about.seconds)
                self.listener.ended(about)
            case "found":
                self._take(about)
            case "shrunk":
                self._tell(about)
                self._go_on(worker)
            case "done":
                self._done(worker, about)

    def _take(self, found: Found) -> None:
        """A fault, unless another worker was as quick."""
        mine = self._found.setdefault(found.smallest.path, [])
        if not any(found.alike(other) for other in mine):
            mine.append(found)
            self.listener.found(found)

    def _done(self, worker: _Worker, report: FuzzReport) -> None:
        worker.running = None
        if report.exhausted:
            self._over.add(report.path)
        self.listener.searched(report)
        self._go_on(worker)

    def _go_on(self, worker: _Worker) -> None:
        """Another job for a worker, or its end."""
        job = self._next()
        if job is not None and worker.total < _RECYCLED:
            self._give(worker, job)
            return
        worker.line.send(None)
        self._end_of(worker)
        if job is not None:
            self._left.appendleft(job)
            self._begin()

    def _end_of(self, worker: _Worker) -> None:
        """A process ends; its GPU is free for another."""
        worker.process.join()
        self._workers.remove(worker)
        self.spread.take_back(worker.name)

    def _gone(
        self,
        worker: _Worker,
        records: RecordsWriter,
        told: Callable[[CaseResult, int | None], CaseResult],
    ) -> None:
        """A process that ended or hangs: a result for its case, another process for its job."""
        worker.process.kill()
        self._end_of(worker)
        job, running = worker.job, worker.running
        assert job is not None
        if job.lost is not None:
            self._tell(None, job.lost)
        elif running is None:
            raise CrewError(
                f"{job.path}: a process of the search ended ({worker.process.exitcode}) while it "
                "ran no case"
            )
        else:
            result = told(running, worker.process.exitcode)
            records.case(result)
            self.listener.ended(result)
            self._lose(job, result)
            self._lost[job.path] += 1
            if self._lost[job.path] >= _GIVEN_UP:
                self._over.add(job.path)
            else:
                left = None if job.examples is None else job.examples - worker.done - 1
                if left is None or left > 0:
                    self._left.append(self._job(job.path, left, job.seconds))
        self._begin()

    def _lose(self, job: Job, result: CaseResult) -> None:
        """A case was lost with its process: a fault, to be shrunk if it is a new one."""
        from tlmatrix.fuzz.grouping import cause_of
        from tlmatrix.fuzz.search import Found

        cause = cause_of(result)
        assert cause is not None
        found = Found(cause, result, result, ended=False)
        mine = self._found.setdefault(result.path, [])
        if any(found.alike(other) for other in mine):
            return
        mine.append(found)
        self._unshrunk.append(found)
        limit = min(self.settings.timeout or math.inf, max(_HANGS, 4 * self._slowest))
        lost = Lost(result, limit, max(_SHRINKING, 6 * limit))
        self._losses.append(Job(job.path, job.tier, lost=lost))

    def _tell(self, shrunk: Found | None, lost: Lost | None = None) -> None:
        """A lost case was shrunk, or was lost once more with the process that was to shrink it."""
        first = shrunk.first if shrunk is not None else lost.result if lost is not None else None
        assert first is not None
        for found in [each for each in self._unshrunk if each.first.key == first.key]:
            self._unshrunk.remove(found)
            mine = self._found[first.path]
            mine[mine.index(found)] = shrunk or found
            self.listener.found(shrunk or found)
