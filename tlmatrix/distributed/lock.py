"""Locks between processes of a machine; the system releases them when a process ends."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["file_lock", "machine_slot"]


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, against other processes and threads."""
    with path.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def machine_slot(name: str, slots: int) -> Iterator[None]:
    """Hold one of `slots` slots that this user's processes on the machine share; wait for one."""
    paths = [
        Path(tempfile.gettempdir()) / f"tlmatrix-{name}-{os.getuid()}-{slot}.lock"
        for slot in range(slots)
    ]
    for path in paths:
        file = path.open("w", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        try:
            yield
        finally:
            file.close()
        return
    with file_lock(paths[os.getpid() % slots]):
        yield
