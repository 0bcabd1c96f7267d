"""Ends a process when the one that it works for has ended, also by SIGKILL."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading

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
