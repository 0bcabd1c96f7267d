"""Ctrl-C in a session: the first one ends the run in order, further ones only hasten the end."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from xdist.dsession import DSession

_SECONDS = 10.0
"""Seconds after the first Ctrl-C in which others do not interrupt pytest's own code."""


class CtrlC:
    """The handler of SIGINT of a session, from `install` to `restore`.

    The first Ctrl-C raises KeyboardInterrupt. With workers it does so between two events: at any
    other point the lock of the event queue may stay held, and pytest-xdist ends with an internal
    error. A second Ctrl-C would interrupt pytest while it ends the session, and the results and
    the command to continue would be lost; it kills the workers, which may hang. An ignored SIGINT,
    as in background jobs of a script, stays ignored.

    Args:
        workers: the session of pytest-xdist, if there is one.
        on_first: called at the first Ctrl-C.
    """

    def __init__(
        self, workers: DSession | None = None, on_first: Callable[[], object] = bool
    ) -> None:
        self._workers = workers
        self._on_first = on_first
        self._before: object = None
        self._first: float | None = None

    def install(self) -> None:
        """Handle SIGINT, if this is the main thread and SIGINT is not ignored."""
        on_main_thread = threading.current_thread() is threading.main_thread()
        if self._before is not None or not on_main_thread:
            return
        if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):
            return
        if self._workers is not None:
            self._workers.worker_tlmatrix_interrupted = _interrupt
        self._before = signal.signal(signal.SIGINT, self._handle)

    def restore(self) -> None:
        """Restore the handler that `install` replaced."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)  # type: ignore[arg-type]
            self._before = None

    def note(self) -> None:
        """Note the first Ctrl-C, which a case received."""
        if self._first is None:
            self._first = time.monotonic()
            self._on_first()

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        if self._first is None:
            self.note()
            if self._workers is None:
                _interrupt()
            # In a thread, because this one may hold the lock of the queue.
            event: tuple[str, dict[str, object]] = ("tlmatrix_interrupted", {})
            queue = self._workers.queue
            threading.Thread(target=queue.put, args=(event,), daemon=True).start()
        elif time.monotonic() - self._first > _SECONDS:
            _interrupt()
        elif self._workers is not None:
            for node in list(getattr(self._workers, "_active_nodes", ())):
                with suppress(AttributeError, OSError):
                    node.gateway._io.popen.kill()  # noqa: SLF001 - no public way


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt
