"""`T.copy`, `T.fill`, `T.transpose`, `T.im2col`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.analysis.expressions import equal_extents, ranges
from tlmatrix.interpreter.emit.access import check_constants, is_guarded, skips_outside
from tlmatrix.interpreter.emit.numbers import cast, round_into
from tlmatrix.interpreter.emit.tiles import (
    TileOperation,
    checked_view,
    matched,
    operand,
    region,
    region_view,
)
from tlmatrix.interpreter.emit.values import Val, is_float, numpy_name
from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.runtime.mathematics import to_int
from tlmatrix.interpreter.runtime.memory import clip, load_block, outside, store_block

from .tables import Operations

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.tiles import BufferRegion
    from tlmatrix.interpreter.ir.nodes import Call, Region
    from tlmatrix.interpreter.runtime.codecs import Array, Codec
    from tlmatrix.interpreter.runtime.elements import Event, Tile
    from tlmatrix.interpreter.runtime.masks import Dim


# `T.copy`: predicated on both sides, cast to the destination's dtype ------------------------------


class Copy(TileOperation):
    """`T.copy(src, dst)`; `T.async_copy` moves the same."""

    name = rule = "copy"
    reads = ("src",)

    def __init__(self, e: Emitter, call: Call) -> None:
        self.call = call
        src, dst = (region(e, arg) for arg in call.args[:2])
        self.src, self.dst = self.predicated = matched(e, src, dst, "T.copy")

    @staticmethod
    def overwritten(call: Call) -> Region | None:
        """The destination, where both sides have the same extents."""
        src, dst = call.args[:2]
        target: Region = dst
        return target if equal_extents(ranges(src), ranges(dst)) else None

    @property
    def moves(self) -> tuple[BufferRegion, BufferRegion] | None:
        """Source and destination."""
        return self.src, self.dst

    def emit(self, e: Emitter) -> None:
        """Write the copy; where it may be outside, with a test."""
        src, dst = self.src, self.dst
        check_constants(e, src)
        check_constants(e, dst)
        conditions = [*src.conditions, *dst.conditions]
        if not conditions:
            _emit_inside(e, src, dst)
            return
        with e.w.block(f"if {' and '.join(dict.fromkeys(conditions))}"):
            _emit_inside(e, src, dst)
        rounding = None
        if dst.buf.dtype != src.buf.dtype:
            rounding = dst.buf.rounding or (None if dst.buf.narrows else dst.buf.codec)
        with e.w.block("else"):
            if rounding is None and _emit_clipped(e, src, dst):
                return
            e.w.line(
                f"copy_block({dst.buf.code}, {dst.buf.codec}, {dst.dims_code}, "
                f"{src.buf.code}, {src.buf.codec}, {src.dims_code}, "
                f"rounding={rounding}, safe={src.buf.safe}, "
                f"src_name={src.buf.name!r}, dst_name={dst.buf.name!r}, "
                f"src_units={skips_outside(e, src.buf)}, dst_units={skips_outside(e, dst.buf)})"
            )


def _emit_inside(e: Emitter, src: BufferRegion, dst: BufferRegion) -> None:
    source, target = region_view(e, src), region_view(e, dst)
    if source == target and src.buf is dst.buf:
        return
    same = src.buf.dtype == dst.buf.dtype
    if not same and TILE_DTYPES[dst.buf.dtype].packed_as and not dst.buf.codec:
        raise e.refuse(f"a conversion of {src.buf.dtype} to {dst.buf.dtype}")
    if dst.buf.codec:
        if same and src.buf.codec:
            e.w.line(f"np.copyto({target}, {source})")
            return
        values = f"{src.buf.codec}.widen({source})" if src.buf.codec else source
        if not src.ranges:
            values, target = f"np.asarray({values})", f"{target[:-1]}, None]"
        if not same and not dst.buf.narrows:
            values = f"{dst.buf.codec}.round({values})"
        e.w.line(f"{dst.buf.codec}.narrow({target}, {values})")
        return
    if src.buf.codec:
        if not src.ranges:
            value = Val(f"{src.buf.codec}.widen({source[:-1]}, None])[0]", src.buf.dtype)
            e.w.line(f"{target} = {cast(e, value, dst.buf.dtype).code}")
            return
        if same or dst.buf.dtype == "float32":
            out = e.tensor(target)
            if src.buf.codec == "f16":  # whose memory is NumPy's too
                e.w.line(f"{out}.copy_(torch.from_numpy({source}))")
            else:
                e.w.line(f"{src.buf.codec}.widen_into({out}, {source})")
            return
        source = f"{src.buf.codec}.widen({source})"
    if not dst.ranges:
        e.w.line(f"{target} = {cast(e, Val(source, src.buf.dtype), dst.buf.dtype).code}")
    elif same:
        e.w.line(f"{target}[...] = {source}" if target.isidentifier() else f"{target} = {source}")
    elif is_float(src.buf.dtype) and not is_float(dst.buf.dtype) and dst.buf.dtype != "bool":
        e.w.line(f"np.copyto({target}, to_int({source}, {dst.buf.dtype!r}))")
    elif dst.buf.rounding:
        round_into(e, dst.buf.rounding, target, source)
    else:
        e.w.line(f"np.copyto({target}, {source}, casting='unsafe')")


def _emit_clipped(e: Emitter, src: BufferRegion, dst: BufferRegion) -> bool:
    """Write a copy between all of a local buffer and a block that may be outside, if it is one."""
    taken, held = (numpy_name(side.buf.dtype) for side in (src, dst))
    if (
        _is_all(dst)
        and skips_outside(e, src.buf)
        and held == ("float32" if src.buf.codec else taken)
    ):
        e.w.line(
            f"read_block({dst.buf.code}, {src.buf.code}, {src.buf.codec}, {src.dims_code}, "
            f"{src.buf.safe})"
        )
        return True
    if _is_all(src) and skips_outside(e, dst.buf) and (dst.buf.codec or held == taken):
        e.w.line(
            f"store_block({dst.buf.code}, {dst.buf.codec}, {dst.dims_code}, {src.buf.code}, "
            f"None, {dst.buf.name!r}, True)"
        )
        return True
    return False


def _is_all(box: BufferRegion) -> bool:
    """Whether a region is a local buffer of values, each of its dims a range."""
    return box.is_whole_local and not box.buf.codec and len(box.ranges) == len(box.dims)


def copy_block(
    dst: Array,
    dst_codec: Codec | None,
    dst_dims: Sequence[Dim],
    src: Array,
    src_codec: Codec | None,
    src_dims: Sequence[Dim],
    *,
    rounding: Codec | None,
    safe: Any,
    src_name: str,
    dst_name: str,
    src_units: bool,
    dst_units: bool,
) -> None:
    """`T.copy` with its predicates: outside the source reads `safe`, outside the destination skips.

    Ranges are predicated on both sides whatever the memory; a single index (an extent of one)
    is guarded only in global memory (`src_units`, `dst_units`).
    """
    if not src_units:
        _check_units(src_dims, src.shape, src_name)
    if not dst_units:
        _check_units(dst_dims, dst.shape, dst_name)
    value = load_block(src, src_codec, src_dims, safe, src_name, guard=True)
    if dst_codec is None:
        value = _converted(value, dst.dtype, rounding)
    elif rounding is not None:
        value = rounding.round(value)
    shape = tuple([d[1] for d in dst_dims if type(d) is tuple])
    store_block(dst, dst_codec, dst_dims, value.reshape(shape), None, dst_name, guard=True)


def _check_units(dims: Sequence[Dim], shape: tuple[int, ...], name: str) -> None:
    """Single indices into memory that nothing guards must be inside."""
    for dim, n in zip(dims, shape, strict=True):
        if type(dim) is not tuple and not 0 <= dim < n:  # type: ignore[operator]
            outside(name, dims, shape)


def read_block(
    tile: Array, src: Array, codec: Codec | None, dims: Sequence[Dim], safe: Any
) -> None:
    """Read a block of guarded memory into a tile of its extents; outside is `safe`."""
    some, memory, inside, whole = clip(dims, src.shape)
    if not whole:
        cut = [k for k, part in enumerate(inside) if part.stop - part.start < tile.shape[k]]
        if some and len(cut) == 1:
            before, part = (slice(None),) * cut[0], inside[cut[0]]
            if part.start:
                tile[(*before, slice(part.start))] = safe
            if part.stop < tile.shape[cut[0]]:
                tile[(*before, slice(part.stop, None))] = safe
        else:
            tile[...] = safe
    if not some:
        return
    if codec is None:
        tile[inside] = src[memory]
    else:
        codec.widen_into(torch.from_numpy(tile[inside]), src[memory])


def _converted(value: Array, dtype: Any, rounding: Codec | None) -> Array:
    """`value` as an array of `dtype`, as a cast in C++ on the GPU would make it."""
    if value.dtype.kind == "f" and np.dtype(dtype).kind in "iu":
        return to_int(value, np.dtype(dtype).name)  # type: ignore[no-any-return]
    if value.dtype != dtype:
        value = value.astype(dtype)
    if rounding is not None:
        value = rounding.round(value)
    return value


def _copied(event: Event, write: Tile, hit: Array, read: Tile, number: int) -> Array:
    del event, number
    places, _ = write.inner(hit)
    return read.outer(places)


# `T.fill` and `T.clear` ---------------------------------------------------------------------------


class Fill(TileOperation):
    """`T.fill(dst, value)`; `T.clear(dst)` fills with zeros."""

    name = rule = "fill"

    def __init__(self, e: Emitter, call: Call) -> None:
        self.call = call
        self.dst = region(e, call.args[0])
        if self.dst.buf.private_axes:
            raise e.refuse(f"T.fill of {self.dst.buf.name} in a parallel loop")
        self.value = cast(e, e.scalar(call.args[1], "a fill with a value"), self.dst.buf.dtype)
        self.predicated = (self.dst,) if is_guarded(e, self.dst.buf) else ()

    @staticmethod
    def overwritten(call: Call) -> Region:
        """The destination."""
        target: Region = call.args[0]
        return target

    def emit(self, e: Emitter) -> None:
        """Write the fill; none where a product that follows is written over it."""
        buf, value = self.dst.buf, self.value
        if self.dst.conditions and not skips_outside(e, buf):
            view = checked_view(e, self.dst)
        elif self.dst.conditions or buf.codec:
            check_constants(e, self.dst)
            e.w.line(
                f"store_block({buf.code}, {buf.codec}, {self.dst.dims_code}, {value.code}, None, "
                f"{buf.name!r}, {skips_outside(e, buf)})"
            )
            return
        elif any(self.call is each for each in e.from_zero):
            return
        else:
            view = region_view(e, self.dst)
        e.w.line(f"{view}.fill({value.code})" if self.dst.ranges else f"{view} = {value.code}")


# `T.transpose` of the last two dimensions ---------------------------------------------------------


class Transpose(TileOperation):
    """`T.transpose(src, dst)`."""

    name = rule = "transpose"
    reads = ("src",)

    def __init__(self, e: Emitter, call: Call) -> None:
        self.call = call
        self.src, self.dst = (region(e, arg, keep_units=True) for arg in call.args[:2])

    def emit(self, e: Emitter) -> None:
        """Write the transposition."""
        source = operand(e, self.src)
        e.w.line(
            f"np.copyto({checked_view(e, self.dst)}, {source}.swapaxes(-1, -2).copy(), "
            "casting='unsafe')"
        )


def _transposed(event: Event, write: Tile, hit: Array, read: Tile, number: int) -> Array:
    del event, number
    places, _ = write.inner(hit)
    return read.outer([*places[:-2], places[-1], places[-2]])


# `T.im2col`: rows are pixels, columns the channels that a filter's taps see -----------------------


class Im2col(TileOperation):
    """`T.im2col(image, column, row, step, kernel, stride, dilation, pad)`."""

    name = rule = "im2col"
    reads, writes = ("image",), ("column",)

    def __init__(self, e: Emitter, call: Call) -> None:
        self.call = call
        self.image, self.column = (region(e, arg, keep_units=True) for arg in call.args[:2])
        self.filter = tuple(int(getattr(a, "value", a)) for a in call.args[4:8])
        kernel, _, dilation, pad = self.filter
        image, column = self.image, self.column
        if not image.buf.is_global or len(image.dims) != 4 or len(column.dims) != 2:
            raise e.refuse(f"T.im2col from {image.buf.name} to {column.buf.name}")
        if (kernel - 1) * dilation != 2 * pad:
            # The hardware walks a box of pixels that TileLang bounds by the padding alone.
            raise e.refuse("T.im2col with a padding that changes the size of the image")
        self.row, self.step = (e.scalar(a, "a step of T.im2col").code for a in call.args[2:4])
        self.arguments = (self.row, self.step, *map(str, self.filter))

    def emit(self, e: Emitter) -> None:
        """Write the call."""
        image = self.image.buf
        e.w.line(
            f"im2col({image.code}, {image.codec}, {checked_view(e, self.column)}, "
            f"{self.row}, {self.step}, {', '.join(map(str, self.filter))})"
        )


def im2col(
    image: Array,
    codec: Codec | None,
    out: Array,
    row: int,
    step: int,
    kernel: int,
    stride: int,
    dilation: int,
    pad: int,
) -> None:
    """`T.im2col` of an image [n, h, w, c] into the tile `out` [pixels, channels].

    Tile (`row`, `step`) of the matrix [n * h_out * w_out, kernel * kernel * c]; outside the image
    is 0. All channels of a tile belong to one tap of the filter.

    Raises:
        Unsupported: if the channels of the image are no multiple of the tile's.
    """
    index, inside, channel = _seen(
        image.shape, out.shape, row, step, (kernel, stride, dilation, pad)
    )
    values = image[..., channel : channel + out.shape[1]][index]
    if codec is not None:
        values = codec.widen(values)
    np.copyto(out, np.where(inside[:, None], values, 0))


def _seen(
    image: tuple[int, ...],
    tile: tuple[int, ...],
    row: int,
    step: int,
    taps: tuple[int, int, int, int],
) -> tuple[tuple[Array, ...], Array, int]:
    """Of each pixel of a tile the index [n, h, w] that its tap sees, and whether it is inside.

    Returns also the first channel. `taps` are kernel, stride, dilation and padding.
    """
    pixels, width = tile
    n, h, w, channels = image
    kernel, stride, dilation, pad = taps
    if channels % width:
        raise Unsupported(f"T.im2col of {width} channels at a time from an image of {channels}")
    h_out = (h + 2 * pad - (kernel - 1) * dilation - 1) // stride + 1
    w_out = (w + 2 * pad - (kernel - 1) * dilation - 1) // stride + 1
    tap, channel = divmod(step * width, channels)
    pixel = row * pixels + np.arange(pixels)
    index = (
        pixel // (w_out * h_out),
        pixel // w_out % h_out * stride - pad + tap // kernel * dilation,
        pixel % w_out * stride - pad + tap % kernel * dilation,
    )
    inside = (tap // kernel < kernel) & np.ones(pixels, bool)
    for at, extent in zip(index, (n, h, w), strict=True):
        inside &= (at >= 0) & (at < extent)
    return tuple(np.where(inside, at, 0) for at in index), inside, channel


def _gathered(event: Event, write: Tile, hit: Array, read: Tile, number: int) -> Array:
    """The pixel that the tap of a row sees, in the channel of the column."""
    del number
    (rows, columns), _ = write.inner(hit)
    row, step, *taps = map(int, event.extra)
    kernel, stride, dilation, pad = taps
    index, inside, channel = _seen(
        read.shape, write.extent, row, step, (kernel, stride, dilation, pad)
    )
    keep = inside[rows]
    at = (*(i[rows][keep] for i in index), channel + columns[keep])
    return np.ravel_multi_index(at, read.shape)


OPERATIONS = Operations(
    tiles={
        "tl.tileop.copy": Copy,
        "tl.tileop.fill": Fill,
        "tl.tileop.transpose": Transpose,
        "tl.tileop.im2col": Im2col,
        "tl.tileop.c2d_im2col": Im2col,
    },
    functions=(copy_block, read_block, im2col),
    slices={
        "copy": _copied,
        "atomic": _copied,
        "transpose": _transposed,
        "im2col": _gathered,
    },
)
