"""The instrument that notes accesses which may race: `me.reads`, `me.writes`, `me.touches`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.emit.instrument import Instrument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.interpreter.emit.access import Access, Buf
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.tiles import BufferRegion, TileOperation

    from .roles import Threads


class RaceInstrument(Instrument):
    """Notes every access to memory that agents of a block share."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    def _note(self, e: Emitter, access: Access, *, write: bool) -> None:
        buf = access.buf
        if not self._threads.can_race(e, buf):
            return
        ordinary = write and _is_ordinary(buf)
        if access.block and (e.mask is None or e.mask.scalar):
            verb, more = ("writes" if write else "reads"), ", ordinary=True" if ordinary else ""
            e.w.line(f"me.{verb}({buf.code!r}, {access.dims_code}, {buf.code}.shape{more})")
            return
        e.w.line(
            f"me.touches({buf.code!r}, {access.index_code}, {e.mask_code}, "
            f"{buf.code}.shape, write={write}, ordinary={ordinary})"
        )

    def read(self, e: Emitter, access: Access) -> None:
        """Iterations are about to read."""
        self._note(e, access, write=False)

    def read_scalar(self, e: Emitter, access: Access, code: str) -> str:
        """A single element is read."""
        self._note(e, access, write=False)
        return code

    def before_write(self, e: Emitter, access: Access, result: Any, value: Any) -> None:
        """Iterations are about to write."""
        del result, value
        self._note(e, access, write=True)

    def before_tile(self, e: Emitter, op: TileOperation) -> None:
        """A tile operation is about to access its operands."""
        regions = list(raced_regions(op))
        # A copy of global memory may be TMA, which needs no fence: that is TileLang's choice.
        loads = op.name == "copy" and any(r.buf.is_global for r, _ in regions)
        for region, write in regions:
            buf = region.buf
            if self._threads.can_race(e, buf):
                verb = "writes" if write else "reads"
                ordinary = write and _is_ordinary(buf) and not loads
                more = ", ordinary=True" if ordinary else ""
                e.w.line(f"me.{verb}({buf.code!r}, {region.dims_code}, {buf.code}.shape{more})")


def raced_regions(op: TileOperation) -> Iterator[tuple[BufferRegion, bool]]:
    """The regions that a tile operation accesses, and whether it writes each; atomics race not."""
    written = [effect.region for effect in op.effects if effect.action == "write"]
    for effect in op.effects:
        if effect.action == "write":
            yield effect.region, True
        elif effect.action == "read" and effect.region not in written:
            yield effect.region, False


def _is_ordinary(buf: Buf) -> bool:
    """Whether stores to a buffer count for the asynchronous proxy only after a fence."""
    return buf.scope in ("shared", "shared.dyn")
