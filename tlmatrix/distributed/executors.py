"""Executors: what runs jobs on ranks, in pools of processes or simulated in this process.

An executor owns what the cases of this process share, such as pools of rank processes.
`tlmatrix.distributed.entry` runs the entry of a case on it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch
import torch.distributed as dist

from tlmatrix.backend.backends import CudaBackend, InterpreterBackend, ProcessesBackend
from tlmatrix.backend.errors import DevicesError, EntryError
from tlmatrix.backend.gpus import all_visible_gpus
from tlmatrix.cache_files import lock, temporary_folder
from tlmatrix.check.finding import Finding, FindingsError
from tlmatrix.check.sanitizers import finding_of
from tlmatrix.distributed.failures import CHECK, Failure, raise_failures
from tlmatrix.distributed.pool import RankPool
from tlmatrix.distributed.rank_runner import RankRunner, to_device
from tlmatrix.tracebacks import user_traceback
from tlmatrix.words import ranks_words

if TYPE_CHECKING:
    from tlmatrix.backend.backends import Backend
    from tlmatrix.backend.binding import Binding
    from tlmatrix.check.sanitizers import SanitizerSession
    from tlmatrix.distributed.rank_runner import Answer, Job


_RANK = re.compile(r"simulated rank (\d+)")
_FIRST_RUN = 2
"""Factor of the time limit for the first run of a case on GPUs, which compiles kernels."""
_POOLS = 2
"""Pools that stay alive, each for another number of ranks; starting one takes seconds."""
_CONCURRENT = 8
"""Cases on several GPUs that all workers run at a time; they mostly compile.

With more, they would wait for each other: a GPU switches between processes every few
milliseconds, and a rank that waits for a peer needs both to be scheduled."""


@dataclass
class ProcessExecutor:
    """Runs each rank in its own process, with a pool for each number of ranks."""

    kind: str
    roots: tuple[Path, ...]
    seconds: float
    _pools: dict[int, RankPool] = field(default_factory=dict)
    _began: tuple[Binding, RankPool] | None = None
    _lock: AbstractContextManager[None] | None = None

    def run(
        self,
        binding: Binding,
        jobs: Sequence[Job],
        sanitizers: SanitizerSession | None = None,  # noqa: ARG002 - compiled kernels have no sanitizers
    ) -> list[Answer]:
        """Run each rank's job and return the answers; `sanitizers` records findings of sanitizers.

        Raises:
            EntryError: the code under test raised.
            DevicesError: there are fewer GPUs than ranks.
            FindingsError: ranks hang, or a process ended.
        """
        world, seconds = len(jobs), self.seconds
        pool = self._pool(world)
        if self._began is None or self._began[0] is not binding or self._began[1] is not pool:
            self.end()
            self._enter()
            pool.begin(binding.spec, self.roots)
            self._began = (binding, pool)
            if self.kind == "cuda":
                seconds *= _FIRST_RUN
        # A CUDA tensor would be unpickled on this process's GPU in every rank.
        host = torch.device("cpu")
        try:
            return pool.call("run", [(to_device(job, host),) for job in jobs], seconds)
        finally:
            if not pool.running:
                self._began = None

    def work(
        self, function: Callable[..., object], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """Call a function of a module on each rank, see `RankPool.call`.

        Raises:
            DevicesError: there are fewer GPUs than ranks.
        """
        pool = self._pool(len(arguments))
        self.end()
        self._enter()
        return pool.call(function, arguments, self.seconds)

    def _pool(self, world: int) -> RankPool:
        if world not in self._pools:
            gpus: tuple[str, ...] = ()
            if self.kind == "cuda":
                gpus = all_visible_gpus()
                if world > len(gpus):
                    raise DevicesError(
                        f"the case needs {world} GPUs, and {len(gpus)} "
                        f"{'is' if len(gpus) == 1 else 'are'} visible; `--backend interpreter` "
                        "runs it on simulated ranks"
                    )
            if len(self._pools) == _POOLS:
                # Processes hold memory, also of the GPUs.
                self._pools.pop(next(iter(self._pools))).close()
            self._pools[world] = RankPool(world, self.kind, gpus[:world])
        pool = self._pools[world] = self._pools.pop(world)  # least recently used first
        return pool

    def _enter(self) -> None:
        """Wait for a slot on the GPUs, which workers share."""
        if self.kind == "cuda" and self._lock is None:
            self._lock = machine_slot("gpus", _CONCURRENT)
            self._lock.__enter__()

    def end(self) -> None:
        """End the current case and free its contexts."""
        if self._began is not None:
            self._began[1].end()
            self._began = None
        if self._lock is not None:
            self._lock.__exit__(None, None, None)
            self._lock = None

    def close(self) -> None:
        """Free everything."""
        self.end()
        for pool in self._pools.values():
            pool.close()
        self._pools = {}


@dataclass(frozen=True)
class _OnRank(InterpreterBackend):
    """The backend of calls on a simulated rank, while the simulation's own is active."""

    @contextmanager
    def active(self, run_index: int = 0) -> Iterator[object]:  # noqa: ARG002
        """Do nothing: the simulation's backend is active already."""
        yield self

    def synchronize(self) -> None:
        """Wait for the rank's streams."""
        torch.cuda.synchronize()


