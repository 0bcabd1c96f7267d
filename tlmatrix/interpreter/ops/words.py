"""Indices of loads and stores by address, which nothing guards (`T.ldg64`, `T.sts128`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.errors import InterpreterError
from tlmatrix.interpreter.ir.rewrites.words import CHECKED_INDEX

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.values import Val
    from tlmatrix.interpreter.ir.nodes import Call


def _checked_index(e: Emitter, call: Call) -> Val:
    index, extent, name = e.expr(call.args[0]), e.expr(call.args[1]), call.args[2].value
    e.w.line(f"check_word({index.code}, {extent.code}, {e.mask_code}, {name!r})")
    return index


def check_word(index: Any, extent: int, mask: Any, name: str) -> None:
    """Raise where an active iteration accesses words outside of a buffer."""
    outside = (np.asarray(index) < 0) | (np.asarray(index) >= extent)
    if mask is not None:
        outside = outside & mask
    if outside.any():
        at = int(np.broadcast_to(index, outside.shape)[outside].flat[0])
        raise InterpreterError(
            f"index out of bounds: {name} has {extent} words of 32 bits, "
            f"and word {at} is accessed by its address"
        )


CALLS = {CHECKED_INDEX: _checked_index}
FUNCTIONS = (check_word,)
