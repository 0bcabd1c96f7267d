"""Runs jobs on several ranks: in a pool of one process per rank, or simulated in this process.

A pool serves many cases and restarts after a failure. Its processes run
`tlmatrix.distributed.process`, each with one GPU and NCCL, or on a CPU with gloo. Exceptions of
several ranks are reported as one error. If a rank hangs, the pool collects the stacks of the ranks
that did not answer and kills all processes. `tlmatrix.distributed.entry` runs the entry of a case.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

import torch
import torch.distributed as dist

from tlmatrix.backend.backends import CudaBackend, InterpreterBackend, ProcessesBackend
from tlmatrix.backend.errors import DevicesError, EntryError
from tlmatrix.backend.gpus import all_visible_gpus
from tlmatrix.cache_files import lock, temporary_folder
from tlmatrix.check.finding import Finding, FindingsError
from tlmatrix.distributed.failures import CHECK, Failure, exit_error, hang_error, raise_failures
from tlmatrix.distributed.rank_runner import RankRunner, to_device
from tlmatrix.processes import without_launcher
from tlmatrix.tracebacks import user_traceback
from tlmatrix.words import ranks_words

if TYPE_CHECKING:
    from tlmatrix.backend.backends import Backend
    from tlmatrix.backend.binding import Binding
    from tlmatrix.check.sanitizers import SanitizerSession
    from tlmatrix.distributed.rank_runner import Answer, Job
    from tlmatrix.spec.model.spec import Spec


_GRACE = 5.0
"""Seconds for the other ranks to answer after one failed."""
_START = 300.0
"""Seconds for processes to start, import PyTorch and form a process group."""
_STACK_WAIT = 0.5
"""Seconds for a rank to write its stacks."""

_NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class RankPool:
    """The processes of `world` ranks.

    Args:
        world: the number of ranks.
        kind: `cuda` (NCCL, one GPU per rank) or `gloo` (on CPUs).
        gpus: one GPU per rank, in the syntax of `CUDA_VISIBLE_DEVICES`.
    """

    def __init__(self, world: int, kind: str, gpus: Sequence[str] = ()) -> None:
        self.world, self.kind = world, kind
        self._gpus = tuple(gpus)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._folder: Path | None = None
        self._began = False

    @property
    def running(self) -> bool:
        """Whether a case is in progress; False after the processes were killed."""
        return self._began

    def begin(self, spec: Spec, roots: Sequence[Path]) -> None:
        """Begin a case: every rank binds the spec; the first call creates its context.

        Raises the same errors as `call`.
        """
        self.call("begin", [(spec, tuple(roots))] * self.world, _START)
        self._began = True

    def call(
        self,
        function: str | Callable[..., object],
        arguments: Sequence[tuple[Any, ...]],
        seconds: float,
    ) -> list[Any]:
        """Call a function on each rank with the arguments for it, and return the results.

        `function` is a method of `tlmatrix.distributed.process.Rank`, such as `run`, or
        a function of a module, which gets (backend, rank, world, *arguments).

        Raises:
            SpecError: the spec does not match the code that it names.
            EntryError: the code under test raised, on some ranks or on all.
            FindingsError: a rank did not answer within `seconds`, or its process ended.
        """
        if not self._processes:
            self._start()
        requests = [(list(sys.path), pickle.dumps((function, each))) for each in arguments]
        return [answer[1] for answer in self._send(requests, seconds)]

    def end(self) -> None:
        """End the case: ranks free their contexts; the processes stay."""
        if self._began and self._processes:
            self._began = False
            with contextlib.suppress(Exception):  # after an error the next case restarts the pool
                self.call("end", [()] * self.world, _START)

    def close(self) -> None:
        """End the processes."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            # Ranks exit when their socket closes, unless they hang.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0 if self.kind == "cuda" else 1)
        self._kill()

    # Requests -------------------------------------------------------------------------------

    def _send(self, requests: Sequence[tuple[Any, ...]], seconds: float) -> list[tuple[Any, ...]]:
        try:
            answers = self._exchange(requests, seconds)
        except BaseException:
            # Some rank still runs or has ended: later results would be unreliable.
            self._kill()
            raise
        failures = {rank: a[1] for rank, a in answers.items() if a[0] == "failed"}
        if failures and (len(failures) < self.world or not _equal(failures)):
            # The ranks' collectives no longer match.
            self._kill()
        elif failures and self.kind == "cuda":
            self._kill()  # after a CUDA error every later call in that context fails
        raise_failures(failures, self.world, _others(failures, answers, self.world))
        return [answers[rank] for rank in range(self.world)]

    def _exchange(
        self, requests: Sequence[tuple[Any, ...]], seconds: float
    ) -> dict[int, tuple[Any, ...]]:
        sent = time.monotonic()
        for connection, request in zip(self._connections, requests, strict=True):
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.send_bytes(pickle.dumps(request))
        pending = {connection: rank for rank, connection in enumerate(self._connections)}
        answers: dict[int, tuple[Any, ...]] = {}
        deadline = sent + seconds
        while pending:
            ready = wait(list(pending), max(deadline - time.monotonic(), 0))
            for each in ready:
                assert isinstance(each, Connection)
                rank = pending.pop(each)
                try:
                    answers[rank] = pickle.loads(each.recv_bytes())  # noqa: S301 - our own
                except (EOFError, ConnectionResetError):
                    raise exit_error(rank, self.world, *self._exit_status(rank)) from None
                if answers[rank][0] == "failed":
                    deadline = min(deadline, time.monotonic() + _GRACE)
            if not ready and pending:
                failed = any(answer[0] == "failed" for answer in answers.values())
                if failed:
                    break  # they wait for the failed rank; its failure is the error
                raise hang_error(self.world, answers, self._stacks(list(pending.values())), seconds)
        return answers

    # Processes ------------------------------------------------------------------------------

    def _start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tlmatrix-ranks-"))
        for rank in range(self.world):
            ours, theirs = socket.socketpair()
            command = [
                sys.executable, "-m", "tlmatrix.distributed.process",
                "--rank", str(rank), "--world", str(self.world), "--kind", self.kind,
                "--socket", str(theirs.fileno()), "--store", str(self._folder / "store"),
                "--stacks", str(self._stack_file(rank)),
            ]  # fmt: skip
            with self._output_file(rank).open("wb") as output:
                process = subprocess.Popen(  # noqa: S603 - our own module
                    command,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self._environment(),
                )
            theirs.close()
            self._processes.append(process)
            self._connections.append(Connection(ours.detach()))

    def _environment(self) -> Mapping[str, str]:
        """The environment of a rank: one thread, no multicast, and all GPUs, for peer access."""
        found = {**without_launcher(os.environ), **_NO_MULTICAST, "PYTHONUNBUFFERED": "1"}
        found |= dict.fromkeys(_ONE_THREAD, "1")
        found["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(_root()), os.environ.get("PYTHONPATH", "")])
        )
        found.setdefault("GLOO_SOCKET_IFNAME", "lo")
        found["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpus)
        return found

    def _kill(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        for process in self._processes:
            process.wait()
        for connection in self._connections:
            connection.close()
        self._processes, self._connections, self._began = [], [], False
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _stack_file(self, rank: int) -> Path:
        assert self._folder is not None
        return self._folder / f"stack-{rank}.txt"

    def _output_file(self, rank: int) -> Path:
        assert self._folder is not None
        return self._folder / f"output-{rank}.txt"

    def _stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        """The stacks of ranks, written by faulthandler."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                self._processes[rank].send_signal(signal.SIGUSR1)
        time.sleep(_STACK_WAIT)
        return {rank: _read(self._stack_file(rank)) for rank in ranks}

    def _exit_status(self, rank: int) -> tuple[int | None, str]:
        """The exit status of a process and its output."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._processes[rank].wait(_STACK_WAIT)
        return self._processes[rank].returncode, _read(self._output_file(rank))


def _root() -> Path:
    """The folder that contains the package tlmatrix."""
    return Path(__file__).resolve().parents[2]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _equal(failures: Mapping[int, Failure]) -> bool:
    return len({failure.signature for failure in failures.values()}) == 1


def _others(failures: Mapping[int, Failure], answers: Mapping[int, object], world: int) -> str:
    """Describe the ranks that did not fail."""
    returned = [rank for rank in answers if rank not in failures]
    waiting = [rank for rank in range(world) if rank not in answers]
    parts = [f"rank {rank} returned" for rank in returned]
    parts += [f"rank {rank} was still waiting {_GRACE:g} s later" for rank in waiting]
    return ", ".join(parts)


# Executors ----------------------------------------------------------------------------------------
#
# An executor owns what the cases of this process share, such as pools of rank processes.
# `tlmatrix.distributed.entry` runs the entry of a case on it.


_RANK = re.compile(r"simulated rank (\d+)")
_FIRST_RUN = 2
"""Factor of the time limit for the first run of a case on GPUs, which compiles kernels."""
_POOLS = 2
"""Pools that stay alive, each for another number of ranks; starting one takes seconds."""
_CONCURRENT = 8
"""Cases on several GPUs that all workers run at a time; they mostly compile.

With more, they would wait for each other: a GPU switches between processes every few
milliseconds, and a rank that waits for a peer needs both to be scheduled."""


class RankExecutor(Protocol):
    """Runs jobs on ranks."""

    def run(
        self, binding: Binding, jobs: Sequence[Job], sanitizers: SanitizerSession | None = None
    ) -> list[Answer]:
        """Run each rank's job and return the answers; `sanitizers` records findings of sanitizers.

        Raises:
            EntryError: the code under test raised.
            DevicesError: there are fewer GPUs than ranks.
            FindingsError: ranks hang, or a process ended.
        """

    def end(self) -> None:
        """End the current case and free its contexts."""

    def close(self) -> None:
        """Free everything."""


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
        """See `RankExecutor.run`."""
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
        """See `RankExecutor.end`."""
        if self._began is not None:
            self._began[1].end()
            self._began = None
        if self._lock is not None:
            self._lock.__exit__(None, None, None)
            self._lock = None

    def close(self) -> None:
        """See `RankExecutor.close`."""
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
        """See `RankExecutor.run`."""
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
    """The error for ranks that deadlock."""
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
