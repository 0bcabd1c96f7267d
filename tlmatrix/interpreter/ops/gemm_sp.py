"""`T.gemm_sp`: a product whose left factor is stored without its zeros.

Of four neighbours along K two are stored, of two of 32 bits one. The metadata have 4 bits for each
group, the first group lowest: where the first and the second stored element stand (2 bits each).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.analysis.constants import is_true
from tlmatrix.interpreter.emit.regions import matrix, operand
from tlmatrix.interpreter.ir import nodes as ir

from .gemm import Gemm

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.runtime.codecs import Array


class SparseGemm(Gemm):
    """`T.gemm_sp(A, E, B, C, transpose_A, transpose_E, transpose_B, clear_accum)`."""

    name, rule = "gemm_sp", ""
    reads = ("metadata", "a", "b")

    def __init__(self, e: Emitter, call: ir.Call) -> None:
        a, metadata, b, c, turn_a, turn_e, turn_b = call.args[:7]
        rest = (a, b, c, turn_a, turn_b, *call.args[7:12])
        super().__init__(e, ir.Call(call.dtype, call.op, rest, call.annotations))
        self.call = call
        self.metadata = matrix(e, metadata)
        self._turns = [e.scalar(turn, "a transposition").code for turn in (turn_a, turn_e)]

    @staticmethod
    def overwritten(call: ir.Call) -> ir.Region | None:
        """The accumulator, where it is cleared."""
        target: ir.Region = call.args[3]
        return target if is_true(call.args[11]) else None

    def factors(self, e: Emitter) -> list[str]:
        """The left factor with its zeros, not transposed, and the right one."""
        wide = self.a.buf.dtype.endswith("32")
        dense = e.temp("dense")
        e.w.line(
            f"{dense} = with_zeros({operand(e, self.a)}, {operand(e, self.metadata)}, "
            f"{', '.join(self._turns)}, {wide})"
        )
        self.transposes[0] = "False"
        return [dense, operand(e, self.b)]


def with_zeros(
    stored: Array, metadata: Array, turn_stored: Any, turn_metadata: Any, wide: bool
) -> Array:
    """A sparse matrix with its zeros, rows first; `wide` for elements of 32 bits."""
    stored = stored.T if turn_stored else stored
    metadata = np.ascontiguousarray(metadata.T if turn_metadata else metadata)
    group, kept = (2, 1) if wide else (4, 2)
    rows, count = stored.shape
    nibbles = metadata.view(np.uint8).reshape(rows, -1, 1) >> np.array([0, 4], np.uint8) & 15
    nibbles = nibbles.reshape(rows, -1)[:, : count // kept, None]
    places = nibbles >> np.array([0, 2], np.uint8)[:kept] & 3
    if wide:
        places = places >> 1
    dense = np.zeros((rows, count // kept, group), stored.dtype)
    np.put_along_axis(dense, places.astype(np.intp), stored.reshape(rows, -1, kept), axis=2)
    return dense.reshape(rows, -1)


TILES = {"tl.tileop.gemm_sp": SparseGemm}
FUNCTIONS = (with_zeros,)
