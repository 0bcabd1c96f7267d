"""Reading and writing buffers with TileLang's bounds rules.

A block is an access whose index in every dimension is a number or a range; its dims are given
as `int` or `(start, extent, step)`. Other accesses are gathers and scatters, one element a lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.errors import InterpreterError

from .masks import narrowed

if TYPE_CHECKING:
    from .codecs import Array, Codec
    from .masks import Dim

__all__ = [
    "agreed",
    "allocate",
    "at",
    "atomic_block",
    "atomic_lanes",
    "clip",
    "collapse",
    "gather",
    "inside",
    "iota",
    "item",
    "lanes",
    "load_block",
    "outside",
    "poison",
    "put",
    "require",
    "scatter",
    "store_block",
    "written_part",
]


def poison(dtype: str) -> Any:
    """What memory holds before its first write: NaN, or an integer no index can be."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return kind.type(np.nan)
    if kind.kind == "b":
        return np.True_
    return np.iinfo(kind).max - 3


def allocate(shape: tuple[int, ...], dtype: str) -> Array:
    """A new poisoned buffer."""
    return np.full(shape, poison(dtype), dtype)


@lru_cache(maxsize=1 << 8)
def iota(extent: int, axis: int, rank: int) -> Array:
    """`0 .. extent-1` along `axis` of a rank-`rank` array (int32), which is not written."""
    shape = [1] * rank
    shape[axis] = extent
    numbers = np.arange(extent, dtype=np.int32).reshape(shape)
    numbers.flags.writeable = False
    return numbers


def outside(name: str, indices: Sequence[Any], shape: Sequence[int]) -> None:
    """Report an access outside a buffer that nothing guards.

    Raises:
        InterpreterError: always.
    """
    spelled = ", ".join(
        f"{d[0]}:{d[0] + (d[1] - 1) * d[2] + 1}" if isinstance(d, tuple) else str(int(d))
        for d in indices
    )
    raise InterpreterError(
        f"index out of bounds: {name}[{spelled}], but {name} has shape {tuple(shape)}"
    )


def require(name: str, axis: int, index: int, shape: Sequence[int]) -> None:
    """Check a constant index, which TileLang never guards."""
    if not 0 <= index < shape[axis]:
        raise InterpreterError(
            f"index out of bounds: {name} has shape {tuple(shape)}, "
            f"and dimension {axis} is read at the constant index {index}"
        )


def at(
    array: Array, codec: Codec | None, index: tuple[int, ...], safe: Any, name: str, guard: bool
) -> Any:
    """One element: a Python int or bool, or a float of the buffer's precision."""
    for i, n in zip(index, array.shape, strict=True):
        if not 0 <= i < n:
            if guard:
                return safe
            outside(name, index, array.shape)
    if codec is not None:
        return codec.widen(array[(*index, None)])[0]
    value = array[index]
    return value if array.dtype.kind == "f" else value.item()


def item(array: Array, index: int, safe: int) -> int:
    """`at` for a row of integers that is guarded: most of what kernels read one by one."""
    return array.item(index) if 0 <= index < len(array) else safe


def put(
    array: Array, codec: Codec | None, index: tuple[int, ...], value: Any, name: str, guard: bool
) -> None:
    """Store one element."""
    for i, n in zip(index, array.shape, strict=True):
        if not 0 <= i < n:
            if guard:
                return
            outside(name, index, array.shape)
    if codec is not None:
        codec.narrow(array[(*index, None)], value)
    else:
        array[index] = value


