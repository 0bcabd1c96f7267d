"""Time limits and Ctrl-C for code that may swallow exceptions or never return to Python."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tlmatrix.check.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

_GRACE = 10.0
"""Seconds between the time limit and the call of `on_hang`, at most."""
_AGAIN = 2.0
"""Seconds after which a Ctrl-C that did not end the code is raised again."""
_COMPILERS = ("/tilelang/engine/", "/tilelang/cache/", "/tlmatrix/backend/assembly/")
"""Path fragments of code that compiles kernels."""
_FRAMES = 4
"""Innermost frames that the finding shows."""


class CaseTimeout(BaseException):
    """Raised at the time limit; not an `Exception`, so that few handlers catch it."""

    unwinds = True
    """See `tlmatrix.tracebacks`."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C; code under test that raises `KeyboardInterrupt` itself has a fault."""

    unwinds = True
    """See `tlmatrix.tracebacks`."""


class TimeLimit:
    """Interrupts the code inside `enforce` after `seconds`; None sets no limit.

    A signal raises `CaseTimeout` in Python code. Code that does not return to Python, such as a
    hanging kernel, never sees it: then a thread calls `on_hang` with the stack of the main thread.
    """

    def __init__(self, seconds: float | None, on_hang: Callable[[list[str]], object]) -> None:
        self._seconds = seconds
        self._on_hang = on_hang
        self.expired = False
        self.frames: list[str] = []
        """The stack at the time limit, from `traceback.format_stack`."""

    @contextmanager
    def enforce(self) -> Iterator[None]:
        """Apply the limit to the code inside."""
        if self._seconds is None:
            yield
            return
        grace = min(_GRACE, self._seconds)
        watchdog = threading.Timer(self._seconds + grace, self._hang)
        watchdog.daemon = True
        watchdog.start()
        on_main_thread = threading.current_thread() is threading.main_thread()
        if on_main_thread:
            handler = signal.signal(signal.SIGALRM, self._on_alarm)
            began = time.monotonic()
            outer, interval = signal.setitimer(signal.ITIMER_REAL, self._seconds)
        try:
            yield
        finally:
            watchdog.cancel()
            if on_main_thread:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, handler)
                if outer:
                    left = max(outer - (time.monotonic() - began), 0.001)
                    signal.setitimer(signal.ITIMER_REAL, left, interval)

    def _on_alarm(self, _signal: int, frame: FrameType | None) -> None:
        self.expired = True
        self.frames = traceback.format_stack(frame)
        raise CaseTimeout

    def _hang(self) -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001
        self._on_hang(traceback.format_stack(frame) if frame else [])


class Interrupts:
    """Records a Ctrl-C, which the code under test may turn into another exception.

    It may also be lost: Python discards exceptions of finalizers, and packages those of optional
    imports. So it is raised again every `_AGAIN` seconds until the watched code ends. Further ones
    of the user's are not raised: they would interrupt the code that handles the first.
    """

    def __init__(self) -> None:
        self.received = False
        self._due = True
        """Whether the next signal is raised: the first one, and those that `_repeat` sends."""
        self._ended = threading.Event()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Record a Ctrl-C inside and raise KeyboardInterrupt; an ignored one stays ignored."""
        on_main_thread = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGINT)
        if not on_main_thread or handler in (signal.SIG_IGN, None):
            yield
            return
        try:
            signal.signal(signal.SIGINT, self._on_interrupt)
            yield
        finally:
            self._ended.set()
            signal.signal(signal.SIGINT, handler)

    def _on_interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        if not self._due or (self.received and self._ended.is_set()):
            return  # of the user again, or raised again just as the code ended
        self._due = False
        if not self.received:
            self.received = True
            # Not by `threading`, whose locks the interrupted code may hold.
            _thread.start_new_thread(self._repeat, ())
        raise Interrupted

    def _repeat(self) -> None:
        while not self._ended.wait(_AGAIN):
            self._due = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def out_of_time(frames: Sequence[str] = ()) -> Finding:
    """The finding for a case that exceeded its time limit.

    Args:
        frames: the stack at the time limit, from `traceback.format_stack`; empty if unknown.
    """
    if any(part in frame for frame in frames for part in _COMPILERS):
        title = "the case exceeded its time limit while compiling"
        hint = "set a longer limit with `--timeout SECONDS`, or run fewer processes with `-n`"
    else:
        title = "the case exceeded its time limit"
        hint = (
            "an endless loop, or a barrier at which no thread arrives; `--timeout SECONDS` sets a "
            "longer limit"
        )
    detail = "".join(frames[-_FRAMES:]).rstrip()
    return Finding(check="timeout", title=title, hint=hint, detail=detail or None)
