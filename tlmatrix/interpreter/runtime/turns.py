"""The iterations of a parallel loop in the turns in which its threads run them."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["thread_turns"]


def thread_turns(shape: tuple[int, ...], thread: Any, place: Any) -> list[tuple[Any, ...]]:
    """For each turn the indices of the iterations that threads run then, one a thread at most.

    Args:
        shape: extents of the loops.
        thread: the thread of an iteration, a function of the index along each loop.
        place: of those of one thread it runs the one of the smallest place first.

    Returns:
        For each turn an int32 array [threads] for each loop.
    """
    grid = np.indices(shape, sparse=True)
    threads = np.broadcast_to(thread(*grid), shape).reshape(-1)
    places = np.broadcast_to(place(*grid), shape).reshape(-1)
    order = np.lexsort((places, threads))
    ordered = threads[order]
    first = np.searchsorted(ordered, ordered)
    turn = np.arange(len(order)) - first
    at = np.unravel_index(order, shape)
    chosen = [turn == number for number in range(int(turn.max(initial=-1)) + 1)]
    return [tuple(index[mine].astype(np.int32) for index in at) for mine in chosen]
