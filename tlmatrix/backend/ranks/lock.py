"""A lock that the processes of a machine share."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["machine_lock"]


@contextmanager
def machine_lock(name: str) -> Iterator[None]:
    """Held by one process of this user at a time; the system frees it when that ends."""
    path = Path(tempfile.gettempdir()) / f"tlmatrix-{name}-{os.getuid()}.lock"
    with path.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
