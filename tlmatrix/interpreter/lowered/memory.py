"""Memory that lanes access: global tensors, and the shared memory of blocks by bytes.

An access is one index a lane, in elements, or for a vector of `width` elements the index of its
first. Values are arrays [lanes] or [width, lanes] of the dtype that carries them (`dtypes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.runtime.codecs import CODECS

from . import findings, races

if TYPE_CHECKING:
    from tlmatrix.interpreter.runtime.codecs import Array, Codec

    from .clocks import Shadow
    from .machine import Machine

_LARGEST_VECTOR = 16
"""Bytes that one instruction moves."""
_POWERS = {2: 1, 4: 2, 8: 3, 16: 4}
"""Widths of vectors as powers of two."""
_WHOLE = {2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
"""By their bytes NumPy's dtypes of whole vectors."""


@dataclass
class Memory:
    """Bytes that lanes share.

    Attributes:
        name: what reports call it.
        data: its bytes.
        size: the bytes that a lane may access, from its start.
        starts: where those of each lane begin in `data`: [lanes], or 0.
        address: of the first byte on the device, modulo 16.
        shadow: of its accesses, where races are looked for.
        scope: "global" or "shared".
        shape: of a tensor without gaps.
        written: for each byte whether the kernel has written it; of global memory.
        itemsize: bytes of an element of the tensor.
    """

    name: str
    data: Array
    size: int
    starts: Any = 0
    address: int = 0
    shadow: Shadow | None = None
    scope: str = "global"
    written: Array | None = None
    shape: tuple[int, ...] | None = None
    itemsize: int = 1

    def typed(self, kind: Any) -> Array:
        """Its bytes as elements of a NumPy dtype."""
        size = np.dtype(kind).itemsize
        return self.data[: len(self.data) // size * size].view(kind)


def _turns(places: Array) -> list[Array]:
    """Indices of places, in parts of which each has no place twice, in their order."""
    order = np.argsort(places, kind="stable")
    first = np.flatnonzero(np.append(True, np.diff(places[order]) != 0))
    turn = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    return [order[turn == k] for k in range(int(turn.max(initial=-1)) + 1)]


class View:
    """Memory from some byte on, as elements of a dtype.

    Attributes:
        name: of the buffer.
        memory: whose part it is.
        offset: its first byte, from the start of the lane's memory.
        dtype: of its elements.
        itemsize: bytes of an element.
        kind: NumPy's dtype of its memory.
    """

    def __init__(
        self, machine: Machine, name: str, memory: Memory, dtype: str, offset: int = 0
    ) -> None:
        """A view of `memory` for the lanes of a machine."""
        self.name, self.memory, self.offset = name, memory, offset
        self._machine = machine
        self.dtype = dtype
        self._dtype = TILE_DTYPES[dtype]
        self.itemsize = max(1, self._dtype.bytes)
        self._codec: Codec | None = CODECS.get(self._dtype.codec or "")
        self.kind = np.dtype(self._dtype.memory)

    @cached_property
    def _array(self) -> Array:
        return self.memory.typed(self.kind)

    @cached_property
    def _first(self) -> Any:
        return (self.memory.starts + self.offset) // self.itemsize

    def _placed(self, index: Any, width: int, mask: Any, site: int, action: str) -> Any:
        """The places of elements in the typed array, in bounds, and the mask of those that are."""
        machine = self._machine
        index = np.asarray(index, np.int64)
        if index.ndim == 0:
            index = np.broadcast_to(index, (machine.count,))
        # Most accesses are right, which a look at all indices at once shows.
        first = -(self.offset // self.itemsize)
        last = (self.memory.size - self.offset) // self.itemsize - width
        if len(index) and (index.min() < first or index.max() > last):
            bad = (index < first) | (index > last)
            if mask is not None:
                bad &= mask
            if bad.any():
                findings.outside(machine, self, index, bad, width, site, action)
                mask = ~bad if mask is None else mask & ~bad
            index = np.clip(index, first, max(first, last))
        size = min(width * self.itemsize, _LARGEST_VECTOR)
        start = self.offset + self.memory.address
        if width > 1 or self.offset % self.itemsize:
            bits = int(np.bitwise_or.reduce(index)) * self.itemsize
            if width not in _POWERS or (bits | start) & (size - 1):
                odd = (index * self.itemsize + start) % size != 0
                if mask is not None:
                    odd &= mask
                if odd.any():
                    findings.misaligned(machine, self, index, odd, size, site, action)
        return index + self._first, mask

    def all_places(self, places: Array, width: int) -> Array:
        """The places of all elements of vectors: [width, lanes]."""
        return places if width == 1 else places + np.arange(width)[..., None]

    def load(self, index: Any, width: int = 1, mask: Any = None, site: int = 0) -> Array:
        """Elements of each lane; of lanes that are switched off anything."""
        places, mask = self._placed(index, width, mask, site, "read")
        if self.memory.shadow is not None:
            races.reads(self._machine, self, places, width, mask, site)
        if len(self._array) < width:
            return np.zeros((width, len(places)) if width > 1 else len(places), self._carrier)
        return self.decoded(self.elements(places, width))

    def _whole(self, places: Array, width: int) -> tuple[Array, Array] | None:
        """Memory as vectors, and the places of some among them; None if it is not so divided."""
        kind = _WHOLE.get(width * self.itemsize) if width in _POWERS else None
        if kind is None or int(np.bitwise_or.reduce(places)) & (width - 1):
            return None
        return self.memory.typed(kind), places >> _POWERS[width]

    def elements(self, places: Array, width: int) -> Array:
        """Elements in a row from places on, as memory has them: [lanes] or [width, lanes]."""
        whole = self._whole(places, width)
        if whole is None:
            found: Array = self._array[self.all_places(places, width)]
            return found
        return whole[0][whole[1]].view(self.kind).reshape(-1, width).T

    @cached_property
    def _carrier(self) -> Any:
        if self._dtype.kind in ("int", "uint"):
            return np.int64
        return np.bool_ if self._dtype.kind == "bool" else np.dtype(self._dtype.carrier)

    def store(
        self,
        index: Any,
        value: Any,
        width: int = 1,
        mask: Any = None,
        site: int = 0,
        unit: str = "",
    ) -> None:
        """Store a value of each lane that is switched on, or have an asynchronous unit do it."""
        shape = (width, self._machine.count) if width > 1 else (self._machine.count,)
        self.store_raw(index, self.encoded(value, shape), width, mask, site, unit)

    def store_raw(
        self, index: Any, raw: Array, width: int, mask: Any, site: int, unit: str = ""
    ) -> None:
        """As `store`, of elements as memory has them."""
        places, mask = self._placed(index, width, mask, site, "write")
        lanes = self._machine.lanes
        if mask is not None:
            places, raw, lanes = places[mask], raw[..., mask], lanes[mask]
        if not places.size:
            return
        if self.memory.shadow is not None:
            races.writes(self._machine, self, places, lanes, width, raw, site, unit)
        whole = self._whole(places, width)
        if whole is None:
            self._array[self.all_places(places, width)] = raw
        else:
            whole[0][whole[1]] = np.ascontiguousarray(raw.T).view(whole[0].dtype)[:, 0]
        self._mark(places, width)

    def _mark(self, places: Array, width: int) -> None:
        if self.memory.written is not None:
            self.memory.written[self.all_places(places, width) * self.itemsize] = True

    def encoded(self, value: Any, shape: Any) -> Array:
        """Values as the memory's own elements, broadcast to a shape."""
        value = np.asarray(value)
        if self._codec is not None:
            raw = self._codec.pack(value if value.ndim else value[None])
            raw = raw if value.ndim else raw[0]
        else:
            raw = value.astype(self.kind, copy=False)
        return np.broadcast_to(raw, shape)

    def update(
        self,
        index: Any,
        operand: Any,
        combine: Any,
        width: int,
        mask: Any,
        site: int,
        returns: bool = True,
    ) -> Array:
        """Atomically combine a value of each lane, in the order of lanes.

        Returns the values that each lane found, or with `returns` off anything.
        """
        places, mask = self._placed(index, width, mask, site, "atomic")
        where = self.all_places(places, width)
        operand = np.broadcast_to(np.asarray(operand), where.shape)
        before = np.zeros(where.shape, self._carrier)
        on = np.ones(len(places), bool) if mask is None else np.asarray(mask)
        if self.memory.shadow is not None:
            races.updates(self._machine, self, places, width, on, site)
        flat, values = where[..., on], operand[..., on]
        self._mark(places[on], width)
        if combine is np.add and self._codec is None and self.kind.kind in "fiu" and not returns:
            # Lanes that hit one element add in their order, as `ufunc.at` does.
            np.add.at(self._array, flat, values.astype(self.kind))
            return before
        found, at, terms = np.empty(flat.size, self._carrier), flat.ravel(), values.ravel()
        for turn in _turns(at):  # one lane after another at each element
            old = found[turn] = self.decoded(self._array[at[turn]])
            self._array[at[turn]] = self.encoded(combine(old, terms[turn]), old.shape)
        before[..., on] = found.reshape(flat.shape)
        return before

    def decoded(self, raw: Array) -> Array:
        """Elements as memory has them, as the dtype that carries values."""
        if self._codec is not None:
            return self._codec.widen(raw)
        return raw.astype(self._carrier, copy=False)

    @property
    def is_float(self) -> bool:
        """Whether its elements are floating-point numbers."""
        return self._dtype.kind == "float"

    def rounded(self, values: Any) -> Any:
        """Values rounded to the dtype of its elements."""
        return self._codec.round(values) if self._codec is not None else values

    # -- rows of bytes, for copies and matrix instructions

    def bytes_at(self, index: Any) -> Any:
        """Where elements begin in `memory.data`: [lanes]."""
        return np.asarray(index, np.int64) * self.itemsize + self.offset + self.memory.starts


class PackedView(View):
    """Memory as elements of 4 bits, two in a byte, of which the first is the lower half."""

    def __init__(
        self, machine: Machine, name: str, memory: Memory, dtype: str, offset: int = 0
    ) -> None:
        """A view of the bytes of `memory`."""
        super().__init__(machine, name, memory, "uint8", offset)
        self._packed, self._values = TILE_DTYPES[dtype], CODECS.get(TILE_DTYPES[dtype].codec or "")

    def _byte(self, index: Any, width: int, mask: Any, site: int, action: str) -> Any:
        """The first byte of elements; reports vectors that begin with the second half of one."""
        index = np.broadcast_to(np.asarray(index), (self._machine.count,))
        odd = (index % 2 != 0) & (width > 1) & (True if mask is None else mask)
        if odd.any():
            findings.misaligned(self._machine, self, index // 2, odd, width // 2, site, action)
        return index // 2

    def load(self, index: Any, width: int = 1, mask: Any = None, site: int = 0) -> Array:
        """As of a `View`."""
        first = self._byte(index, width, mask, site, "read")
        raw = super().load(first, max(1, width // 2), mask, site)
        found: Array
        if width == 1:
            found = raw >> np.asarray(index) % 2 * 4 & 15
        else:
            found = np.stack([raw & 15, raw >> 4], -2).reshape(width, -1)
        if self._values is not None:
            return self._values.widen(found.astype(np.uint8))
        return found if self._packed.kind == "uint" else (found ^ 8) - 8

    def encoded(self, value: Any, shape: Any) -> Array:
        """The bytes of an even number of elements."""
        value = np.broadcast_to(value, shape)
        raw = self._values.pack(value) if self._values is not None else value
        halves = (raw.astype(np.uint8) & 15).reshape(-1, 2, shape[-1])
        packed: Array = halves[:, 0] | halves[:, 1] << 4
        return packed[0] if len(packed) == 1 else packed

    def store_raw(
        self, index: Any, raw: Array, width: int, mask: Any, site: int, unit: str = ""
    ) -> None:
        """As of a `View`, of bytes."""
        first = self._byte(index, width, mask, site, "write")
        super().store_raw(first, raw, width // 2, mask, site, unit)
