"""Exceptions that end a case or a run, unlike errors of the code under test."""

from __future__ import annotations

import signal


def unwinds(error: BaseException) -> bool:
    """Whether an exception ends a case or a run: its time limit, a real Ctrl-C.

    Handlers for errors of the code under test catch `BaseException` and raise these again. Any
    other `SystemExit`, `KeyboardInterrupt` or outcome of pytest comes from the code under test.
    Classes of such exceptions have an attribute `unwinds`. Without a handler that raises one of
    them, every `KeyboardInterrupt` counts as Ctrl-C.
    """
    if isinstance(error, Exception):
        return False
    if getattr(error, "unwinds", False):
        return True
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return default and isinstance(error, KeyboardInterrupt)
