"""Tracebacks as the writer of a kernel wants them: their own frames."""

from __future__ import annotations

import sysconfig
import traceback
from functools import cache
from importlib.util import find_spec
from pathlib import Path

__all__ = ["is_ours", "short_path", "user_traceback"]


def user_traceback(error: BaseException) -> str:
    """The frames of an error that belong to the user, innermost last.

    Frames of this package, of PyTorch, TileLang and Python's own library (functools, contextlib)
    are left out.

    One line a frame, `file:line in function: source`, so that terminals make it a link. An error
    with no frame of the user's keeps its innermost frame.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not is_ours(frame.filename)]
    lines = []
    for frame in own or frames[-1:]:
        source = f": {frame.line}" if frame.line else ""
        lines.append(f"{short_path(frame.filename)}:{frame.lineno} in {frame.name}{source}")
    return "\n".join(lines)


def is_ours(filename: str) -> bool:
    """Whether a file is no user's: this package's, PyTorch's, TileLang's or Python's own."""
    if _lies_in(filename, _foreign_folders()):
        return True
    # What is installed lies below Python's own folder.
    installed = "site-packages" in Path(filename).parts
    return not installed and _lies_in(filename, (Path(sysconfig.get_path("stdlib")).resolve(),))


@cache
def _foreign_folders() -> tuple[Path, ...]:
    """Folders of code that is not the user's: this package's, PyTorch's, TileLang's."""
    folders = [Path(__file__).resolve().parent]
    for name in ("torch", "tilelang", "tvm", "tvm_ffi"):
        try:
            found = find_spec(name)
        except (ImportError, ValueError):
            found = None
        if found is not None and found.origin:
            folders.append(Path(found.origin).resolve().parent)
    return tuple(folders)


def _lies_in(filename: str, folders: tuple[Path, ...]) -> bool:
    if filename.startswith("<"):
        return True
    path = Path(filename).resolve()
    return any(path.is_relative_to(folder) for folder in folders)


def short_path(filename: str) -> str:
    """A file as one would write it in the working directory."""
    path = Path(filename)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
