"""What covered programs call: whether a mask holds, and how much of a tile is inside."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["clipped", "outcome", "seen"]


def seen(hit: list[int], slot: int, test: Any) -> Any:
    """Count a scalar condition where it is evaluated, and give it back."""
    hit[slot if test else slot + 1] += 1
    return test


def outcome(slot: int, test: Any, mask: Any = None) -> int:
    """The slot of a condition that holds in every lane, in none, or partly.

    Only the active lanes of `mask` are asked; where there is none, slot 0, which is not read.
    """
    if mask is None:
        held, lanes = int(np.count_nonzero(test)), np.size(test)
    else:
        active = np.broadcast_to(mask, np.broadcast_shapes(np.shape(mask), np.shape(test)))
        held, lanes = int(np.count_nonzero(test & active)), int(np.count_nonzero(active))
    if lanes == 0:
        return 0
    return slot if held == lanes else slot + 2 if held else slot + 1


def clipped(slot: int, *blocks: tuple[tuple[Any, ...], tuple[int, ...]]) -> int:
    """The slot of blocks that are not inside: false if nothing of one is, else partly.

    A block is its dimensions, each an index or (first, extent, step), and the shape it lies in.
    """
    for dims, shape in blocks:
        for dim, n in zip(dims, shape, strict=True):
            first, extent, step = dim if isinstance(dim, tuple) else (dim, 1, 1)
            last = first + (extent - 1) * step
            if last < 0 or first >= n:
                return slot + 1
    return slot + 2
