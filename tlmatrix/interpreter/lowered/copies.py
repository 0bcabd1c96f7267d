"""Asynchronous copies: `cp.async`, and those of the TMA with its descriptors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.errors import EMPTY_TENSOR, LaunchError, Unsupported

from . import findings, races
from .arithmetic import NOTHING, statement
from .memory import View

if TYPE_CHECKING:
    from tlmatrix.interpreter.ir import nodes as ir
    from tlmatrix.interpreter.runtime.codecs import Array

    from .emit import Emitter
    from .machine import Machine
    from .memory import Memory
    from .values import Val


_COPIED = (4, 8, 16)
"""Bytes that `cp.async` copies."""


def _cp_async(e: Emitter, call: ir.Call) -> Val:
    """`ptx_cp_async(to, from, elements[, condition])`: zeros where the condition does not hold."""
    target, source = (e.pointer(each) for each in call.args[:2])
    count = int(call.args[2].value)
    size = count * TILE_DTYPES[target[1]].bits // 8
    if size not in _COPIED:
        raise e.refuse(f"cp.async of {size} bytes")
    condition = "None"
    if len(call.args) > 3:
        found = e.expr(call.args[3])
        condition = e.let(found, "inside").code
    views = [e.view(place, dtype, width=count) for place, dtype, _ in (target, source)]
    e.note_vector(target[1], count)
    e.line(
        f"cp_async(m, {views[0]}, {target[2].code}, {views[1]}, {source[2].code}, {count}, "
        f"{condition}, {e.mask}, {e.site()})"
    )
    return NOTHING


def _tma_load(e: Emitter, call: ir.Call) -> Val:
    """`tma_load(descriptor, barrier, to, coordinates…, cache hint)`."""
    if call.annotations.get("use_2cta"):
        raise e.refuse("a copy to two blocks")
    descriptor = e.descriptor(call.args[0])
    if descriptor is None:
        return _bulk_load(e, call)
    barrier = e.barrier(call.args[1])
    place, dtype, index = e.pointer(call.args[2])
    view = e.view(place, dtype)
    at = [e.expr(each).code for each in call.args[3:-1]]
    e.note_vector(dtype, 16)
    e.line(
        f"tma_load(m, {descriptor}, {barrier}, {view}, {index.code}, ({', '.join(at)},), "
        f"{e.mask}, {e.site()})"
    )
    return NOTHING


def _bulk_load(e: Emitter, call: ir.Call) -> Val:
    """`tma_load(to, from, barrier, bytes, cache hint)`: bytes in a row."""
    target, source = e.pointer(call.args[0]), e.pointer(call.args[1])
    barrier, size = e.barrier(call.args[2]), e.expr(call.args[3])
    views = [e.view(place, dtype) for place, dtype, _ in (target, source)]
    e.line(
        f"bulk_load(m, {views[0]}, {target[2].code}, {views[1]}, {source[2].code}, {barrier}, "
        f"{size.code}, {e.mask}, {e.site()})"
    )
    return NOTHING


def _tma_store(e: Emitter, call: ir.Call) -> Val:
    """`tma_store(descriptor, from, coordinates…, add, cache hint)`."""
    add = int(call.args[-2].value)
    descriptor = e.descriptor(call.args[0])
    if descriptor is None:
        return _bulk_store(e, call, add)
    e.written.add(descriptor)
    place, dtype, index = e.pointer(call.args[1])
    view = e.view(place, dtype)
    at = [e.expr(each).code for each in call.args[2:-2]]
    e.note_vector(dtype, 16)
    e.line(
        f"tma_store(m, {descriptor}, {view}, {index.code}, ({', '.join(at)},), {bool(add)}, "
        f"{e.mask}, {e.site()})"
    )
    return NOTHING


def _bulk_store(e: Emitter, call: ir.Call, add: int) -> Val:
    """`tma_store(to, from, bytes, add, cache hint)`: bytes in a row."""
    target, source = e.pointer(call.args[0]), e.pointer(call.args[1])
    size = e.expr(call.args[2])
    views = [e.view(*target[:2], writes=True), e.view(*source[:2])]
    e.line(
        f"bulk_store(m, {views[0]}, {target[2].code}, {views[1]}, {source[2].code}, {size.code}, "
        f"{bool(add)}, {e.mask}, {e.site()})"
    )
    return NOTHING


OPERATIONS: dict[str, Any] = {
    "tl.ptx_cp_async": _cp_async,
    "tirx.ptx_commit_group": statement("m.units.commit('copies', {mask})"),
    "tirx.ptx_wait_group": statement("m.units.wait('copies', {count}, {mask})"),
    "tl.tma_load": _tma_load,
    "tl.tma_load_im2col": _tma_load,
    "tl.tma_store": _tma_store,
    "tl.tma_store_arrive": statement("m.units.commit('stores', {mask})"),
    "tl.tma_store_wait": statement("m.units.wait('stores', {count}, {mask})"),
}


# What generated source calls ----------------------------------------------------------------------


@dataclass(frozen=True)
class Descriptor:
    """A tiled tensor map, as `cuTensorMapEncodeTiled` makes it.

    Attributes:
        name: of the tensor.
        memory: its bytes.
        itemsize: bytes of an element.
        shape, strides: of the tensor, the fastest dimension first; strides in bytes.
        box: extents of a copy.
        swizzle: 0 to 3.
    """

    name: str
    memory: Memory
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int

    @cached_property
    def _offsets(self) -> Array:
        """Of each element of the box its offset along each dimension: [dimensions, elements]."""
        shape = self.box[::-1]
        found: Array = np.indices(shape).reshape(len(shape), -1)[::-1]
        return found

    def elements(self, at: Any) -> tuple[Array, Array]:
        """Where elements of boxes are in the tensor, in bytes, and which are inside it.

        Args:
            at: the first coordinates of each box, an array [boxes] for each dimension.

        Both are [boxes, elements].
        """
        offsets = zip(at, self._offsets, strict=True)
        return self._inside([first[:, None] + step for first, step in offsets])

    def _inside(self, places: list[Array]) -> tuple[Array, Array]:
        """The same, by the coordinates of elements along each dimension: [boxes, ...]."""
        offset, inside = np.zeros(1, np.int64), np.ones(1, bool)
        for place, size, stride in zip(places, self.shape, self.strides, strict=True):
            inside = inside & (place >= 0) & (place < size)
            offset = offset + place * stride
        boxes = (len(offset), -1)
        return offset.reshape(boxes), np.broadcast_to(inside, offset.shape).reshape(boxes)

    @cached_property
    def shared(self) -> Array:
        """Where the elements of the box lie in shared memory, before it is swizzled: bytes."""
        found: Array = np.arange(math.prod(self.box)) * self.itemsize
        return found


def tensor_map(memory: Memory, numbers: tuple[Any, ...]) -> Descriptor:
    """A tensor map, of the arguments of `cuTensorMapEncodeTiled` from the rank on.

    Raises:
        Unsupported: it is interleaved, has element strides, or fills with NaN.
        LaunchError: the tensor is empty.
    """
    rank, *rest = (int(n) for n in numbers)
    shape, strides, box, steps = (tuple(rest[k * rank : (k + 1) * rank]) for k in range(4))
    interleave, swizzle, _, fill = rest[4 * rank : 4 * rank + 4]
    if interleave or fill or not strides[0] or any(step != 1 for step in steps):
        what = "interleaved, strided, NaN or less than a byte"
        raise Unsupported(f"a descriptor of {memory.name}: {what}")
    if 0 in shape:
        raise LaunchError.of("", EMPTY_TENSOR, memory.name)
    return Descriptor(memory.name, memory, strides[0], shape, strides, box, swizzle)


@dataclass(frozen=True)
class Im2colDescriptor(Descriptor):
    """A tensor map of pixels, as `cuTensorMapEncodeIm2col` makes it; the box: channels, pixels.

    Attributes:
        steps, lower, upper: of each spatial dimension the step between pixels, and the corners of
            their bounding box.
    """

    steps: tuple[int, ...] = ()
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()

    def elements(self, at: Any) -> tuple[Array, Array]:
        """As of tiles; coordinates of the first pixel, then the offset of a tap of the filter."""
        (channels, pixels), rank = self.box, len(self.shape)
        carry = np.arange(pixels)  # the number of a pixel along one dimension, and those after it
        places = [at[0][:, None, None] + np.arange(channels)]
        spatial = zip(at[1:], self.shape[1:], self.steps, self.lower, self.upper, strict=False)
        for k, (first, size, step, lower, upper) in enumerate(spatial):
            count = (size + upper - lower - 1) // step + 1
            carry = (first[:, None] - lower) // step + carry
            pixel = lower + carry % count * step + at[rank + k][:, None]
            places.append(pixel[:, :, None])
            carry = carry // count
        return self._inside([*places, (at[rank - 1][:, None] + carry)[:, :, None]])


def im2col_map(memory: Memory, numbers: tuple[Any, ...]) -> Im2colDescriptor:
    """A tensor map of pixels, of the arguments of `cuTensorMapEncodeIm2col` from the rank on.

    Raises:
        Unsupported, LaunchError: as `tensor_map`.
    """
    rank, *rest = (int(n) for n in numbers)
    shape, strides, steps = (tuple(rest[k * rank : (k + 1) * rank]) for k in range(3))
    spatial, rest = rank - 2, rest[3 * rank :]
    pixels, channels, *modes = rest[2 * spatial :]
    box = (channels, pixels, *(1,) * spatial)
    tile = tensor_map(memory, (rank, *shape, *strides, *box, *(1,) * rank, *modes))
    return Im2colDescriptor(
        *(tile.name, tile.memory, tile.itemsize, shape, strides, box[:2], tile.swizzle),
        steps[1:-1],
        tuple(rest[:spatial]),
        tuple(rest[spatial : 2 * spatial]),
    )


def swizzled(address: Array, mode: int) -> Array:
    """Addresses in shared memory as a swizzle exchanges them (PTX ISA, "Swizzling modes").

    Chunks of 16 bytes are exchanged by the number of their row of 128 bytes. `mode` is that of
    CUtensorMapSwizzle, which is how many bits take part: 0 to 3.
    """
    found: Array = address ^ ((address >> 7 & ((1 << mode) - 1)) << 4)
    return found


def cp_async(
    m: Machine,
    target: View,
    to: Any,
    source: View,
    start: Any,
    count: int,
    condition: Any,
    mask: Any,
    site: int,
) -> None:
    """Copy `count` elements of each lane to shared memory; they are there after a wait."""
    wanted = mask
    if condition is not None:
        condition = np.broadcast_to(condition, (m.count,))
        wanted = condition if mask is None else mask & condition
    value = source.load(start, count, wanted, site)
    if condition is not None:
        value = np.where(condition, value, value.dtype.type(0))
    target.store(to, value, count, mask, site, unit="copies")


def _boxes(m: Machine, view: View, index: Any, at: Any, mask: Any) -> tuple[Array, Array, Any]:
    """The lanes that copy, where their boxes lie in shared memory, and the coordinates."""
    lanes = m.lanes if mask is None else m.lanes[np.broadcast_to(mask, (m.count,))]
    starts = np.broadcast_to(view.bytes_at(index), (m.count,))[lanes]
    places = tuple(np.broadcast_to(np.asarray(x, np.int64), (m.count,))[lanes] for x in at)
    return lanes, starts, places


def tma_load(
    m: Machine,
    descriptor: Descriptor,
    barrier: Any,
    view: View,
    index: Any,
    at: Any,
    mask: Any,
    site: int,
) -> None:
    """Copy a box of a tensor to shared memory; what is outside the tensor is 0."""
    lanes, starts, places = _boxes(m, view, index, at, mask)
    if not len(lanes):
        return
    offset, inside = descriptor.elements(places)
    to = swizzled(starts[:, None] + descriptor.shared, descriptor.swizzle)
    _bring(m, descriptor.memory, offset, inside, lanes, view, to, barrier, site)


def _bring(
    m: Machine,
    memory: Memory,
    offset: Array,
    inside: Array,
    lanes: Array,
    view: View,
    to: Array,
    barrier: Any,
    site: int,
) -> None:
    """Copy elements to shared memory for lanes: offsets and places in bytes, [lanes, elements]."""
    read = np.broadcast_to(lanes[:, None], inside.shape)[inside]
    races.bulk_read(m, View(m, memory.name, memory, view.dtype), offset[inside], read, site)
    raw = _words(memory.data, offset, inside, view.itemsize)
    number = np.broadcast_to(np.asarray(barrier), (m.count,))[lanes]
    m.brought(lanes, number, to.shape[1] * view.itemsize, view, to, site)
    view.memory.typed(raw.dtype)[to // view.itemsize] = raw


def _words(data: Array, offset: Array, inside: Array, size: int) -> Array:
    """Elements of `size` bytes at byte offsets, 0 where they are not inside: [boxes, elements]."""
    kind = np.dtype(f"u{size}")
    words = data[: len(data) // size * size].view(kind)
    found: Array = np.zeros(offset.shape, kind)
    if (offset[inside] % size).any():
        raise ValueError("a tensor map of which strides are no multiple of its elements")
    found[inside] = words[offset[inside] // size]
    return found


def tma_store(
    m: Machine,
    descriptor: Descriptor,
    view: View,
    index: Any,
    at: Any,
    add: bool,
    mask: Any,
    site: int,
) -> None:
    """Copy a box from shared memory to a tensor; what is outside the tensor is left out."""
    lanes, starts, places = _boxes(m, view, index, at, mask)
    if not len(lanes):
        return
    offset, inside = descriptor.elements(places)
    start = swizzled(starts[:, None] + descriptor.shared, descriptor.swizzle)
    _take(m, descriptor.memory, offset, inside, lanes, view, start, add, site)


def _take(
    m: Machine,
    memory: Memory,
    offset: Array,
    inside: Array,
    lanes: Array,
    view: View,
    start: Array,
    add: bool,
    site: int,
) -> None:
    """Copy elements from shared memory for lanes, as `_bring` copies to it."""
    races.unit_reads(m, "stores", lanes, view, start, site)
    words = memory.typed(np.dtype(f"u{view.itemsize}"))
    source = view.memory.typed(words.dtype)
    whole = View(m, memory.name, memory, view.dtype)
    for k, box in enumerate(inside):  # boxes of several blocks may have elements in common
        at, raw = offset[k, box], source[start[k, box] // view.itemsize]
        places = at // view.itemsize
        if add:
            terms = (view.decoded(each.view(view.kind)) for each in (words[places], raw))
            raw = view.encoded(sum(terms), raw.shape).view(raw.dtype)
        changes = words[places] != raw
        races.bulk_write(m, whole, at, np.full(len(at), lanes[k]), changes, add, site)
        words[places] = raw
        if memory.written is not None:
            memory.written[at] = True


_BULK = 16
"""Bytes of which bulk copies move whole numbers, from and to multiples of them."""


def _whole(m: Machine, view: View, index: Any, size: Any, lanes: Array, site: int) -> None:
    """Report bulk copies of which the size or a place is no multiple of 16 bytes."""
    index, sizes = (np.broadcast_to(np.asarray(each), (m.count,)) for each in (index, size))
    at = index * view.itemsize + view.offset + view.memory.address
    bad = np.zeros(m.count, bool)
    bad[lanes] = ((at | sizes) % _BULK != 0)[lanes]
    if bad.any():
        findings.misaligned(m, view, index, bad, int(sizes[bad][0]), site, "bulk copy", _BULK)


def bulk_load(
    m: Machine,
    target: View,
    to: Any,
    source: View,
    start: Any,
    barrier: Any,
    size: Any,
    mask: Any,
    site: int,
) -> None:
    """Copy bytes in a row to shared memory."""
    lanes, ends, _ = _boxes(m, target, to, (), mask)
    if not len(lanes):
        return
    _whole(m, source, start, size, lanes, site)
    _whole(m, target, to, size, lanes, site)
    begins = np.broadcast_to(source.bytes_at(start), (m.count,))[lanes]
    step = np.arange(0, int(np.max(size)), target.itemsize)
    offset, inside = begins[:, None] + step, np.ones((len(lanes), len(step)), bool)
    _bring(m, source.memory, offset, inside, lanes, target, ends[:, None] + step, barrier, site)


def bulk_store(
    m: Machine,
    target: View,
    to: Any,
    source: View,
    start: Any,
    size: Any,
    add: bool,
    mask: Any,
    site: int,
) -> None:
    """Copy bytes in a row from shared memory to a tensor, or add them to it."""
    lanes, begins, _ = _boxes(m, source, start, (), mask)
    if not len(lanes):
        return
    _whole(m, source, start, size, lanes, site)
    _whole(m, target, to, size, lanes, site)
    ends = np.broadcast_to(target.bytes_at(to), (m.count,))[lanes]
    step = np.arange(0, int(np.max(size)), source.itemsize)
    offset, inside = ends[:, None] + step, np.ones((len(lanes), len(step)), bool)
    start = begins[:, None] + step
    _take(m, target.memory, offset, inside, lanes, source, start, add, site)


FUNCTIONS = (tensor_map, im2col_map, cp_async, tma_load, tma_store, bulk_load, bulk_store)
