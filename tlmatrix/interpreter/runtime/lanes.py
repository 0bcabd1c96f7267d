"""What the lanes of a warp do together: shuffles, votes, reductions over a warp.

Values are arrays over the threads of a role, whose first axis is the thread; a role begins with
a whole warp. A lane that is switched off has no value: a read of it gives poison.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tlmatrix.interpreter.errors import InterpreterError
from tlmatrix.interpreter.gpu import WARP

from .memory import poison

__all__ = [
    "ballot",
    "elect",
    "match_lanes",
    "over_threads",
    "several_warps",
    "shuffle",
    "thread_steps",
    "uniform",
    "vote",
    "warp_reduce",
]


def uniform(value: Any, mask: Any, what: str) -> Any:
    """The one value that all active lanes have.

    Raises:
        InterpreterError: if they differ.
    """
    values = np.asarray(value)
    if values.ndim and mask is not None:
        keep = np.broadcast_to(mask, np.broadcast_shapes(values.shape, np.shape(mask)))
        values = np.broadcast_to(values, keep.shape)[keep]
    flat = values.reshape(-1)
    nan = flat != flat  # noqa: PLR0124
    if flat.size and not ((flat == flat[0]) | (nan & nan[0])).all():
        raise InterpreterError(f"{what} differs between the threads that do it together")
    first = flat[0] if flat.size else np.zeros((), values.dtype)[()]
    return first if values.dtype.kind == "f" else first.item()


def _lanes(value: Any, threads: int) -> Any:
    values = np.asarray(value)
    return values if values.shape == (threads,) else np.broadcast_to(values, (threads,))


def shuffle(kind: str, value: Any, delta: Any, width: int, mask: Any, threads: int) -> Any:
    """`T.shfl_*`: the value of another lane; of one that is switched off, poison."""
    values = _lanes(value, threads)
    if isinstance(delta, int):
        source, missing = _same_sources(kind, delta, width, threads)
    else:
        source, missing = _sources(kind, _lanes(delta, threads).astype(np.int64), width, threads)
    out: Any = values[source]
    if mask is not None:
        off = ~_lanes(mask, threads)[source]
        if off.any():
            missing = off if missing is None else missing | off
    if missing is not None:
        out[missing] = poison(str(out.dtype))
    return out


def source_lanes(kind: str, offset: Any, width: int, lane: Any) -> Any:
    """The lane that each takes from, in segments of `width` lanes.

    It is the lane itself where the source is outside of the segment; "xor" reaches earlier
    segments, and five bits of an offset count (PTX ISA, "shfl.sync").
    """
    start, offset = lane - lane % width, offset & 31
    source = {
        "xor": lane ^ offset,
        "down": lane + offset,
        "up": lane - offset,
        "idx": start + offset % width,
    }[kind]
    outside = source >= start + width
    if kind != "xor":
        outside |= source < start
    return np.where(outside, lane, source)


def _sources(kind: str, offset: Any, width: int, threads: int) -> tuple[Any, Any]:
    """Which lane each takes from, and which of them take from one that is not there, if any do."""
    lane = np.arange(threads)
    source = source_lanes(kind, offset, width, lane)
    missing = source >= threads
    return np.where(missing, lane, source), missing if missing.any() else None


@lru_cache(maxsize=1024)
def _same_sources(kind: str, delta: int, width: int, threads: int) -> tuple[Any, Any]:
    """The same for one offset of all lanes: kernels ask for the same few over and over."""
    return _sources(kind, np.int64(delta), width, threads)


def _warps(value: Any, mask: Any, threads: int, blank: Any) -> Any:
    """Values as [warps, 32], with `blank` where a lane is switched off."""
    values = np.array(_lanes(value, threads))
    if mask is not None:
        values[~np.broadcast_to(mask, (threads,))] = blank
    rest = -threads % WARP
    if rest:
        values = np.concatenate([values, np.full(rest, blank, values.dtype)])
    return values.reshape(-1, WARP)


def _spread(per_warp: Any, threads: int) -> Any:
    return np.repeat(per_warp, WARP)[:threads]


def several_warps(mask: Any) -> bool:
    """Whether threads of more than one warp are active."""
    active = np.flatnonzero(mask)
    return bool(active.size) and int(active[0]) // WARP != int(active[-1]) // WARP


def vote(kind: str, predicate: Any, mask: Any, threads: int, whole: bool) -> Any:
    """`T.any_sync`, `T.all_sync` and counts, over a warp or the `whole` role (int32)."""
    values = np.asarray(predicate) != 0
    blank = kind == "all"
    warps = _warps(values, mask, threads, blank)
    if whole:
        warps = warps.reshape(1, -1)
    found = {"any": warps.any(1), "all": warps.all(1), "count": warps.sum(1)}[kind]
    found = found.astype(np.int32)
    return np.full(threads, found[0]) if whole else _spread(found, threads)


def ballot(predicate: Any, mask: Any, threads: int) -> Any:
    """`T.ballot`: a bit for each lane of the warp whose predicate holds (uint64)."""
    warps = _warps(np.asarray(predicate) != 0, mask, threads, blank=False)
    weights = np.left_shift(np.uint64(1), np.arange(WARP, dtype=np.uint64))
    return _spread((warps * weights).sum(1).astype(np.uint64), threads)


def match_lanes(kind: str, value: Any, mask: Any, threads: int) -> Any:
    """`T.match_any_sync` and `T.match_all_sync`: which lanes hold the same value (uint32)."""
    values = _warps(value, None, threads, 0)
    active = _warps(np.ones(threads, bool), mask, threads, blank=False)
    same = (values[:, :, None] == values[:, None, :]) & active[:, None, :]
    weights = np.left_shift(np.uint64(1), np.arange(WARP, dtype=np.uint64))
    bits = (same * weights).sum(-1)
    if kind == "all":
        whole = (active * weights).sum(-1)[:, None]
        bits = np.where((bits == whole).all(1, where=active)[:, None], whole, 0)
    return bits.reshape(-1)[:threads].astype(np.uint32)


def over_threads(combine: Any, value: Any, groups: Any) -> Any:
    """`T.tvm_thread_allreduce`: a value combined over the threads of each group."""
    count = int(groups.max()) + 1
    parts = [combine.reduce(value[groups == g], dtype=value.dtype) for g in range(count)]
    out = np.array(parts, value.dtype)
    return out[groups]


def elect(size: int, low: int, threads: int) -> Any:
    """`T.shuffle_elect`: one lane of each group of `size` threads."""
    return (np.arange(low, low + threads) % size) == 0


_REDUCE: dict[str, Any] = {
    "sum": np.add,
    "max": np.fmax,
    "min": np.fmin,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
}


def warp_reduce(kind: str, value: Any, mask: Any, threads: int) -> Any:
    """`T.warp_reduce_*`: in the order of a butterfly, so that rounding is that of the GPU.

    All lanes of a warp must take part; where some are switched off the result is poison.
    """
    values = np.array(_lanes(value, threads))
    if threads % WARP:
        raise InterpreterError(f"T.warp_reduce_{kind} in a warp of {threads % WARP} lanes")
    warps = values.reshape(-1, WARP)
    for distance in (16, 8, 4, 2, 1):
        warps = _REDUCE[kind](warps, warps[:, np.arange(WARP) ^ distance]).astype(values.dtype)
    out = warps.reshape(-1)
    if mask is not None:
        whole = _warps(np.ones(threads, bool), mask, threads, blank=False).all(1)
        out[~_spread(whole, threads)] = poison(str(out.dtype))
    return out


def thread_steps(shape: tuple[int, ...], thread: Any, position: Any) -> list[tuple[Any, ...]]:
    """The steps in which threads run the iterations of a parallel loop, one a thread at most.

    Args:
        shape: extents of the loops.
        thread: the thread of an iteration, a function of the index along each loop.
        position: the order of the iterations of one thread, a function of the same.

    Returns:
        For each step the indices of its iterations: for each loop an int32 array.
    """
    grid = np.indices(shape, sparse=True)
    threads = np.broadcast_to(thread(*grid), shape).reshape(-1)
    positions = np.broadcast_to(position(*grid), shape).reshape(-1)
    order = np.lexsort((positions, threads))
    ordered = threads[order]
    first = np.searchsorted(ordered, ordered)
    step = np.arange(len(order)) - first
    at = np.unravel_index(order, shape)
    chosen = [step == number for number in range(int(step.max(initial=-1)) + 1)]
    return [tuple(index[mine].astype(np.int32) for index in at) for mine in chosen]
