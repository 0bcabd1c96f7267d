"""`T.im2col`: rows are pixels, columns the channels that a filter's taps see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tlmatrix.interpreter.emit.regions import checked_view, region
from tlmatrix.interpreter.emit.tiles import TileOperation
from tlmatrix.interpreter.errors import Unsupported

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call
    from tlmatrix.interpreter.runtime.codecs import Array, Codec
    from tlmatrix.interpreter.runtime.elements import Tile
    from tlmatrix.interpreter.runtime.tracks import Event


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


TILES = {"tl.tileop.im2col": Im2col, "tl.tileop.c2d_im2col": Im2col}
FUNCTIONS = (im2col,)
SLICES = {"im2col": _gathered}
