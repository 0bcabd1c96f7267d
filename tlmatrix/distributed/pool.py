"""Runs jobs on several ranks in a pool of one process per rank.

A pool serves many cases and restarts after a failure. Its processes run
`tlmatrix.distributed.process`, each with one GPU and NCCL, or on a CPU with gloo. Exceptions of
several ranks are reported as one error. If a rank hangs, the pool collects the stacks of the ranks
that did not answer and kills all processes.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.distributed.failures import Failure, exit_error, hang_error, raise_failures
from tlmatrix.processes import without_launcher

if TYPE_CHECKING:
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
