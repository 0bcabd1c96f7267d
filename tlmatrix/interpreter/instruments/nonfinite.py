"""Traces where values stop being finite: looks at what every operation reads and writes.

A launch that ended with NaN or infinity is run again with it, to name the first operation that
made one of finite operands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.emit.instrument import Instrument
from tlmatrix.interpreter.emit.values import Val, is_float
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import walk

from .elements import mask_of
from .sites import SiteTable

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.access import Access, Buf
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.tiles import TileOperation


class NonfiniteTracer(Instrument):
    """Writes what reads saw and writes made, of floats."""

    argument = "watch"
    reserved = ("watch",)
    reports_bounds = True
    sees_reads = True
    sees_values = True
    sees_writes = True

    def __init__(self) -> None:
        self.sites = SiteTable()

    def grid(self, e: Emitter) -> None:
        """Note a launch."""
        e.w.line("watch.launch()")

    def block(self, e: Emitter, indices: list[Any]) -> None:
        """Note a block."""
        e.w.line(f"watch.enter(({', '.join(e.vars[var].code for var in indices)},))")

    @staticmethod
    def _follows(buf: Buf) -> bool:
        return is_float(buf.dtype) and (not buf.private_axes or buf.per_thread)

    def read(self, e: Emitter, access: Access) -> None:
        """Iterations are about to read."""
        buf = access.buf
        if not self._follows(buf):
            return
        if access.block:
            where = (
                f"saw({buf.code}, {buf.codec}, {access.dims_code}, {mask_of(e, access, e.mask)})"
            )
        else:
            where = f"saw_lanes({buf.code}, {buf.codec}, {access.index_code}, {e.mask_code})"
        e.w.line(f"watch.{where}")

    def read_scalar(self, e: Emitter, access: Access, code: str) -> str:
        """A single element is read."""
        del e
        return f"watch.saw_one({code})" if self._follows(access.buf) else code

    def read_variable(self, e: Emitter, buf: Buf, code: str) -> str:
        """A variable is read."""
        del e
        return f"watch.saw_one({code})" if is_float(buf.dtype) else code

    def before_assignment(self, e: Emitter, buf: Buf, result: Val) -> None:
        """A variable is about to be assigned."""
        if is_float(buf.dtype):
            site = self.sites.number(e, buf, "write")
            e.w.line(f"watch.born({site}, {result.code}, (), None, False, {_limit(buf)})")

    def before_write(self, e: Emitter, access: Access, result: Val, value: Any) -> None:
        """A value is about to be stored."""
        atomic = e.atomic.is_access
        self._born(e, access, result, "atomic" if atomic else "write", meant=_names_infinity(value))

    def before_atomic(self, e: Emitter, access: Access, result: Val, *, previous: bool) -> None:
        """An atomic is about to be done."""
        del previous
        self._born(e, access, result, "atomic", meant=False)

    def _born(self, e: Emitter, access: Access, result: Val, action: str, *, meant: bool) -> None:
        buf = access.buf
        if self._follows(buf):
            site = self.sites.number(e, buf, action)
            e.w.line(
                f"watch.born({site}, {result.code}, {access.index_code}, {e.mask_code}, {meant}, "
                f"{_limit(buf)})"
            )

    def before_tile(self, e: Emitter, op: TileOperation) -> None:
        """A tile operation is about to read, or to add to what it holds."""
        for effect in op.effects:
            buf = effect.region.buf
            if effect.action != "write" and is_float(buf.dtype):
                line = f"watch.saw({buf.code}, {buf.codec}, {effect.region.dims_code}, None)"
                if effect.unless is None:
                    e.w.line(line)
                else:
                    with e.w.block(f"if not {effect.unless}"):
                        e.w.line(line)

    def after_tile(self, e: Emitter, op: TileOperation) -> None:
        """A tile operation has written what it made of what it read."""
        if all(effect.action == "write" for effect in op.effects):
            return
        for effect in op.effects:
            buf = effect.region.buf
            if effect.action != "read" and is_float(buf.dtype):
                site = self.sites.number(e, buf, "write")
                region = effect.region.dims_code
                e.w.line(f"watch.made({site}, {buf.code}, {buf.codec}, {region})")


def _limit(buf: Buf) -> str:
    """From where on a value rounds to infinity in a buffer's dtype."""
    return "65520.0" if buf.dtype == "float16" else "INF"


def _names_infinity(value: Any) -> bool:
    """Whether an expression has an infinity of its own."""
    return any(
        abs(node.value) == float("inf")
        if isinstance(node, ir.FloatImm)
        else isinstance(node, ir.Call) and node.op in ("tl.infinity", "tirx.infinity")
        for node in walk(value)
    )
