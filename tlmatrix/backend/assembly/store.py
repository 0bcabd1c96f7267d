"""Cache of compiled kernels on disk; nvcc takes seconds to minutes per kernel.

A file is named by a hash of everything that its content depends on, so entries never become
stale. An unreadable file counts as missing. One process compiles a kernel while others that need
it wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from typing import TYPE_CHECKING

from tlmatrix.backend.ahead.tickets import Tickets
from tlmatrix.backend.assembly.compiled import CompiledKernel
from tlmatrix.cache_files import cache_folder, make_private, write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def load_or_compile(
    key: str, compile_kernel: Callable[[], CompiledKernel], folder: Path | None = None
) -> CompiledKernel:
    """Return the kernel of this key from the cache, or compile it; successes are cached."""
    path = _path(key, folder)
    found = _read(path)
    if found is not None:
        return found
    Tickets.of_run().wait_for(key)
    with _exclusive(path):
        found = _read(path)
        if found is None:
            found = compile_kernel()
            if not found.error and not found.missing:
                _write(path, found)
    return found


def is_stored(key: str, folder: Path | None = None) -> bool:
    """Whether the cache has the kernel of this key."""
    return _path(key, folder).is_file()


def _path(key: str, folder: Path | None) -> Path:
    return (folder or cache_folder() / "assembly") / f"{key}.json"


def _read(path: Path) -> CompiledKernel | None:
    try:
        return CompiledKernel.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _write(path: Path, kernel: CompiledKernel) -> None:
    write_file(path, json.dumps(kernel.to_json()).encode("utf-8"))


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Lock a cache entry against other processes; no lock if the folder is not writable."""
    lock = path.with_suffix(".lock")
    try:
        make_private(path.parent)
        file = lock.open("w")
    except OSError:
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