class SimulatedExecutor:
    """Runs each job in a new simulation in this process, under a seeded scheduler.

    Each has its own memory, streams and contexts. Its interleaving depends on the case and on the
    number of the run.
    """

    def run(
        self, binding: Binding, jobs: Sequence[Job], sanitizers: SanitizerSession | None = None
    ) -> list[Answer]:
        """See `ProcessExecutor.run`."""
        from tlmatrix.interpreter import simulate
        from tlmatrix.interpreter.errors import DeadlockError, SynchronizationError

        world, first = len(jobs), jobs[0]
        failures: dict[int, Failure] = {}
        bound = replace(binding, backend=_OnRank(target=binding.backend.target))  # type: ignore[attr-defined]

        def program(rank: int) -> Answer:
            try:
                return RankRunner(bound, rank, world, dist.group.WORLD).run(jobs[rank])
            except Exception as error:
                failures[rank] = Failure.of(error)
                raise

        watching = nullcontext() if sanitizers is None else sanitizers.enabled_on_ranks(world)
        try:
            with watching, binding.backend.active(first.turn):
                found = simulate(program, world, seed=_seed(first), stragglers=bool(first.straggle))
        except (DeadlockError, SynchronizationError) as error:
            raise _deadlock(error) from error
        except Exception as error:
            raise_failures(failures, world)
            raise _stream_error(error, world) from error
        return list(found.results)

    def end(self) -> None:
        """Do nothing: no state outlives a run."""

    def close(self) -> None:
        """Do nothing: no state outlives a run."""


RankExecutor = ProcessExecutor | SimulatedExecutor


def executor_for(backend: Backend, roots: tuple[Path, ...], seconds: float) -> RankExecutor:
    """Create the executor for a backend; `seconds` is the time limit of a job."""
    if isinstance(backend, CudaBackend):
        return ProcessExecutor("cuda", roots, seconds)
    if isinstance(backend, ProcessesBackend):
        return ProcessExecutor("gloo", roots, seconds)
    return SimulatedExecutor()


def _seed(job: Job) -> int:
    """The scheduler's seed: different for each case and each run of it."""
    return crc32(repr(sorted(job.calls[0].values.items())).encode()) ^ (job.turn * 0x9E3779B1)


def _deadlock(error: Exception) -> FindingsError:
    """The error for ranks that deadlock, or that end with a report of a kernel, such as a race."""
    reports = [each for each in getattr(error, "reports", ()) if each.kernel]
    if reports:
        return FindingsError([finding_of(report) for report in reports])
    title, _, detail = str(error).partition("\n")
    hint = "a signal that no rank sends, a flag not reset, or a collective that not all ranks call"
    finding = Finding(CHECK, title, pattern="deadlock", hint=hint, detail=detail or None)
    return FindingsError([finding])


def _stream_error(error: Exception, world: int) -> Exception:
    """The error of a kernel or a copy on a stream, with its rank."""
    notes = " ".join(getattr(error, "__notes__", ()))
    rank = _RANK.search(notes)
    if rank is None:
        return error
    where = ranks_words([int(rank[1])], world) if world > 1 else ""
    return EntryError(error, where=where, trace=user_traceback(error))


@contextmanager
def machine_slot(name: str, slots: int) -> Iterator[None]:
    """Hold one of `slots` slots that this user's processes on the machine share; wait for one."""
    paths = [temporary_folder() / f"{name}-{slot}.lock" for slot in range(slots)]
    descriptor = None
    for path in paths:
        with suppress(BlockingIOError):
            descriptor = lock(path, wait=False)
            break
    if descriptor is None:
        descriptor = lock(paths[os.getpid() % slots])
    try:
        yield
    finally:
        os.close(descriptor)
