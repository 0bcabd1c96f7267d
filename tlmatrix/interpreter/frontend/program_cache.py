"""Caches what is made of a kernel on disk, for all processes that run the same kernels.

That is its generated programs, and what its lowered code needs of arguments. A file's name is a
hash of everything its content depends on: the kernel's IR, the options, the sources of the
interpreter, and the versions of Python and of the libraries. Damaged files are made and written
again; a cache that cannot be read or written is no error. Files that another user could have
written are not read, because programs are code. A folder that grows too large loses the
files that were used longest ago.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import platform
import sys
import time
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from tlmatrix import dtypes, interpreter
from tlmatrix.cache_files import cache_folder, read_private, write_file
from tlmatrix.interpreter.sync.externs import modelled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.interpreter.generate import Options

_Content = TypeVar("_Content")

_LIMIT = 256 << 20
"""Bytes of all files together."""
_KEPT = 0.8
"""The part of the limit that is kept when files are removed."""
_WRITES = 64
"""Files that a process writes between two looks at the size of the folder."""


class ProgramCache:
    """Objects in the files of a folder."""

    def __init__(self, folder: Path, limit: int = _LIMIT) -> None:
        self._folder = folder
        self._limit = limit
        self._written = 0

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


def program_cache() -> ProgramCache | None:
    """The cache in use; None if `$TLMATRIX_PROGRAMS` is `off`."""
    if os.environ.get("TLMATRIX_PROGRAMS") == "off" or not _interpreter():
        return None
    return _cache_in(cache_folder() / "programs")


@cache
def _cache_in(folder: Path) -> ProgramCache:
    return ProgramCache(folder)


def program_key(ir: str, options: Options) -> str:
    """The name of the file of a program, by the JSON of its kernel and its options."""
    from tilelang import tvm

    return _key(
        ir,
        sorted(options.sanitizers) if options.sanitizers is not None else None,
        [options.guard, options.traced, options.covered, options.recorded, options.wide],
        options.arch,
        [name for name in modelled() if name in ir],
        # TileLang infers layouts under it.
        _texts(tvm.transform.PassContext.current().config),
    )


def lowered_key(ir: str, arch: str, configs: Mapping[str, object]) -> str:
    """The name of the file of what the lowered code of a kernel needs."""
    return _key(ir, "lowered", arch, _texts(configs))


def _key(ir: str, *depends: object) -> str:
    return hashlib.sha256(f"{(_interpreter(), *depends)}\n{ir}".encode()).hexdigest()


def _texts(configs: Mapping[str, object]) -> list[tuple[str, str]]:
    return sorted((str(k), str(v)) for k, v in configs.items())


@cache
def _interpreter() -> str:
    """A hash of the interpreter's sources and of the versions it runs with; "" without sources."""
    import tilelang

    folder = Path(interpreter.__file__).parent
    files = sorted(folder.rglob("*.py"))
    if not files:
        return ""
    files.append(Path(dtypes.__file__))
    versions = (np.__version__, torch.__version__, tilelang.__version__, platform.machine())
    digest = hashlib.sha256(repr((sys.version, sys.flags.optimize, *versions)).encode())
    for file in files:
        digest.update(str(file.relative_to(folder.parent)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()
