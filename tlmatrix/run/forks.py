"""Ends child processes that the code under test forks and that return from its call.

Such a child is a copy of the process that runs cases: it would run all remaining cases again.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tlmatrix.check.finding import Finding

if TYPE_CHECKING:
    from types import TracebackType

_SLOTS = 4096
_ENTRY = struct.Struct("ii")
"""Process id of a child, and whether it returned."""
_WAIT = 1.0
"""Most seconds to wait for children that are still running at the end of a case."""


class ForkGuard:
    """Ends, with status 70, a child process that leaves the context in which it was forked.

    `returned` is the number of such children, known when the context ends; children that still
    run then get a second. Children of `subprocess` are not affected.
    """

    def __init__(self) -> None:
        self.returned = 0

    def __enter__(self) -> Self:
        self._forks = _forks()
        self._forks.guarded = os.getpid()
        self._first = self._forks.count
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        forks = self._forks
        end_returned_child()
        slots = range(self._first, forks.count)
        deadline = time.monotonic() + _WAIT
        while any(forks.runs(slot) for slot in slots) and time.monotonic() < deadline:
            time.sleep(0.01)
        forks.guarded = 0
        self.returned = sum(forks.has_returned(slot) for slot in slots)


class _Forks:
    """The children of this process by the number of their fork, in memory that they share."""

    def __init__(self) -> None:
        self.count = 0
        """The number of forks of this process and its ancestors."""
        self.guarded = 0
        """The process inside a guard; 0 outside."""
        self._shared = mmap.mmap(-1, _SLOTS * _ENTRY.size)
        os.register_at_fork(
            before=self._clear, after_in_parent=self._count, after_in_child=self._enter
        )

    def _clear(self) -> None:
        self._write(self.count, 0, returned=0)

    def _count(self) -> None:
        self.count += 1

    def _enter(self) -> None:
        self._slot = self.count
        self._write(self._slot, os.getpid(), returned=0)
        self.count += 1

    def mark_returned(self) -> None:
        """Mark this process as a child that returned."""
        self._write(self._slot, os.getpid(), returned=1)

    def has_returned(self, slot: int) -> bool:
        """Whether a child returned."""
        return bool(self._read(slot)[1])

    def runs(self, slot: int) -> bool:
        """Whether a child runs and has not returned."""
        process, returned = self._read(slot)
        if returned:
            return False
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return not process  # It has not begun.
        return state not in "ZX"

    def _read(self, slot: int) -> tuple[int, int]:
        process, returned = _ENTRY.unpack_from(self._shared, slot % _SLOTS * _ENTRY.size)
        return process, returned

    def _write(self, slot: int, process: int, *, returned: int) -> None:
        _ENTRY.pack_into(self._shared, slot % _SLOTS * _ENTRY.size, process, returned)


@cache
def _forks() -> _Forks:
    """The forks of this process, observed from the first call on."""
    return _Forks()


def end_returned_child() -> None:
    """End this process if it is a child that was forked inside a `ForkGuard`."""
    forks = _forks()
    if forks.guarded and forks.guarded != os.getpid():
        forks.mark_returned()
        os._exit(70)


def returned_child() -> Finding:
    """The finding about a child process that returned from the code under test."""
    return Finding(
        check="entry",
        title="forks, and the child process returned from its call",
        hint="the child would run the remaining cases again, so it was ended: end a forked child "
        "with os._exit inside the call, or start processes with subprocess",
        pattern="fork",
    )
