"""TileLang's cache of compiled kernels on disk, shared by processes without repeated work.

`share_kernels` adds three things to it, in this process:

- the version of nvcc is part of a kernel's key, beside source, target, flags and TileLang, and so
  are the delays of `--perturb`;
- one process compiles a kernel while the others that need it wait and then load it;
- each kernel that was compiled or loaded is an event, from which runs report what they compiled
  and how long each kernel took.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import ExitStack, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.backend import perturb
from tlmatrix.backend.ahead import Tickets
from tlmatrix.cache_files import cache_folder, locked, make_private

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

EVENTS = "TLMATRIX_KERNEL_EVENTS"
"""Environment variable: the file to which the processes of a run append events of kernels."""

_MOST_TIMES = 1 << 20
"""Bytes of the file of compile times, beyond which its older half is dropped."""
_UNKNOWN = 10.0
"""Expected seconds of a kernel of which none was compiled before."""

_held = threading.local()
_installed = False


def share_kernels() -> None:
    """Share TileLang's cache between processes; see the module. Repeated calls do nothing."""
    global _installed  # noqa: PLW0603 - once a process
    if _installed:
        return
    _installed = True
    from tilelang.cache.kernel_cache import KernelCache

    KernelCache._get_base_key = staticmethod(_with_nvcc(KernelCache._get_base_key))  # noqa: SLF001
    KernelCache._load_kernel_from_disk = _locking(KernelCache._load_kernel_from_disk)  # noqa: SLF001
    KernelCache.cached = _unlocking(KernelCache.cached)
    if perturb.requested() is not None:
        perturb.install()


def _with_nvcc(base_key: Any) -> Any:  # noqa: ANN401 - TileLang's own
    from tlmatrix.backend.assembly.toolkit import find_toolkit

    toolkit = find_toolkit()
    version = toolkit.version if toolkit else ""

    def keyed() -> dict[str, Any]:
        return {**base_key(), "nvcc": version, **perturb.cache_key()}

    return keyed


def _locking(load: Any) -> Any:  # noqa: ANN401
    """Load a kernel from disk; if it is not there, lock its key until it has been compiled."""

    @wraps(load)
    def load_or_lock(self: Any, key: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        kernel = load(self, key, *args, **kwargs)
        if kernel is None:
            Tickets.of_run().wait_for(key)
            with ExitStack() as held:
                held.enter_context(locked(cache_folder() / "compiling" / f"{key}.lock"))
                kernel = load(self, key, *args, **kwargs)
                if kernel is None and (stack := getattr(_held, "locks", None)):
                    stack[-1].append((key, held.pop_all(), time.perf_counter()))
        if kernel is not None:
            _event({"key": key, "reused": True})
        return kernel

    return load_or_lock


def _unlocking(cached: Any) -> Any:  # noqa: ANN401
    """Call the cache, then release the locks of kernels that the call compiled."""

    @wraps(cached)
    def unlocked(self: Any, func: Any = None, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if not hasattr(_held, "locks"):
            _held.locks = []
        _held.locks.append([])
        done = False
        try:
            found = cached(self, func, *args, **kwargs)
            done = True
        finally:
            now = time.perf_counter()
            for key, held, since in _held.locks.pop():
                if done:
                    record_compilation(_name(func), key, now - since)
                held.close()
        return found

    return unlocked


def _name(func: Any) -> str:  # noqa: ANN401
    attributes = getattr(func, "attrs", None)
    return str(attributes["global_symbol"]) if attributes else "kernel"


def record_compilation(name: str, key: str, seconds: float) -> None:
    """Record that a kernel was compiled, for this run and for the plans of later ones."""
    fact = {"kernel": name, "key": key, "seconds": round(seconds, 3), "at": round(time.time(), 3)}
    _event(fact)
    path = cache_folder() / "kernel_times.jsonl"
    with suppress(OSError):
        make_private(path.parent)
        if path.is_file() and path.stat().st_size > _MOST_TIMES:
            lines = path.read_bytes().splitlines(keepends=True)
            path.write_bytes(b"".join(lines[len(lines) // 2 :]))
    _append(path, fact)


def _event(fact: Mapping[str, Any]) -> None:
    if path := os.environ.get(EVENTS):
        _append(Path(path), fact)


def _append(path: Path, fact: Mapping[str, Any]) -> None:
    with suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, (json.dumps(fact) + "\n").encode())
        finally:
            os.close(file)


def expected_seconds(names: Iterable[str]) -> dict[str, float]:
    """The mean seconds in which kernels of these names were compiled before; a guess of others."""
    spent: dict[str, list[float]] = {}
    try:
        lines = (cache_folder() / "kernel_times.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):
            fact = json.loads(line)
            spent.setdefault(fact["kernel"], []).append(float(fact["seconds"]))
    every = [seconds for each in spent.values() for seconds in each]
    guess = sum(every) / len(every) if every else _UNKNOWN
    return {name: sum(spent[name]) / len(spent[name]) if name in spent else guess for name in names}