def clip(
    dims: Sequence[Dim], shape: Sequence[int]
) -> tuple[bool, tuple[int | slice, ...], tuple[slice, ...], bool]:
    """Split a block into the part that lies inside.

    Returns:
        Whether anything is inside, the index of that part in the buffer and in the block, and
        whether the whole block is inside.
    """
    memory: list[int | slice] = []
    tile: list[slice] = []
    some = whole = True
    for dim, n in zip(dims, shape, strict=True):
        if type(dim) is tuple:
            start, extent, step = dim
            if start >= 0 and start + (extent - 1) * step < n and extent > 0:
                memory.append(slice(start, start + extent * step, step))
                tile.append(slice(0, extent))
                continue
            first = 0 if start >= 0 else -(start // step)
            last = min(extent, (n - 1 - start) // step + 1)
            if first > 0 or last < extent:
                whole = False
                if last <= first:
                    some = False
                    last = first
            memory.append(slice(start + first * step, start + last * step, step))
            tile.append(slice(first, last))
        else:
            if not 0 <= dim < n:  # type: ignore[operator]
                some = whole = False
            memory.append(dim)  # type: ignore[arg-type]
    return some, tuple(memory), tuple(tile), whole


def load_block(
    array: Array, codec: Codec | None, dims: Sequence[Dim], safe: Any, name: str, guard: bool
) -> Array:
    """A block of a buffer; where it is outside, `safe` (or an error where nothing guards)."""
    some, memory, tile, whole = clip(dims, array.shape)
    if not whole and not guard:
        outside(name, dims, array.shape)
    extents = tuple(dim[1] for dim in dims if isinstance(dim, tuple))
    # One element alone is indexed as an array, not as a number.
    place: Any = memory if extents else (*memory, None)
    if whole:
        part = codec.widen(array[place]) if codec is not None else array[place]
        return part if extents else part.reshape(())
    out = np.full(extents, safe, np.float32 if codec is not None else array.dtype)
    if some:
        part = array[place]
        out[tile] = codec.widen(part) if codec is not None else part
    return out


def written_part(
    array: Array, dims: Sequence[Dim], value: Any, where: Any, name: str, guard: bool
) -> tuple[Array, Any, Any] | None:
    """The view of a block that lies inside, and what of `value` and `where` goes there.

    None where nothing of it does. Outside is an error where nothing guards.
    """
    if guard:
        dims, value, where = narrowed(dims, value, where)
    some, memory, tile, whole = clip(dims, array.shape)
    if not whole:
        if not guard:
            outside(name, dims, array.shape)
        if not some:
            return None
        extents = tuple(dim[1] for dim in dims if isinstance(dim, tuple))
        if isinstance(value, np.ndarray):
            spread = value if value.shape == extents else np.broadcast_to(value, extents)
            value = spread[tile]
        if where is not None:
            where = np.broadcast_to(where, extents)[tile]
    place: Any = memory if any(isinstance(d, tuple) for d in dims) else (*memory, None)
    return array[place], value, where


def store_block(
    array: Array,
    codec: Codec | None,
    dims: Sequence[Dim],
    value: Any,
    where: Any,
    name: str,
    guard: bool,
) -> None:
    """Store a block; elements outside are skipped (or an error where nothing guards)."""
    part = written_part(array, dims, value, where, name, guard)
    if part is None:
        return
    view, value, where = part
    if codec is not None and isinstance(value, np.ndarray) and not value.flags.writeable:
        value = value.copy()
    store(view, codec, value, where)


def store(view: Array, codec: Codec | None, value: Any, where: Any) -> None:
    """Store a value, of which `where` selects elements, in a view of a buffer."""
    if codec is not None:
        codec.narrow(view, value, where)
    elif where is None:
        np.copyto(view, value, casting="unsafe")
    else:
        np.copyto(view, value, where=where, casting="unsafe")


def inside(
    array: Array, index: tuple[Any, ...], mask: Any, name: str, guard: bool
) -> tuple[tuple[Any, ...], Any]:
    """The index with outside lanes moved to 0, and which lanes are inside (None: all)."""
    ok: Any = None
    for i, n in zip(index, array.shape, strict=True):
        inside = (np.asarray(i) >= 0) & (np.asarray(i) < n)
        if np.count_nonzero(inside) < inside.size:
            ok = inside if ok is None else ok & inside
    if ok is None:
        return index, None
    if not guard:
        bad = ~ok if mask is None else ~ok & mask
        if bad.any():
            lane = tuple(np.argwhere(bad)[0])
            where = [np.broadcast_to(i, bad.shape)[lane] for i in index]
            outside(name, where, array.shape)
    return tuple(np.where(ok, i, 0) for i in index), ok


def gather(
    array: Array,
    codec: Codec | None,
    index: tuple[Any, ...],
    mask: Any,
    safe: Any,
    name: str,
    guard: bool,
) -> Any:
    """Elements at arbitrary indices, one a lane."""
    index, ok = inside(array, index, mask, name, guard)
    if 0 in array.shape:
        shape = np.broadcast_shapes(*(np.shape(i) for i in index))
        return np.full(shape, safe, np.float32 if codec is not None else array.dtype)
    out = array[index]
    if codec is not None:
        out = codec.widen(out)
    return out if ok is None else np.where(ok, out, out.dtype.type(safe))


def scatter(
    array: Array,
    codec: Codec | None,
    index: tuple[Any, ...],
    value: Any,
    mask: Any,
    name: str,
    guard: bool,
) -> None:
    """Store one element a lane; of lanes that write the same element the last wins."""
    index, ok = inside(array, index, mask, name, guard)
    keep = mask if ok is None else ok if mask is None else ok & mask
    if 0 in array.shape:
        return
    if keep is not None:
        shape = np.broadcast_shapes(np.shape(keep), np.shape(value), *(np.shape(i) for i in index))
        keep = np.broadcast_to(keep, shape)
        index = tuple(np.broadcast_to(i, shape)[keep] for i in index)
        value = np.broadcast_to(value, shape)[keep]
    elif isinstance(value, np.ndarray):
        # Lanes that differ in their value alone store to one element, each.
        shape = np.broadcast_shapes(value.shape, *(np.shape(i) for i in index))
        index = (np.broadcast_to(index[0], shape), *index[1:])
    if codec is not None:
        value = codec.pack(value)
    array[index] = value


def lanes(value: Any, shape: tuple[int, ...]) -> Array:
    """A local buffer with one copy a lane: shape `[*buffer, *lanes]`."""
    base = np.asarray(value)
    spread = base.reshape(base.shape + (1,) * len(shape))
    return np.broadcast_to(spread, base.shape + shape).copy()


def collapse(expanded: Array, rank: int) -> Array:
    """After a parallel loop: what every lane of a local buffer agrees on; the rest is poison."""
    flat = expanded.reshape((*expanded.shape[:rank], -1))
    blank = poison(str(expanded.dtype))
    if flat.shape[-1] == 0:
        return np.full(flat.shape[:-1], blank, expanded.dtype)
    first = flat[..., :1]
    same = ((flat == first) | ((flat != flat) & (first != first))).all(-1)  # noqa: PLR0124
    return np.where(same, first[..., 0], expanded.dtype.type(blank))


def agreed(expanded: Array) -> Any:
    """`collapse` of a variable: a scalar."""
    value = collapse(expanded, 1)[0]
    return value if expanded.dtype.kind == "f" else value.item()


# Atomics: on blocks whose elements are touched once, and one a lane in the order of lanes ---------

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
        if codec is None:
            found[lane] = array[place]
            _ATOMIC[kind].at(array, place, operand)  # integers wrap
            continue
        found[lane] = codec.widen(array[(*place, None)])[0]
        codec.narrow(array[(*place, None)], _ATOMIC[kind](found[lane], operand))
    if not previous:
        return None
    if active is None:
        return found.reshape(shape)
    out = np.zeros(shape, found.dtype)
    out[active] = found
    return out
