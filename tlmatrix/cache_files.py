"""Where caches are on disk, how their files are written and read, and locks between processes.

A cache that cannot be written, or that other users can write, is not used: one in the folder of
temporary files takes its place, with the same name in each process of this user.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import pickle
import shutil
import stat
import tempfile
import time
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_Content = TypeVar("_Content")

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_KEPT = 0.8
"""The part of the limit of a `FileCache` that is kept when files are removed."""
_WRITES = 64
"""Files that a process writes between two looks at the size of the folder."""

_notes: list[str] = []


def configured_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """`$TLMATRIX_CACHE`, else `$XDG_CACHE_HOME/tlmatrix`, else `~/.cache/tlmatrix`."""
    if folder := environment.get("TLMATRIX_CACHE"):
        return _expanded(folder)
    if base := environment.get("XDG_CACHE_HOME"):
        return Path(base) / "tlmatrix"
    return _expanded("~/.cache/tlmatrix")


def tilelang_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """TileLang's folder of compiled kernels: `$TILELANG_CACHE_DIR`, else `~/.tilelang/cache`."""
    return _expanded(environment.get("TILELANG_CACHE_DIR") or "~/.tilelang/cache")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of caches in use: the configured one, or one in the temporary folder."""
    folder = configured_folder(environment)
    return temporary_folder() if folder_problem(folder, private=True) else folder


def prepare_caches() -> str:
    """Replace caches that cannot be used, for this process and those it starts.

    Sets `TLMATRIX_CACHE` and `TILELANG_CACHE_DIR` where the folders cannot be used. Call it before
    TileLang is imported, which fails if its cache cannot be written.

    Returns:
        A line that names the replaced folders; "" if none is, or if a process that started this
        one replaced them.
    """
    replaced = {}
    for variable, folder, private in (
        ("TLMATRIX_CACHE", configured_folder(), True),
        ("TILELANG_CACHE_DIR", tilelang_folder(), False),
    ):
        if problem := folder_problem(folder, private=private):
            replaced[variable] = f"{folder} ({problem})"
            os.environ[variable] = str(temporary_folder() / ("" if private else "tilelang"))
    if not replaced:
        return ""
    note = (
        f"caches are in {temporary_folder()}, in place of {' and '.join(replaced.values())}; "
        f"{' and '.join(replaced)} can name other folders"
    )
    _notes.append(note)
    return note


def cache_notes() -> tuple[str, ...]:
    """The lines of all calls of `prepare_caches` in this process."""
    return tuple(_notes)


def folder_problem(folder: Path, *, private: bool) -> str:
    """Why a folder cannot be a cache; "" if it can. It need not exist.

    Args:
        folder: the folder.
        private: whether other users must not be able to write to it.
    """
    if folder.parts[0].startswith("~"):
        return "the home folder of this user is unknown"
    found = next(each for each in (folder, *folder.parents) if _exists(each))
    if not found.is_dir():
        return f"{found} is not a folder"
    if not os.access(found, os.W_OK | os.X_OK):
        return "cannot be written" if found == folder else f"{found} cannot be written"
    if private and found == folder:
        return _sharing(folder.stat())
    return ""


class FileCache:
    """Objects in the files of a folder, for all processes of this user.

    A key is a hash of everything that its object depends on, so entries never become stale.
    Damaged files count as missing; a folder that cannot be read or written is no error. Files that
    another user could have written are not read, because pickles are code. A folder that grows too
    large loses the files that were used longest ago.
    """

    def __init__(self, folder: Path, limit: int = 256 << 20) -> None:
        """A cache of at most `limit` bytes; the folder need not exist."""
        self._folder = folder
        self._limit = limit
        self._written = 0

    def __contains__(self, key: str) -> bool:
        return (self._folder / key).is_file()

    def find(self, key: str, kind: type[_Content]) -> _Content | None:
        """The object of a key; None if there is none of this kind, or its file is damaged."""
        path = self._folder / key
        try:
            found = pickle.loads(zlib.decompress(read_private(path)))  # noqa: S301 - our own file
        except Exception:  # noqa: BLE001 - anything can come of a damaged file
            return None
        if not isinstance(found, kind):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return found

    def add(self, key: str, content: object) -> None:
        """Write an object, if it can be written."""
        try:
            pickled = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
        except (RecursionError, pickle.PicklingError, TypeError, ValueError):
            return
        if write_file(self._folder / key, zlib.compress(pickled, 1)):
            if self._written % _WRITES == 0:
                self._trim()
            self._written += 1

    @contextlib.contextmanager
    def exclusive(self, key: str) -> Iterator[None]:
        """Hold the lock of a key: one process makes the entry, others wait and find it."""
        path = self._folder / f"{key}.lock"
        with locked(path):
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _trim(self) -> None:
        """Remove the files that were used longest ago, if all together are too large."""
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            files = [(s.st_mtime, s.st_size, e.path) for e in entries if (s := e.stat())]
            total = sum(size for _, size, _ in files)
            if total <= self._limit:
                return
            for used, size, path in sorted(files):
                if total <= self._limit * _KEPT or used > time.time():
                    return
                with contextlib.suppress(OSError):
                    Path(path).unlink()
                total -= size


def lock(path: Path, *, wait: bool = True) -> int:
    """Lock a file, which is created, or a folder, against other processes and threads.

    The lock ends when the returned descriptor is closed, at the latest with the process.

    Raises:
        BlockingIOError: another holds the lock, unless `wait`.
        OSError: the file cannot be opened.
    """
    flags = os.O_RDONLY if path.is_dir() else os.O_WRONLY | os.O_CREAT
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file; none if the file cannot be created, as in a read-only folder."""
    descriptor = None
    with contextlib.suppress(OSError):
        make_private(path.parent)
        descriptor = lock(path)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def write_file(path: Path, content: bytes) -> bool:
    """Write a file at once, so that no process reads a part of it; False if it cannot be written.

    The content goes to a temporary file beside it, which is then renamed. The file has mode 600,
    and folders that are created have mode 700.
    """
    temporary = None
    try:
        make_private(path.parent)
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


def read_private(path: Path) -> bytes:
    """The content of a file that may contain code.

    Raises:
        OSError: it cannot be read, or it belongs to another user or can be written by one.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        if problem := _sharing(os.fstat(file.fileno())):
            raise PermissionError(f"{path}: {problem}")
        return file.read()


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, with mode 700.

    Raises:
        OSError: it cannot be created.
    """
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _sharing(facts: os.stat_result) -> str:
    """How other users than root can write to a file or folder; "" if they cannot."""
    if facts.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user ({facts.st_uid}), and may contain their code"
    if facts.st_mode & _WRITABLE_BY_OTHERS:
        mode = stat.S_IMODE(facts.st_mode)
        return f"other users can write to it (mode {mode:o}), and it may contain their code"
    return ""


def temporary_folder() -> Path:
    """A private folder that all processes of this user find; else one of this process."""
    folder = Path(tempfile.gettempdir()) / f"tlmatrix-{os.geteuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700)
    if folder.is_symlink() or folder_problem(folder, private=True):
        return _folder_of_this_process()
    return folder


@cache
def _folder_of_this_process() -> Path:
    folder, process = Path(tempfile.mkdtemp(prefix="tlmatrix-")), os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # not in a fork
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:  # of a folder above it
        return False


def _expanded(folder: str) -> Path:
    """The folder with the home folder in place of `~`, which stays if there is none."""
    path = Path(os.path.expanduser(folder))  # noqa: PTH111 - Path.expanduser raises
    return path if path.parts[0].startswith("~") else path.absolute()
