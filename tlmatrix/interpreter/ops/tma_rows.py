"""`T.tma_gather4`, `T.tma_scatter4`: four rows of a matrix, in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.dtypes import size_in_bits
from tlmatrix.interpreter.emit.threads.issue import barrier_code, issue, together
from tlmatrix.interpreter.emit.tiles import Effect, TileOperation
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.rewrites.copies import ROWS_LOAD, ROWS_STORE

from .copy import Copy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.interpreter.emit.emitter import Emitter

_ROWS = 4


class _Rows(TileOperation):
    """Copies of rows; one outside of the matrix reads as zeros, and is not written."""

    name = "tma_rows"

    def __init__(self, e: Emitter, call: ir.Call) -> None:
        self.call = call
        pairs = zip(call.args[: 2 * _ROWS : 2], call.args[1 : 2 * _ROWS : 2], strict=True)
        self.rows = [Copy(e, ir.Call("handle", "tl.tileop.copy", pair, {})) for pair in pairs]
        self.predicated = [region for row in self.rows for region in row.predicated]

    @property
    def effects(self) -> Sequence[Effect]:
        """Those of all rows."""
        return [effect for row in self.rows for effect in row.effects]

    def emit(self, e: Emitter) -> None:
        """Write the copies."""
        for row in self.rows:
            row.emit(e)


def _load(e: Emitter, call: ir.Call) -> None:
    first = call.args[0]
    columns = e.scalar(first.extents[1], "an extent").code
    size = f"{columns} * {_ROWS * size_in_bits(first.buffer.dtype)} // 8"
    bars = f"({barrier_code(e, call.args[-1])},)"
    issue(e, "TMA load", _Rows(e, call), f"delivers={bars}, size={size}")


def _store(e: Emitter, call: ir.Call) -> None:
    issue(e, "TMA store", _Rows(e, call))


ASYNCHRONOUS = {ROWS_LOAD: together(_load), ROWS_STORE: together(_store)}
EFFECTS = ASYNCHRONOUS
