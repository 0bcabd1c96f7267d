"""Searches of specs as jobs: parts of a search, and the shrinking of cases that end processes.

The pool's process remembers a hash of each case that began, so that no case runs twice, and passes
known failures on to new jobs.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from tlmatrix.backend import backend_class
from tlmatrix.backend.gpus import all_visible_gpus
from tlmatrix.engine.lost import ChildProcess, LostCase, fork_child, shrink_lost, spawn_child
from tlmatrix.engine.worker import trim_heap
from tlmatrix.fuzz.generation import derive_seed
from tlmatrix.fuzz.search import FuzzFailure, FuzzReport, fuzz_spec
from tlmatrix.options.table import BACKEND, SEED, TIER, TIMEOUT
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.spec import WORLD
from tlmatrix.triage.cause import cause_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from hypothesis.strategies import SearchStrategy

    from tlmatrix.engine.pool import Loss
    from tlmatrix.engine.worker import Worker
    from tlmatrix.matrix import Case
    from tlmatrix.options.table import RunOptions
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
_MAX_LOST = 10
"""Lost processes after which the search of a spec stops."""
_MAX_UNEXPLAINED = 3
"""Processes that may end between two cases before the search of a spec stops."""
_HANG_SECONDS = 10.0
"""Least time limit of a case while shrinking; otherwise four times that of the slowest case, and
never more than the timeout."""
_SHRINK_SECONDS = 60.0
"""Least time for shrinking a case that was lost with its process."""


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


@dataclass(frozen=True)
class Target:
    """A spec to search, the path of its file as the user gave it, and its tier's examples."""

    spec: Spec
    path: str
    examples: int


@dataclass(frozen=True)
class SearchSettings:
    """The settings of a search.

    `options` are those of a run. `examples` is the number per spec, `seconds` the time for all
    specs; without either, the tier of each spec sets the number of examples.
    """

    options: RunOptions
    examples: int | None
    seconds: float | None
    workers: int


class Listener(Protocol):
    """Receives the events of a search, in the calling process."""

    def ended(self, result: CaseResult) -> None:
        """An example ended."""

    def found(self, found: FuzzFailure) -> None:
        """A failure was found and shrunk."""

    def searched(self, report: FuzzReport) -> None:
        """A job ended."""

    def tick(self) -> None:
        """Called about twice a second."""


@dataclass(frozen=True)
class SearchJob:
    """A part of a search.

    On a backend that compiles kernels, its cases share the kernels of one `configuration`, of which
    each number stands for another.
    """

    path: str
    tier: str
    seed: int = 0
    examples: int | None = None
    seconds: float | None = None
    known: tuple[FuzzFailure, ...] = ()
    configuration: int = 0
    limit: float = 0.0
    gpus: int = 0

    def run(self, worker: Worker) -> FuzzReport:
        """Search; every example that ends is sent to the pool."""
        runner = worker.runner
        spec = worker.spec(self.path)
        compiled = runner.backend.compiles
        strategy = None
        if compiled:
            on_gpus = runner.backend.device.type == "cuda"
            strategy = one_configuration(spec, self, len(all_visible_gpus()) if on_gpus else None)
        report = fuzz_spec(
            spec, runner, strategy=strategy, tier=self.tier, examples=self.examples,
            seconds=self.seconds, seed=self.seed, path=self.path, known=self.known,
            admits=lambda case: bool(worker.send("ask", derive_seed(case.key))),
            on_start=lambda case, shrinking: worker.start(case, self.path, recorded=not shrinking),
            on_found=lambda found: worker.send("found", _slim(found)),
        )  # fmt: skip
        if report.coverage is not None:
            worker.add_coverage(self.path, f"fuzz {self.seed}", report.coverage)
        trim_heap()
        worker.unusable = bool(runner.broken_by)
        if runner.outdated and not worker.unusable:
            worker.send("outdated", f"{runner.outdated} since the search began")
            runner.outdated = ""  # the next job may be of another spec
        # The job's one configuration may be exhausted while others are not.
        exhausted = report.exhausted and not compiled
        return replace(report, exhausted=exhausted, found=tuple(map(_slim, report.found)))


@dataclass(frozen=True)
class ShrinkJob:
    """Shrinks a case that was lost with its process; each attempt runs in a child process."""

    path: str
    lost: LostCase
    limit: float = 0.0
    gpus: int = 0

    def run(self, worker: Worker) -> FuzzFailure:
        """Shrink the case."""
        spec, runner = worker.spec(self.path), worker.runner

        def begin() -> tuple[BaseProcess, Connection]:
            if runner.backend.survives_fork:
                return fork_child(runner, spec, self.path)
            return spawn_child(self.path, worker.settings)

        return _slim(shrink_lost(spec, self.lost, ChildProcess(begin)))


