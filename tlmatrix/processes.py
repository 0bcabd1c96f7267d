"""The processes around this one: a launcher such as torchrun, and the process it works for.

A launcher starts the same command on every rank. tlmatrix starts the processes of ranks itself,
because every case has its own number of ranks. So rank 0 of a launcher runs all cases, and its
other ranks do nothing.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

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
