"""`T.fill` and `T.clear`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.interpreter.emit.access import check_constants, is_guarded, skips_outside
from tlmatrix.interpreter.emit.casts import cast
from tlmatrix.interpreter.emit.regions import checked_view, region, region_view
from tlmatrix.interpreter.emit.tiles import TileOperation

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call, Region


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


TILES = {"tl.tileop.fill": Fill}
