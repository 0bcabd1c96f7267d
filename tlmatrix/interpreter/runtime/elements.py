"""The elements that an access touches: of a block, of a tile, or one for each iteration.

A block comes as its dims with a mask over its ranges, other accesses as one index an iteration.
Sanitizers ask for a `Place`, the part that lies inside; explanations for sets of elements, numbered
in the order of rows, so that a set is an array of integers whatever the shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .masks import narrowed
from .memory import clip, load_block

if TYPE_CHECKING:
    from .codecs import Array, Codec
    from .masks import Dim

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


# Sets of elements --------------------------------------------------------------------------

Iteration = tuple[tuple[int, int], ...]
"""Which iteration of each loop is running, outermost first: (number of the loop, its variable)."""


def strides_of(shape: Sequence[int]) -> list[int]:
    """How far apart neighbours along each dimension are, in elements."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return strides[::-1]


def element_values(array: Array, codec: Codec | None, flat: Array) -> Array:
    """Elements of an array by their numbers, in float64; the array may have any strides."""
    if array.ndim == 0:
        return np.full(len(flat), float(array), np.float64)
    part = array[np.unravel_index(flat, array.shape)]
    if codec is not None:
        part = codec.widen(np.ascontiguousarray(part))
    return np.asarray(part, np.float64)


@dataclass(frozen=True)
class IndexArrays:
    """An access of iterations: an index array for each dimension, broadcast over `extents`."""

    shape: tuple[int, ...]
    index: tuple[Any, ...]
    mask: Any
    extents: tuple[int, ...] = ()

    def kept(self) -> IndexArrays:
        """With copies of what the program may overwrite."""
        index = tuple(np.array(i) if isinstance(i, np.ndarray) else i for i in self.index)
        mask = np.array(self.mask) if isinstance(self.mask, np.ndarray) else self.mask
        return replace(self, index=index, mask=mask)

    @property
    def extent(self) -> tuple[int, ...]:
        """The shape of the iterations."""
        parts = [np.shape(i) for i in self.index]
        return np.broadcast_shapes(self.extents, np.shape(self.mask), *parts)

    def numbered(self, extent: tuple[int, ...]) -> tuple[Array, Array]:
        """Each iteration's element, and whether there is one: in bounds, and active."""
        flat: Any = np.zeros((), np.int64)
        for i, stride in zip(self.index, strides_of(self.shape), strict=True):
            flat = flat + np.asarray(i, np.int64) * stride
        there = lanes_inside(self.index, self.mask, self.shape, extent)
        return np.broadcast_to(flat, extent), there

    def elements(self) -> Array:
        """The elements touched, each once."""
        flat, there = self.numbered(self.extent)
        found: Array = np.unique(flat[there])
        return found

    def holds(self, flat: int) -> bool:
        """Whether an element is touched."""
        return bool((self.elements() == flat).any())


@dataclass(frozen=True)
class Tile:
    """An access of a region: for each dimension an index, or (start, extent, step)."""

    shape: tuple[int, ...]
    dims: tuple[Any, ...]

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Tile:
        """All of a buffer."""
        return cls(shape, tuple((0, size, 1) for size in shape))

    def kept(self) -> Tile:
        """As that of `IndexArrays`: its dims are numbers."""
        return self

    @property
    def ranges(self) -> list[int]:
        """The dimensions that are ranges."""
        return [k for k, d in enumerate(self.dims) if isinstance(d, tuple)]

    @property
    def extent(self) -> tuple[int, ...]:
        """The sizes of the ranges."""
        return tuple(self.dims[k][1] for k in self.ranges)

    def inner(self, flat: Array) -> tuple[list[Array], Array]:
        """Of elements the position along each range, and which of them are in the region."""
        there = np.ones(len(flat), bool)
        found = []
        for at, dim in zip(_split(flat, self.shape), self.dims, strict=True):
            if not isinstance(dim, tuple):
                there &= at == dim
                continue
            start, extent, step = dim
            place, rest = np.divmod(at - start, step)
            there &= (place >= 0) & (place < extent) & (rest == 0)
            found.append(place)
        return found, there

    def outer(self, places: Sequence[Array]) -> Array:
        """The elements at positions along the ranges, those outside the buffer left out."""
        flat: Any = np.zeros((), np.int64)
        there: Any = np.ones((), bool)
        remaining = iter(places)
        for dim, size, stride in zip(self.dims, self.shape, strides_of(self.shape), strict=True):
            at = next(remaining) * dim[2] + dim[0] if isinstance(dim, tuple) else np.int64(dim)
            there = there & (at >= 0) & (at < size)
            flat = flat + at * stride
        flat, there = np.broadcast_arrays(flat, there)
        found: Array = flat[there]
        return found

    def holds(self, flat: int) -> bool:
        """Whether an element is in the region."""
        return bool(self.inner(np.array([flat]))[1][0])

    def elements(self) -> Array:
        """The elements touched."""
        return self.outer(np.meshgrid(*map(np.arange, self.extent), indexing="ij", sparse=True))

    def matrix(self, array: Array, codec: Codec | None) -> Array:
        """Its values."""
        return load_block(array, codec, self.dims, 0, "", guard=True)


Access = IndexArrays | Tile


@dataclass(frozen=True)
class Event:
    """A write in the block that is followed, and what it read.

    `rule` says how elements written depend on elements read: "lanes" (each lane on what it
    read), or the name of a tile operation, with its own `extra`.
    """

    number: int
    site: int
    iteration: Iteration
    write: Access
    reads: tuple[tuple[int, Access], ...]
    rule: str
    extra: tuple[Any, ...] = ()


def _split(flat: Array, shape: Sequence[int]) -> list[Array]:
    return list(np.unravel_index(flat, shape)) if len(shape) else []
