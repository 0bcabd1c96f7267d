"""The server that workers are forked from: a process with their imports, which runs no kernel."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext


def start_context() -> ForkServerContext:
    """The start method: a fork server with preloaded modules; it runs no kernel."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tlmatrix.engine.preload"])
    return context


def start_server() -> None:
    """Start the server of workers, which imports in the background while this process plans."""
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return
    from multiprocessing import forkserver

    start_context()
    # Ctrl-C reaches all processes of a terminal; this process ends its workers, they the server.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with suppress(OSError):
            forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)
