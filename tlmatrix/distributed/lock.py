"""Locks between processes of a machine; the system releases them when a process ends."""

from __future__ import annotations

import fcntl
import functools
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tlmatrix.cache_files import temporary_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
    paths = [temporary_folder() / f"{name}-{slot}.lock" for slot in range(slots)]
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


def serialize_compilation(lock: Path) -> None:
    """Let one process at a time, of those with the same `lock`, enter TileLang's kernel cache.

    All ranks run the same program, so without the lock each of them would miss the cache on disk
    at the same time and compile the kernel. Does nothing if that cache is disabled.
    """
    from tilelang import env
    from tilelang.cache.kernel_cache import KernelCache

    if not env.is_cache_enabled():
        return
    cached = KernelCache.cached

    @functools.wraps(cached)
    def locked(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as TileLang's
        with file_lock(lock):
            return cached(*args, **kwargs)

    KernelCache.cached = locked
