"""Definite initialization: buffers of a block that are written whole before anything reads them.

They need no poison. Where that is not plain from the order of the statements, a buffer starts as
NaN for every block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import walk

from .constants import covers, equal_extents, is_zero
from .loops import is_parallel

if TYPE_CHECKING:
    from collections.abc import Callable

_SCOPES = ("shared", "shared.dyn", "local.fragment")


def definitely_initialized(
    kernel: ir.Kernel, overwritten: Callable[[ir.Call], ir.Region | None]
) -> frozenset[ir.Var]:
    """The data of buffers that are written whole before they are read, on every path.

    Args:
        kernel: the kernel.
        overwritten: the region that a tile operation writes whole whatever was in it, if any.
    """
    order = _Order(overwritten)
    order.visit(kernel.body, [])
    return frozenset(order.allocated) - order.read_first


class _Order:
    """Follows statements in their order; `written` are buffers that are surely written whole."""

    def __init__(self, overwritten: Callable[[ir.Call], ir.Region | None]) -> None:
        self.allocated: dict[ir.Var, ir.Buffer] = {}
        self.read_first: set[ir.Var] = set()
        self.written: set[ir.Var] = set()
        self._overwritten = overwritten

    def visit(self, node: Any, loops: list[ir.For]) -> None:
        """One statement, inside parallel `loops`."""
        if isinstance(node, ir.SeqStmt):
            for child in node.seq:
                self.visit(child, loops)
        elif isinstance(node, ir.Block):
            for buffer in node.alloc_buffers:
                if buffer.scope in _SCOPES and not loops:
                    self.allocated[buffer.data] = buffer
                self.written.discard(buffer.data)
            self.visit(node.body, loops)
        elif isinstance(node, ir.For):
            self._read(node.min, node.extent)
            if is_parallel(node):
                self.visit(node.body, [*loops, node])
            else:
                before = set(self.written)
                self.visit(node.body, loops)
                self.written = before  # it may have no iteration
        elif isinstance(node, ir.IfThenElse):
            self._branch(node, loops)
        elif isinstance(node, ir.BufferStore):
            self._store(node, loops)
        elif isinstance(node, ir.AttrStmt):
            self.visit(node.body, loops)
        elif isinstance(node, ir.Evaluate) and isinstance(node.value, ir.Call):
            self._call(node.value)
        else:
            self._read(node)

    def _branch(self, node: ir.IfThenElse, loops: list[ir.For]) -> None:
        self._read(node.condition)
        before = set(self.written)
        self.visit(node.then_case, loops)
        after, self.written = self.written, before
        if node.else_case is not None:
            self.visit(node.else_case, loops)
        self.written = self.written & after

    def _store(self, node: ir.BufferStore, loops: list[ir.For]) -> None:
        self._read(node.value, *node.indices)
        data, buffer = node.buffer.data, node.buffer
        if node.predicate is not None or self.allocated.get(data) is not buffer:
            self._may_read(data)
            return
        over = [loop for i in node.indices for loop in loops if loop.loop_var is i]
        each_once = len(over) == len(node.indices) == len(loops) == len(set(over))
        if (
            each_once
            and all(is_zero(loop.min) for loop in over)
            and equal_extents([loop.extent for loop in over], buffer.shape)
        ):
            self.written.add(data)

    def _call(self, call: ir.Call) -> None:
        target = self._overwritten(call)
        self._read(*(arg for arg in call.args if arg is not target))
        if target is None:
            return
        self._read(*target.indices)
        data = target.buffer.data
        if self.allocated.get(data) is not target.buffer:
            self._may_read(data)
        elif covers(target, target.buffer):
            self.written.add(data)

    def _read(self, *nodes: Any) -> None:
        """All memory that nodes name may be read."""
        for child in walk(*nodes):
            if isinstance(child, (ir.BufferLoad, ir.BufferStore, ir.Region)):
                self._may_read(child.buffer.data)
            elif isinstance(child, ir.Var) and child in self.allocated:
                self._may_read(child)  # a pointer

    def _may_read(self, data: ir.Var) -> None:
        if data not in self.written:
            self.read_first.add(data)


def sums_from_zero(first: ir.Stmt, second: ir.Stmt | None) -> bool:
    """Whether the first of two statements fills with zeros what the second adds a product to."""
    fill, gemm = (getattr(node, "value", None) for node in (first, second))
    if getattr(fill, "op", "") != "tl.tileop.fill" or getattr(gemm, "op", "") != "tl.tileop.gemm":
        return False
    assert isinstance(fill, ir.Call)
    assert isinstance(gemm, ir.Call)
    filled, added = fill.args[0], gemm.args[2]
    if not (is_zero(fill.args[1]) and is_zero(gemm.args[9])):
        return False
    buffer = filled.buffer
    factors = [arg.buffer.data for arg in gemm.args[:2]]
    return (
        buffer.dtype == "float32"
        and buffer is added.buffer
        and covers(filled, buffer)
        and covers(added, buffer)
        and buffer.data not in factors
    )
