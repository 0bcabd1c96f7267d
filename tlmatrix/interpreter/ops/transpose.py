"""`T.transpose` of the last two dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.interpreter.emit.regions import checked_view, operand, region
from tlmatrix.interpreter.emit.tiles import TileOperation

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call
    from tlmatrix.interpreter.runtime.codecs import Array
    from tlmatrix.interpreter.runtime.elements import Tile
    from tlmatrix.interpreter.runtime.tracks import Event


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


TILES = {"tl.tileop.transpose": Transpose}
SLICES = {"transpose": _transposed}
