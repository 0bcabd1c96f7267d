"""`T.cumsum` and `T.cummax` along one dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tlmatrix.interpreter.emit.regions import checked_view, operand, region
from tlmatrix.interpreter.emit.tiles import TileOperation

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call
    from tlmatrix.interpreter.runtime.codecs import Array, Codec
    from tlmatrix.interpreter.runtime.elements import Tile
    from tlmatrix.interpreter.runtime.tracks import Event


class Scan(TileOperation):
    """`T.cumsum(src, dst, dim, reverse)`, `T.cummax`."""

    name = rule = "scan"
    reads = ("src",)

    def __init__(self, e: Emitter, call: Call) -> None:
        self.call = call
        self.kind = call.op.removeprefix("tl.tileop.")
        self.src, self.dst = (region(e, arg, keep_units=True) for arg in call.args[:2])
        self.axis = int(call.args[2].value)
        self.reverse = e.scalar(call.args[3], "reverse")
        self.arguments = (str(self.axis), self.reverse.code)

    def emit(self, e: Emitter) -> None:
        """Write the scan."""
        dst = self.dst.buf
        if dst.codec:
            raise e.refuse(f"T.{self.kind} into the global buffer {dst.name}")
        source = operand(e, self.src)
        e.w.line(
            f"scan({self.kind!r}, {source}, {self.axis}, {self.reverse.code}, "
            f"{checked_view(e, self.dst)}, {dst.rounding})"
        )


def scan(
    kind: str, src: Array, axis: int, reverse: bool, dst: Array, rounding: Codec | None
) -> None:
    """`T.cumsum` and `T.cummax` along `axis`."""
    source = np.flip(src, axis) if reverse else src
    if kind == "cumsum":
        value = np.cumsum(source, axis, dtype=src.dtype)
    else:
        value = np.maximum.accumulate(source, axis)
    if reverse:
        value = np.flip(value, axis)
    if rounding is not None:
        value = rounding.round(np.ascontiguousarray(value))
    np.copyto(dst, value.reshape(dst.shape))


def _scanned(event: Event, write: Tile, hit: Array, read: Tile, number: int) -> Array:
    del number
    axis, backwards = int(event.extra[0]), bool(event.extra[1])
    places, _ = write.inner(hit)
    along = np.arange(read.extent[axis])[None, :]
    limit = places[axis][:, None]
    which, at = np.nonzero(along >= limit if backwards else along <= limit)
    spread = [p[which] for p in places]
    spread[axis] = at
    return read.outer(spread)


TILES = {"tl.tileop.cumsum": Scan, "tl.tileop.cummax": Scan}
FUNCTIONS = (scan,)
SLICES = {"scan": _scanned}
