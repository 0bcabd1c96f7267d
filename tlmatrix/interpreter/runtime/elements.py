"""The elements that an access touches: by index arrays of iterations, or of a tile.

Elements are numbered in the order of rows, so that a set of them is an array of integers,
whatever the shape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .memory import load_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .codecs import Array, Codec

__all__ = ["Access", "IndexArrays", "Tile", "element_values", "strides_of"]


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
        there: Any = np.ones((), bool)
        for i, size, stride in zip(self.index, self.shape, strides_of(self.shape), strict=True):
            at = np.asarray(i, np.int64)
            there = there & (at >= 0) & (at < size)
            flat = flat + at * stride
        if self.mask is not None:
            there = there & np.asarray(self.mask, bool)
        return np.broadcast_to(flat, extent), np.broadcast_to(there, extent)

    def elements(self) -> Array:
        """The elements touched, each once."""
        flat, there = self.numbered(self.extent)
        found: Array = np.unique(flat[there])
        return found


@dataclass(frozen=True)
class Tile:
    """An access of a region: for each dimension an index, or (start, extent, step)."""

    shape: tuple[int, ...]
    dims: tuple[Any, ...]

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Tile:
        """All of a buffer."""
        return cls(shape, tuple((0, size, 1) for size in shape))

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


def _split(flat: Array, shape: Sequence[int]) -> list[Array]:
    return list(np.unravel_index(flat, shape)) if len(shape) else []