def one_configuration(spec: Spec, job: SearchJob, gpus: int | None) -> SearchStrategy[Case]:
    """A strategy for cases that share the kernels of one case of the tier, of another for each job.

    For backends that compile, where a kernel takes as long as hundreds of examples. Cases with
    more ranks than there are `gpus` to run on are not generated, as they would be skipped.
    """
    from tlmatrix.fuzz.strategies import sharing_cases

    at_most = None if gpus is None else {WORLD: gpus}
    return sharing_cases(spec, job.tier, number=job.configuration, at_most=at_most)


def _slim(found: FuzzFailure) -> FuzzFailure:
    """A failure without coverage, for the pool."""
    smallest, first = (replace(each, coverage=None) for each in (found.smallest, found.first))
    return replace(found, smallest=smallest, first=first)


class Searches:
    """The searches of some specs as the work of a pool (`tlmatrix.engine.pool.Work`).

    Attributes:
        stopped: why specs were not searched to the end, by path.
        errors: errors of tlmatrix that stopped the search of a spec, by path.
        invalid: errors in specs that generation found.
    """

    over = False

    def __init__(
        self, targets: Sequence[Target], settings: SearchSettings, listener: Listener, *, gpus: int
    ) -> None:
        """Start the clock of a search whose workers have so many `gpus` each on a cluster."""
        self.stopped: dict[str, str] = {}
        self.errors: dict[str, str] = {}
        self.invalid: dict[Issue, None] = {}
        self._targets = targets
        self._settings = settings
        self._listener = listener
        self._gpus = gpus
        self._seen: set[int] = set()
        self._found: dict[str, list[FuzzFailure]] = {}
        self._lost: Counter[str] = Counter()
        self._finished: set[str] = set()
        """Paths of specs that are exhausted, or lost too many processes."""
        self._unexplained: dict[str, list[str]] = {}
        """How processes ended between two cases, by path."""
        self._numbers: Counter[str] = Counter()
        self._requeued: deque[SearchJob] = deque()
        self._shrink_jobs: deque[ShrinkJob] = deque()
        self._unshrunk: list[FuzzFailure] = []
        """Failures that are reported once shrunk, or at the end of the search."""
        self._slowest = 0.0
        seconds = settings.seconds
        self._end = None if seconds is None else time.monotonic() + seconds
        self._jobs = self._schedule()

    def close(self) -> None:
        """Report the failures that are not shrunk yet."""
        for found in self._unshrunk:
            self._listener.found(found)

    def _schedule(self) -> Iterator[SearchJob]:
        """Yield all jobs, round-robin over the specs; without end in a search with a time limit."""
        settings = self._settings
        if settings.seconds is None:
            wanted = {each.path: settings.examples or each.examples for each in self._targets}
            sizes = job_sizes(wanted, settings.workers)
            while any(wanted.values()):
                for path, left in wanted.items():
                    size = min(left, sizes[path])
                    if size:
                        wanted[path] -= size
                        sharing = jobs_per_configuration(sizes[path])
                        yield self._job(path, size, None, sharing)
            return
        share = settings.seconds * settings.workers / len(self._targets)
        compiled = backend_class(
            settings.options[BACKEND]
        ).compiles  # the GPU may be on another machine
        share = min(max(share, _MIN_SECONDS), _MAX_SECONDS_COMPILED if compiled else _MAX_SECONDS)
        while len(self._finished) < len(self._targets):
            for target in self._targets:
                yield self._job(target.path, None, share)

    def _job(
        self, path: str, examples: int | None, seconds: float | None, sharing: int = 1
    ) -> SearchJob:
        options, number = self._settings.options, self._numbers[path]
        self._numbers[path] += 1
        return SearchJob(
            path, options[TIER], derive_seed(options[SEED], number + 1), examples, seconds,
            configuration=options[SEED] + 1 + number // sharing, limit=options[TIMEOUT],
            gpus=self._gpus,
        )  # fmt: skip

    def next_job(self) -> SearchJob | ShrinkJob | None:
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

    def ended(self, _job: SearchJob, result: CaseResult) -> bool:
        """Report an example."""
        self._slowest = max(self._slowest, result.seconds)
        self._listener.ended(result)
        return True

    def message(self, job: SearchJob, kind: str, content: Any) -> bool | None:  # noqa: ANN401
        """Say whether a case is new; report a failure; stop searching an edited spec."""
        match kind:
            case "ask":
                new = content not in self._seen
                self._seen.add(content)
                return new
            case "found":
                mine = self._found.setdefault(content.smallest.path, [])
                if not any(content.same_fault(other) for other in mine):
                    mine.append(content)  # else another worker reported it before
                    self._listener.found(content)
            case "outdated":
                self._stop(job.path, content)
        return None

    def done(self, job: SearchJob | ShrinkJob, report: Any) -> None:  # noqa: ANN401
        """Report a search, or a case that was shrunk."""
        if isinstance(job, ShrinkJob):
            self._report_shrunk(job.lost, report)
            return
        if report.exhausted:
            self._stop(report.path, "no more cases")
        self._listener.searched(report)

    def broken(self, job: SearchJob, done: int, report: FuzzReport) -> None:
        """Search on in another process."""
        self._listener.searched(report)
        self._count_lost(job, done)

    def failed(self, job: SearchJob | ShrinkJob, _done: int, error: SpecError | str) -> None:
        """Stop searching a spec: it is invalid, or tlmatrix failed, with this traceback."""
        if isinstance(job, ShrinkJob):
            self._report_shrunk(job.lost)
        if isinstance(error, SpecError):
            self.invalid |= dict.fromkeys(error.issues)
            self._stop(job.path, "its cases cannot be generated")
        elif job.path not in self.errors:
            last = error.strip().splitlines()[-1]
            self._give_up(job.path, f"internal error in a fuzz worker: {last}")
            self.errors[job.path] += f"\n{error}"

    def lost(self, job: SearchJob | ShrinkJob, loss: Loss, result: CaseResult | None) -> None:
        """Search on in another process, unless too many ended; shrink the case that ended it."""
        if isinstance(job, ShrinkJob):
            self._report_shrunk(job.lost)
        elif result is not None:
            self._queue_shrinking(job, result)
            self._count_lost(job, loss.done)
        elif loss.refused:
            self._stop(job.path, loss.words)
        elif loss.machine:
            if loss.running is not None:  # no case is to blame
                self._seen.discard(derive_seed(loss.running.key))
            self._count_lost(job, loss.done, f"{_MAX_LOST} workers were lost: {loss.words}")
        else:
            how = self._unexplained.setdefault(job.path, [])
            how.append(loss.words)
            if len(how) >= _MAX_UNEXPLAINED:
                self._give_up(job.path, f"fuzz workers ended between two cases ({', '.join(how)})")
            self._requeue(job, loss.done)

    def _stop(self, path: str, reason: str) -> None:
        self._finished.add(path)
        self.stopped.setdefault(path, reason)

    def _give_up(self, path: str, reason: str) -> None:
        """Stop searching a spec because of an error that is not of the code under test."""
        self._finished.add(path)
        self.stopped[path] = self.errors[path] = reason

    def _count_lost(
        self, job: SearchJob, done: int, reason: str = f"{_MAX_LOST} cases ended their processes"
    ) -> None:
        """Count a lost process of a job, and search on unless there were too many."""
        self._lost[job.path] += 1
        if self._lost[job.path] >= _MAX_LOST:
            self._stop(job.path, reason)
        else:
            self._requeue(job, done)

    def _requeue(self, job: SearchJob, done: int) -> None:
        """Queue the rest of a job of which `done` examples ran."""
        left = None if job.examples is None else job.examples - done
        if left is None or left > 0:
            self._requeued.append(self._job(job.path, left, job.seconds))

    def _queue_shrinking(self, job: SearchJob, result: CaseResult) -> None:
        """Queue the shrinking of a case that was lost with its process, if the failure is new."""
        cause = cause_of(result)
        assert cause is not None
        found = FuzzFailure(cause, result, result, ended=False)
        mine = self._found.setdefault(result.path, [])
        if any(found.same_fault(other) for other in mine):
            return
        mine.append(found)
        self._unshrunk.append(found)
        limit = min(
            self._settings.options[TIMEOUT] or math.inf, max(_HANG_SECONDS, 4 * self._slowest)
        )
        lost = LostCase(result, limit, max(_SHRINK_SECONDS, 6 * limit))
        self._shrink_jobs.append(ShrinkJob(job.path, lost, gpus=job.gpus))

    def _report_shrunk(self, lost: LostCase, shrunk: FuzzFailure | None = None) -> None:
        """Report a shrunk failure, or as it was found if the worker that shrank it ended."""
        first = lost.result
        for found in [each for each in self._unshrunk if each.first.key == first.key]:
            self._unshrunk.remove(found)
            mine = self._found[first.path]
            mine[mine.index(found)] = shrunk or found
            self._listener.found(shrunk or found)

    def tick(self) -> None:
        """Tell the listener that time passes."""
        self._listener.tick()
