"""The processes around this one: a launcher such as torchrun, its parent, and forks of it.

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
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


def in_fork(work: Callable[[], _Result], seconds: float | None = None) -> _Result:
    """What a function returns in a fork of this process, which prints nothing.

    Args:
        work: its result is pickled.
        seconds: the time after which the fork is killed.

    Raises:
        ForkError: it raised, took longer, or was ended by a signal.
    """
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            gc.disable()  # it would touch, and so copy, the memory of all objects of the parent
            end_with(parent)
            # TileLang prints what it cannot trace.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            os.close(reading)
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(_outcome(work))
        finally:
            os._exit(0)
    os.close(writing)
    sent = b""
    with os.fdopen(reading, "rb") as pipe:
        ready, _, _ = select.select([pipe], [], [], seconds)
        if ready:
            sent = pipe.read()
        else:
            os.kill(child, signal.SIGKILL)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not sent:
        why = f"it was ended by {signal.Signals(-ended).name}" if ended < 0 else f"exit {ended}"
        raise ForkError(why if ready else f"it took more than {seconds:g} s")
    result, error = pickle.loads(sent)  # noqa: S301 - of our own child
    if error:
        raise ForkError(error)
    found: _Result = result
    return found


def _outcome(work: Callable[[], object]) -> bytes:
    """The pickled result of a function, or what it raised."""
    try:
        return pickle.dumps((work(), ""))
    except BaseException as error:  # noqa: BLE001 - the parent raises it
        return pickle.dumps((None, f"{type(error).__name__}: {error}"))
