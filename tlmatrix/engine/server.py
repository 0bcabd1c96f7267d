"""The server that workers are forked from: a process with their imports, which runs no kernel."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.context import ForkServerContext


class _Uses:
    """How often workers were started."""

    count = 0


def start_context() -> ForkServerContext:
    """The start method of workers: a fork server with preloaded modules."""
    _Uses.count += 1
    return _context()


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tlmatrix.engine.preload"])
    return context


@contextmanager
def importing() -> Iterator[None]:
    """Have the server of workers import in the background, while this process plans.

    It is ended if no worker was started: it would keep the output of this process open.
    """
    before = _Uses.count
    _start()
    try:
        yield
    finally:
        if _Uses.count == before:
            server = getattr(forkserver, "_forkserver", None)
            if process := getattr(server, "_forkserver_pid", None):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


def _start() -> None:
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return
    _context()
    # Ctrl-C reaches all processes of a terminal; this process ends its workers, they the server.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with suppress(OSError):
            forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)
