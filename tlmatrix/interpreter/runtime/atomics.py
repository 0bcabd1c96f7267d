"""Atomics: on blocks whose elements are touched once, and one a lane in the order of lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .memory import inside, store, written_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .codecs import Array, Codec
    from .masks import Dim

__all__ = ["atomic_block", "atomic_lanes"]


_ATOMIC: dict[str, Any] = {
    "add": np.add,
    "max": np.fmax,
    "min": np.fmin,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def atomic_block(
    kind: str,
    array: Array,
    codec: Codec | None,
    dims: Sequence[Dim],
    value: Any,
    where: Any,
    name: str,
    guard: bool,
) -> None:
    """An atomic on each element of a block, each touched once; elements outside are skipped."""
    part = written_part(array, dims, value, where, name, guard)
    if part is None:
        return
    view, value, where = part
    old = codec.widen(view) if codec is not None else view
    store(view, codec, _ATOMIC[kind](old, value), where)


def atomic_lanes(
    kind: str,
    array: Array,
    codec: Codec | None,
    index: tuple[Any, ...],
    value: Any,
    mask: Any,
    shape: tuple[int, ...],
    name: str,
    guard: bool,
    previous: bool,
) -> Any:
    """One atomic a lane, in the order of the lanes; with `previous` what each found there."""
    index, ok = inside(array, index, mask, name, guard)
    keep = mask if ok is None else ok if mask is None else ok & mask
    active = None if keep is None else np.broadcast_to(keep, shape)
    at_lane = tuple(
        np.broadcast_to(i, shape).ravel() if active is None else np.broadcast_to(i, shape)[active]
        for i in index
    )
    spread = np.broadcast_to(value, shape)
    values = spread.ravel() if active is None else spread[active]
    if not previous and codec is None:
        _ATOMIC[kind].at(array, at_lane, values)
        return None
    found = np.zeros(len(values), np.float32 if codec is not None else array.dtype)
    for lane, operand in enumerate(values):
        place = tuple(int(i[lane]) for i in at_lane)
        old = codec.widen(array[(*place, None)])[0] if codec is not None else array[place]
        found[lane] = old
        new = _ATOMIC[kind](old, operand)
        if codec is not None:
            codec.narrow(array[(*place, None)], new)
        else:
            array[place] = new
    if not previous:
        return None
    if active is None:
        return found.reshape(shape)
    out = np.zeros(shape, found.dtype)
    out[active] = found
    return out
