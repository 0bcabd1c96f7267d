"""A process a rank: started once, fed case by case, watched, and started anew when one is lost.

The processes are children of their own (`tlmatrix.backend.ranks.process`), each with one GPU and
NCCL, or on CPUs with gloo. What any of them raises is told as one error. One that does not come
back in time is asked where it is, and ended with the others.
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
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.ranks.failure import Failure, raise_failures
from tlmatrix.backend.ranks.hang import hang, lost
from tlmatrix.launchers import without_launcher

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tlmatrix.backend.ranks.job import Answer, Job
    from tlmatrix.spec.models import Spec

__all__ = ["Crew"]

_GRACE = 5.0
"""Seconds that ranks have to answer once one of them failed."""
_START = 300.0
"""Seconds that processes have to start: PyTorch is imported, and a group formed."""
_LOOK = 0.5
"""Seconds that a rank has to write down where it is."""

_NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Crew:
    """The processes of `world` ranks.

    kind: `cuda` (NCCL, a GPU a rank) or `gloo` (on CPUs); gpus: as one writes them in
    `CUDA_VISIBLE_DEVICES`, one a rank.
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
        """Whether a case is under way; false once a rank was lost."""
        return self._began

    def begin(self, spec: Spec, roots: Sequence[Path]) -> None:
        """A case begins: every rank binds the spec, and will make its context at the first call.

        Raises:
            SpecError: the spec does not fit what it names.
            FindingsError: a process could not be started.
        """
        started = bool(self._processes)
        if not started:
            self._start()
        self._ask(("begin", spec, tuple(roots), list(sys.path)), _START)
        self._began = True

    def run(self, jobs: Sequence[Job], seconds: float) -> list[Answer]:
        """What each rank answers to its job.

        Raises:
            EntryError: the code under test raised, on some ranks or on all.
            FindingsError: a rank did not come back within `seconds`, or its process ended.
        """
        return [answer[1] for answer in self._ask_each([("job", job) for job in jobs], seconds)]

    def work(
        self, function: str, arguments: Sequence[tuple[Any, ...]], seconds: float
    ) -> list[Any]:
        """What `module:function` gives on each rank, called with (backend, rank, world, …).

        `arguments` are what comes behind these, by rank. Errors are those of `run`.
        """
        if not self._processes:
            self._start()
        requests = [("work", function, each, list(sys.path)) for each in arguments]
        return [answer[1] for answer in self._ask_each(requests, seconds)]

    def end(self) -> None:
        """The case ended: contexts go, processes stay."""
        if self._began and self._processes:
            self._began = False
            with contextlib.suppress(Exception):  # whoever cannot let go is started anew
                self._ask(("end",), _START)

    def close(self) -> None:
        """End the processes."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            # Ranks end by themselves when the socket closes, unless they hang.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0 if self.kind == "cuda" else 1)
        self._kill()

    # Requests -------------------------------------------------------------------------------

    def _ask(self, request: tuple[Any, ...], seconds: float) -> list[tuple[Any, ...]]:
        return self._ask_each([request] * self.world, seconds)

    def _ask_each(
        self, requests: Sequence[tuple[Any, ...]], seconds: float
    ) -> list[tuple[Any, ...]]:
        try:
            answers = self._exchange(requests, seconds)
        except BaseException:
            # Some rank is still at it, or gone: nothing after this could be believed.
            self._kill()
            raise
        failures = {rank: a[1] for rank, a in answers.items() if a[0] == "failed"}
        if failures and (len(failures) < self.world or not _same(failures)):
            # Ranks that failed on their own leave the group out of step.
            self._kill()
        elif failures and self.kind == "cuda":
            self._kill()  # a CUDA error leaves a context in which every later call fails
        raise_failures(failures, self.world, _idle(failures, answers, self.world))
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
                    raise lost(rank, self.world, *self._last_words(rank)) from None
                if answers[rank][0] == "failed":
                    deadline = min(deadline, time.monotonic() + _GRACE)
            if not ready and pending:
                failed = any(answer[0] == "failed" for answer in answers.values())
                if failed:
                    break  # they wait for who failed, which is told
                raise hang(self.world, answers, self._stacks(list(pending.values())), seconds)
        return answers

    # Processes ------------------------------------------------------------------------------

    def _start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tlmatrix-ranks-"))
        for rank in range(self.world):
            ours, theirs = socket.socketpair()
            command = [
                sys.executable, "-m", "tlmatrix.backend.ranks.process",
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
        """That of a rank: one thread, no multicast, and the GPUs of all ranks, for peers to map."""
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
        """Where ranks are, as faulthandler writes it."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                self._processes[rank].send_signal(signal.SIGUSR1)
        time.sleep(_LOOK)
        return {rank: _read(self._stack_file(rank)) for rank in ranks}

    def _last_words(self, rank: int) -> tuple[int | None, str]:
        """How a process ended, and the last lines that it wrote."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._processes[rank].wait(_LOOK)
        return self._processes[rank].returncode, _read(self._output_file(rank))


def _root() -> Path:
    """The folder that tlmatrix is imported from."""
    return Path(__file__).resolve().parents[3]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _same(failures: Mapping[int, Failure]) -> bool:
    return len({failure.alike for failure in failures.values()}) == 1


def _idle(failures: Mapping[int, Failure], answers: Mapping[int, object], world: int) -> str:
    """What became of the ranks that did not fail."""
    done = [rank for rank in answers if rank not in failures]
    left = [rank for rank in range(world) if rank not in answers]
    words = [f"rank {rank} returned" for rank in done]
    words += [f"rank {rank} was still waiting {_GRACE:g} s later" for rank in left]
    return ", ".join(words)
