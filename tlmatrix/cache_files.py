"""Where caches are on disk, and how their files are written."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """`$TLMATRIX_CACHE`, else `$XDG_CACHE_HOME/tlmatrix`, else `~/.cache/tlmatrix`."""
    if folder := environment.get("TLMATRIX_CACHE"):
        return Path(folder).expanduser()
    if base := environment.get("XDG_CACHE_HOME"):
        return Path(base) / "tlmatrix"
    return Path("~/.cache/tlmatrix").expanduser()


def write_file(path: Path, content: bytes) -> bool:
    """Write a file at once, so that no process reads a part of it; False if it cannot be written.

    The content goes to a temporary file beside it, which is then renamed.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink(missing_ok=True)
        return False
    return True
