"""Turns of workers that share a machine's memory: cases run side by side, a retry runs alone."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Turns:
    """Locks of one GPU, or of the machine, in two files beside `path`; without a path none.

    The locks are of processes: a child that a case forks does not hold them.

    A case holds a shared lock. A case that ran out of memory runs again under the exclusive one:
    it waits for the cases that run, and others wait for it, with their cached memory freed.
    """

    def __init__(self, path: str = "") -> None:
        self._path = path

    @contextmanager
    def shared(self, release: Callable[[], object]) -> Iterator[None]:
        """Run beside other cases; `release` frees cached memory before a wait."""
        if not self._path:
            yield
            return
        with _opened(f"{self._path}.gate") as gate, _opened(f"{self._path}.lock") as lock:
            try:
                fcntl.lockf(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                release()
                fcntl.lockf(gate, fcntl.LOCK_EX)
            fcntl.lockf(lock, fcntl.LOCK_SH)
            fcntl.lockf(gate, fcntl.LOCK_UN)
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Run while no other case does."""
        with _opened(f"{self._path}.gate") as gate, _opened(f"{self._path}.lock") as lock:
            # No case can start from here on; those that run end first.
            fcntl.lockf(gate, fcntl.LOCK_EX)
            fcntl.lockf(lock, fcntl.LOCK_EX)
            yield

    def __bool__(self) -> bool:
        return bool(self._path)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    """A file that is created; closing it releases its lock, also if the process is killed."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield file
    finally:
        os.close(file)
