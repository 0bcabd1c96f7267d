"""Ranks that need the same kernel compile it once: one does, the others read it from the disk."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.ranks.lock import file_lock

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["compile_in_turn"]


def compile_in_turn(lock: Path) -> None:
    """Have all processes that give the same `lock` enter TileLang's kernel cache one at a time.

    All ranks run one program, so they ask for a kernel at the same time: each would find none on
    the disk, and compile it. Without a cache on the disk there is nothing to wait for.
    """
    from tilelang import env
    from tilelang.cache.kernel_cache import KernelCache

    if not env.is_cache_enabled():
        return
    cached = KernelCache.cached

    @functools.wraps(cached)
    def in_turn(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as TileLang's
        with file_lock(lock):
            return cached(*args, **kwargs)

    KernelCache.cached = in_turn
