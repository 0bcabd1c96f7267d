"""The instrument that notes accesses which may race, `me.access`: `sync.regions` compares them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.interpreter.emit.instrument import Instrument
from tlmatrix.interpreter.emit.threads.roles import raced_regions

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.access import Access, Buf
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.threads import Threads
    from tlmatrix.interpreter.emit.tiles import TileOperation


class RaceInstrument(Instrument):
    """Notes every access to memory that agents of a block share."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    def access(self, e: Emitter, access: Access, action: str) -> None:
        """Iterations are about to access memory; atomics race not."""
        if action == "atomic" or not self._threads.can_race(e, access.buf):
            return
        elements = access.dims_code
        if not access.block or not (e.mask is None or e.mask.scalar):
            elements = f"cells_of({access.index_code}, {e.mask_code}, {access.buf.code}.shape)"
        _note(e, access.buf, elements, write=action == "write")

    def before_tile(self, e: Emitter, op: TileOperation) -> None:
        """A tile operation is about to access its operands."""
        regions = list(raced_regions(op))
        # A copy of global memory may be TMA, which needs no fence: that is TileLang's choice.
        loads = op.name == "copy" and any(r.buf.is_global for r, *_ in regions)
        for region, write, blocks in regions:
            if self._threads.can_race(e, region.buf):
                _note(e, region.buf, region.dims_code, write=write, fenced=loads, blocks=blocks)


def _note(
    e: Emitter,
    buf: Buf,
    elements: str,
    *,
    write: bool,
    fenced: bool = False,
    blocks: str | None = None,
) -> None:
    """Write the note of an access; a `fenced` store needs no fence between the proxies."""
    ordinary = write and not fenced and buf.scope in ("shared", "shared.dyn")
    more = ", write=True" * write + ", ordinary=True" * ordinary
    more += f", blocks={blocks}" if blocks else ""
    e.w.line(f"me.watched and me.access({buf.code!r}, {elements}, {buf.code}.shape{more})")
