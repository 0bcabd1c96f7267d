"""Reducers: buffers to which lanes contribute and whose result exists when finalized."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .bounds import constant_index
from .elements import ElementMixin
from .values import Val, is_float, literal

if TYPE_CHECKING:
    from .context import Buf

__all__ = ["ReducerMixin"]

# A reducer's operation: how contributions combine, and the node of a contribution by assignment.
_KINDS = {
    "sum": ("add", "Add"),
    "max": ("max", "Max"),
    "min": ("min", "Min"),
    "bitand": ("and", ""),
    "bitor": ("or", ""),
    "bitxor": ("xor", ""),
}


class ReducerMixin(ElementMixin):
    """`T.alloc_reducer` in both of its forms."""

    def reducer_init(self, node: Any) -> None:
        """`T.reducer_init`: the identity, or one logical starting value."""
        region = self.region(node.args[0])
        buf = region.buf
        if len(node.args) > 1:
            value = self.cast(self.scalar(node.args[1], "a start of a reducer"), buf.dtype)
        else:
            value = self._identity(buf)
        self.w.line(f"{self.checked_view(region)}.fill({value.code})")

    def _identity(self, buf: Buf) -> Val:
        op = self.reducers[buf.name]
        if op in ("sum", "bitor", "bitxor"):
            return literal(0, buf.dtype)
        if op == "bitand":
            return literal(-1 if not buf.dtype.startswith("uint") else _limit(buf, 1), buf.dtype)
        return literal(_limit(buf, -1 if op == "max" else 1), buf.dtype)

    def reducer_update(self, node: Any) -> Val:
        """`T.reducer_update(acc[indices], value)`: one contribution a lane."""
        load = node.args[0]
        buf = self.buffer(load.buffer)
        self._contribute(buf, load.indices, node.args[1])
        return literal(0, buf.dtype)

    def _contribute(self, buf: Buf, nodes: Any, value: Any) -> None:
        kind, _ = _KINDS[self.reducers[buf.name]]
        contribution = self.cast(self.expr(value), buf.dtype)
        indices = [self.expr(i) for i in nodes]
        constant = [constant_index(i) for i in nodes]
        self._one_atomic(buf, indices, constant, contribution, kind, previous=False)

    def contribution_by_assignment(self, buf: Buf, nodes: list[Any], value: Any) -> bool:
        """Write `acc[i] = acc[i] + value` as a contribution; False if it is none."""
        from tilelang import tvm

        op = self.reducers.get(buf.name)
        if op is None or type(value).__name__ != _KINDS[op][1]:
            return False
        for old, new in ((value.a, value.b), (value.b, value.a)):
            if (
                isinstance(old, tvm.tirx.BufferLoad)
                and self.buffers.get(old.buffer) is buf
                and all(
                    tvm.ir.structural_equal(x, y) for x, y in zip(old.indices, nodes, strict=True)
                )
            ):
                self._contribute(buf, nodes, new)
                return True
        return False


def _limit(buf: Buf, sign: int) -> float | int:
    """The largest or smallest value of a dtype."""
    if is_float(buf.dtype):
        return math.inf * sign
    info = np.iinfo(buf.dtype)
    return info.max if sign > 0 else info.min
