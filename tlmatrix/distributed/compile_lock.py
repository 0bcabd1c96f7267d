"""A lock that makes one rank compile a kernel while the others wait and load it from the cache."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tlmatrix.distributed.lock import file_lock

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["serialize_compilation"]


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
