"""Assemblies kept on disk: nvcc takes seconds to minutes a kernel, and most never change.

A file is named by a hash of all that an assembly depends on, so nothing in it goes stale. What
cannot be read is made again. One process makes an assembly while others wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.backend.assembly.assembled import Assembly
from tlmatrix.matrix.cache import cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["kept"]


def kept(key: str, make: Callable[[], Assembly], folder: Path | None = None) -> Assembly:
    """The assembly of this key: read, or made, and written unless it failed."""
    path = (folder or cache_folder() / "assembly") / f"{key}.json"
    found = _read(path)
    if found is not None:
        return found
    with _alone(path):
        found = _read(path)
        if found is None:
            found = make()
            if not found.error and not found.missing:
                _write(path, found)
    return found


def _read(path: Path) -> Assembly | None:
    try:
        return Assembly.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _write(path: Path, assembly: Assembly) -> None:
    with contextlib.suppress(OSError):
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(assembly.to_json(), file)
        Path(temporary).replace(path)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """No other process makes the same; where files cannot be locked, they may."""
    lock = path.with_suffix(".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
