"""The processes around this one: a launcher such as torchrun, its parent, forks, NVIDIA's MPS.

A launcher starts the same command on every rank. tlmatrix starts the processes of ranks itself,
because every case has its own number of ranks. So rank 0 of a launcher runs all cases, and its
other ranks do nothing.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import select
import signal
import sys
import threading
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

_TORCHRUN_PREFIX = "TORCHELASTIC_"
_RANK_VARIABLES = frozenset(
    {
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
        "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
    }
)  # fmt: skip


def idle_rank(environment: Mapping[str, str] | None = None) -> str:
    """The reason why this process has nothing to do: it is not rank 0 of a launcher; "" otherwise.

    Args:
        environment: environment variables; by default those of this process.
    """
    given = os.environ if environment is None else environment
    rank = given.get("RANK", "0")
    if f"{_TORCHRUN_PREFIX}RUN_ID" not in given or rank == "0":
        return ""
    return (
        f"this process is rank {rank} of {given.get('WORLD_SIZE', '?')} of torchrun: rank 0 runs "
        "all cases, and starts the processes of their ranks itself"
    )


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without a launcher's variables, which do not apply to our own ranks."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _RANK_VARIABLES and not name.startswith(_TORCHRUN_PREFIX)
    }


_PDEATHSIG = 1
"""PR_SET_PDEATHSIG of Linux."""


@cache
def shared_context() -> bool:
    """Whether NVIDIA's MPS runs, which gives the processes on a GPU one context.

    Without it their contexts take turns, and each small operation waits for all other processes.
    """
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))  # noqa: S108 - its default
    try:
        os.kill(int((pipes / "nvidia-cuda-mps-control.pid").read_text()), 0)
    except PermissionError:
        return True  # of another user
    except (OSError, ValueError):
        return False
    return True


def end_with(process: int) -> None:
    """Kill this process when `process` ends, or its own parent; on Linux only.

    The kernel does so for the parent, also while a call holds Python's lock. A thread waits for
    `process` if that is another one, such as the process that asked a fork server for this one.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if process == os.getppid():
        return
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        os._exit(70)
    except OSError:  # an old kernel
        return
    threading.Thread(target=_wait, args=(handle,), daemon=True, name="tlmatrix-parent").start()


def _wait(handle: int) -> None:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    while not poll.poll():
        pass
    os.kill(os.getpid(), signal.SIGKILL)


class ForkError(RuntimeError):
    """A fork raised, took too long or was ended by a signal; says which."""


class Fork(Generic[_Argument, _Result]):
    """A fork of this process that calls one function with each argument it gets; prints nothing.

    The first call forks, and so does that after one in which the fork ended. To fork a process
    with much memory costs more than most calls do, so that calls which may share one should.
    """

    def __init__(self, work: Callable[[_Argument], _Result]) -> None:
        """Start nothing yet.

        Args:
            work: its arguments and its results are pickled.
        """
        self._work = work
        self._parent = os.getpid()
        self._process = 0
        self._connection: Connection | None = None

    def __call__(self, argument: _Argument, seconds: float | None = None) -> _Result:
        """What the function returns.

        Args:
            argument: passed to the function.
            seconds: the time after which the fork is killed.

        Raises:
            ForkError: it raised, took longer, or was ended by a signal.
        """
        if self._connection is not None and self._connection.poll(0):
            self.close()  # it ended meanwhile, as with the thread that forked it
        if self._connection is None:
            self._connection = self._started()
        sent, late = b"", False
        try:
            with suppress(OSError, EOFError):  # the fork has ended
                self._connection.send(argument)
                late = not self._connection.poll(seconds)
                sent = b"" if late else self._connection.recv_bytes()
        except BaseException:  # its answer may still come
            self.close()
            raise
        if not sent:
            ended = self.close()
            why = f"it was ended by {signal.Signals(-ended).name}" if ended < 0 else f"exit {ended}"
            raise ForkError(f"it took more than {seconds:g} s" if late else why)
        result, error = pickle.loads(sent)  # noqa: S301 - of our own child
        if error:
            raise ForkError(error)
        found: _Result = result
        return found

    def close(self) -> int:
        """End the fork, if there is one; returns its exit status, negative for a signal.

        Another fork of this process, which has a copy of this object, leaves it alone.
        """
        if self._connection is None or self._parent != os.getpid():
            return 0
        self._connection.close()
        self._connection = None
        with suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)  # which changes nothing where it has ended
        return os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])

    def __del__(self) -> None:
        self.close()

    def _started(self) -> Connection:
        from multiprocessing import Pipe

        mine, theirs = Pipe()
        self._process = os.fork()
        if self._process:
            theirs.close()
            return mine
        try:
            gc.freeze()  # a collection would touch, and so copy, the memory of all objects
            end_with(self._parent)
            # TileLang prints what it cannot trace.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            mine.close()
            while True:
                theirs.send_bytes(_outcome(partial(self._work, theirs.recv())))
        finally:
            os._exit(0)


def in_fork(work: Callable[[], _Result]) -> _Result:
    """What a function returns in a fork of this process (`Fork`).

    Raises:
        ForkError: it raised, or was ended by a signal.
    """
    fork: Fork[None, _Result] = Fork(lambda _: work())
    try:
        return fork(None)
    finally:
        fork.close()


def _outcome(work: Callable[[], object]) -> bytes:
    """The pickled result of a function, or what it raised."""
    try:
        return pickle.dumps((work(), ""))
    except BaseException as error:  # noqa: BLE001 - the parent raises it
        return pickle.dumps((None, f"{type(error).__name__}: {error}"))
