"""Reducers: buffers to which iterations contribute and whose result exists when finalized."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.emit.access import access_at
from tlmatrix.interpreter.emit.casts import cast
from tlmatrix.interpreter.emit.memory import buffer
from tlmatrix.interpreter.emit.regions import checked_view, region
from tlmatrix.interpreter.emit.stores import emit_store
from tlmatrix.interpreter.emit.tiles import TileOperation
from tlmatrix.interpreter.emit.values import Val, is_float, literal
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import same

from .atomic import emit_atomic
from .copy import Copy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.interpreter.emit.buffers import Buf
    from tlmatrix.interpreter.emit.emitter import Emitter

# A reducer's operation: how contributions combine, and the node of a contribution by assignment.
_KINDS: dict[str, tuple[str, type | None]] = {
    "sum": ("add", ir.Add),
    "max": ("max", ir.Max),
    "min": ("min", ir.Min),
    "bitand": ("and", None),
    "bitor": ("or", None),
    "bitxor": ("xor", None),
}


class ReducerInit(TileOperation):
    """`T.reducer_init`: the identity, or one logical starting value."""

    name = "reducer_init"
    rule = "fill"

    def __init__(self, e: Emitter, call: ir.Call) -> None:
        self.call = call
        self.dst = region(e, call.args[0])

    def emit(self, e: Emitter) -> None:
        """Write the fill."""
        buf = self.dst.buf
        if len(self.call.args) > 1:
            value = cast(e, e.scalar(self.call.args[1], "a start of a reducer"), buf.dtype)
        else:
            value = _identity(buf, e.reducers[buf.name])
        view = checked_view(e, self.dst)
        e.w.line(f"{view}.fill({value.code})" if self.dst.ranges else f"{view} = {value.code}")


class Finalize(TileOperation):
    """`T.finalize_reducer`: the contributions of all iterations are already in one buffer."""

    name = "finalize_reducer"
    reads = writes = ("region",)
    rule = "copy"

    def __init__(self, e: Emitter, call: ir.Call) -> None:
        self.call = call
        self.region = region(e, call.args[0])

    def emit(self, e: Emitter) -> None:
        """Write nothing."""


def _identity(buf: Buf, op: str) -> Val:
    if op in ("sum", "bitor", "bitxor"):
        return literal(0, buf.dtype)
    if op == "bitand":
        return literal(-1 if not buf.dtype.startswith("uint") else _limit(buf, 1), buf.dtype)
    return literal(_limit(buf, -1 if op == "max" else 1), buf.dtype)


def _limit(buf: Buf, sign: int) -> float | int:
    """The largest or smallest value of a dtype."""
    if is_float(buf.dtype):
        return math.inf * sign
    info = np.iinfo(buf.dtype)
    return info.max if sign > 0 else info.min


def _update(e: Emitter, call: ir.Call) -> None:
    """`T.reducer_update(acc[indices], value)`: a contribution of each iteration."""
    target = call.args[0]
    _contribute(e, buffer(e, target.buffer), target.indices, call.args[1])


def _contribute(e: Emitter, buf: Buf, nodes: Sequence[Any], value: Any) -> None:
    kind, _ = _KINDS[e.reducers[buf.name]]
    contribution = cast(e, e.expr(value), buf.dtype)
    emit_atomic(e, access_at(e, buf, nodes), contribution, kind, previous=False)


def _store(e: Emitter, node: ir.BufferStore) -> None:
    """A store; `acc[i] = acc[i] + value` of a reducer is a contribution."""
    op = e.reducers.get(node.buffer.name) if e.reducers else None
    if op is not None and type(node.value) is _KINDS[op][1]:
        assert isinstance(node.value, ir.Binary)
        a, b = node.value.a, node.value.b
        for old, new in ((a, b), (b, a)):
            if (
                isinstance(old, ir.BufferLoad)
                and old.buffer is node.buffer
                and same(old.indices, node.indices)
            ):
                _contribute(e, buffer(e, node.buffer), node.indices, new)
                return
    emit_store(e, node)


TILES = {
    "tl.tileop.reducer_init": ReducerInit,
    "tl.tileop.finalize_reducer": Finalize,
    "tl.tileop.finalize_reducer_v2": Copy,
}
EFFECTS = {"tl.reducer_update": _update}
STATEMENTS = {ir.BufferStore: _store}
