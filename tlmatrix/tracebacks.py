"""Tracebacks reduced to the user's own frames, and exceptions that end a case or a run."""

from __future__ import annotations

import signal
import sysconfig
import traceback
from functools import cache
from importlib.util import find_spec
from pathlib import Path


def user_traceback(error: BaseException) -> str:
    """The frames of an error in the user's code, innermost last.

    Frames of this package, of PyTorch, TileLang and Python's own library (functools, contextlib)
    are left out.

    Each frame is a line `file:line in function: source`, which terminals turn into a link. If no
    frame is the user's, the innermost frame is kept.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not is_ours(frame.filename)]
    lines = []
    for frame in own or frames[-1:]:
        source = f": {frame.line}" if frame.line else ""
        lines.append(f"{short_path(frame.filename)}:{frame.lineno} in {frame.name}{source}")
    return "\n".join(lines)


def is_ours(filename: str) -> bool:
    """Whether a file belongs to this package, PyTorch, TileLang or Python itself."""
    if _lies_in(filename, _foreign_folders()):
        return True
    # site-packages is inside Python's own folder.
    installed = "site-packages" in Path(filename).parts
    return not installed and _lies_in(filename, (Path(sysconfig.get_path("stdlib")).resolve(),))


@cache
def _foreign_folders() -> tuple[Path, ...]:
    """The folders of this package, PyTorch and TileLang."""
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
    """A path relative to the working directory, if it is inside."""
    path = Path(filename)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


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
