"""Indices of accesses as indices into arrays: the part of a block or of lanes that lies inside.

A block comes as its dims with a mask over its ranges, other accesses as one index a lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .masks import narrowed
from .memory import clip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .codecs import Array
    from .masks import Dim

__all__ = ["Place", "block_of", "element_of", "first_lane", "lanes_inside", "lanes_of"]

Place = tuple[Any, Any]
"""An index into arrays of a buffer's shape, and a mask over what it selects, or None."""


def block_of(dims: Sequence[Dim], mask: Any, shape: Sequence[int]) -> Place | None:
    """The part of a block that is active and inside."""
    dims, _, mask = narrowed(dims, None, mask)
    some, memory, tile, whole = clip(dims, shape)
    if not some:
        return None
    if mask is None:
        return memory, None
    extents = tuple(d[1] for d in dims if isinstance(d, tuple))
    mask = np.broadcast_to(mask, extents)
    if not whole:
        mask = mask[tile]
    return (memory, mask) if np.count_nonzero(mask) else None


def lanes_inside(
    index: tuple[Any, ...], mask: Any, shape: Sequence[int], lanes: tuple[int, ...] = ()
) -> Array:
    """Which lanes are active and have an index inside."""
    full = np.broadcast_shapes(lanes, np.shape(mask), *(np.shape(i) for i in index))
    keep: Any = True if mask is None else np.broadcast_to(mask, full)
    for i, n in zip(index, shape, strict=True):
        keep = keep & (np.asarray(i) >= 0) & (np.asarray(i) < n)
    return np.broadcast_to(keep, full)


def lanes_of(
    index: tuple[Any, ...], mask: Any, shape: Sequence[int], lanes: tuple[int, ...] = ()
) -> Place | None:
    """The lanes that are active and inside, as index arrays of rank one."""
    keep = lanes_inside(index, mask, shape, lanes)
    found = tuple(np.broadcast_to(i, keep.shape)[keep] for i in index)
    return (found, None) if found[0].size else None


def first_lane(index: tuple[Any, ...], bad: Any) -> tuple[int, ...]:
    """The element of the first lane for which `bad` holds."""
    full = np.broadcast_shapes(np.shape(bad), *(np.shape(i) for i in index))
    lane = tuple(np.argwhere(np.broadcast_to(bad, full))[0])
    return tuple(int(np.broadcast_to(i, full)[lane]) for i in index)


def element_of(place: Place, bad: Any) -> tuple[int, ...]:
    """The first element of a place for which `bad` holds."""
    memory, _ = place
    bad = np.asarray(bad)
    if memory and isinstance(memory[0], np.ndarray):
        lane = int(np.flatnonzero(bad)[0])
        return tuple(int(i[lane]) for i in memory)
    offsets = iter(np.argwhere(bad)[0] if bad.ndim else ())
    return tuple(
        int(m.start + (m.step or 1) * next(offsets)) if isinstance(m, slice) else int(m)
        for m in memory
    )
