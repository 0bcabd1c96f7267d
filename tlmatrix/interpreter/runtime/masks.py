"""Masks that are slices: what a last tile lets through is a stretch of its rows.

A slice of a block is cheaper than the block under a mask, to store as well as to follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .codecs import Array

__all__ = ["KEPT", "Dim", "kept", "narrowed", "run_of"]

Dim = int | tuple[int, int, int]
"""Of a block: an index, or a range as (start, extent, step)."""


KEPT: dict[tuple[Any, ...], tuple[Array, Array]] = {}
"""Masks and their negations by form and integers; generated source looks here first."""
_RUNS: dict[int, tuple[Array, tuple[int, int, int] | None]] = {}
"""The stretch that a kept mask lets through, by its id; with it, so that no other has that id."""
_MOST_KEPT = 256
"""Those of a tile of 128 x 128 take 32 KiB, both."""
_LARGEST_KEPT = 2**14


def kept(place: tuple[Any, ...], mask: Array) -> tuple[Array, Array]:
    """A mask and its negation, kept for the next time that they are asked for.

    Neither may be written. `emit.sharing` decides which masks come here.
    """
    pair = mask, np.logical_not(mask)
    if mask.size <= _LARGEST_KEPT:
        if len(KEPT) >= _MOST_KEPT:
            KEPT.clear()
            _RUNS.clear()
        for each in pair:
            each.flags.writeable = False
            _RUNS[id(each)] = each, _run(each)
        KEPT[place] = pair
    return pair


def run_of(mask: Any, shape: Sequence[int]) -> tuple[int, int, int] | None:
    """The axis of `shape`, and the stretch [first, last) along it, that a mask lets through.

    None unless the mask varies along one axis alone and lets one stretch through, as that of a
    last tile does: what it lets through is then a slice, which is cheaper than a mask.
    """
    if not isinstance(mask, np.ndarray) or mask.ndim != len(shape):
        return None
    known = _RUNS.get(id(mask))
    run = known[1] if known is not None else _run(mask)
    return run if run is not None and shape[run[0]] == mask.size else None


def _run(mask: Array) -> tuple[int, int, int] | None:
    """`run_of` of the mask's own shape."""
    size = mask.size
    if size not in mask.shape:
        return None
    axis = mask.shape.index(size)
    flat = mask.ravel()
    count = int(np.count_nonzero(flat))
    first = flat.argmax().item()
    # One stretch: from its first element on it holds as many as it counts.
    if np.count_nonzero(flat[first : first + count]) == count:
        return axis, first, first + count
    return None


def narrowed(
    dims: Sequence[Dim], value: Any, where: Any
) -> tuple[Sequence[Dim], Any, Any]:  # fmt: skip
    """A masked block as a smaller one without a mask, where its mask is a slice."""
    if where is None:
        return dims, value, where
    ranges = [k for k, dim in enumerate(dims) if type(dim) is tuple]
    run = run_of(where, [dims[k][1] for k in ranges])  # type: ignore[index]
    if run is None:
        return dims, value, where
    axis, first, last = run
    if isinstance(value, np.ndarray) and value.ndim:
        if value.ndim != len(ranges):
            return dims, value, where
        if value.shape[axis] != 1:
            value = value[(slice(None),) * axis + (slice(first, last),)]
    start, _, step = dims[ranges[axis]]  # type: ignore[misc]
    smaller = list(dims)
    smaller[ranges[axis]] = (start + first * step, last - first, step)
    return smaller, value, None
