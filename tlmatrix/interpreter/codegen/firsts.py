"""Buffers of a block that are written whole before anything reads them.

They need no poison: whatever a block before has left in them, nobody sees it. Where that is not
plain from the order of the statements, a buffer starts as NaN for every block.
"""

from __future__ import annotations

from typing import Any

from .expressions import op_name
from .lanes import spreads

__all__ = ["sums_from_zero", "written_first"]

_REGIONS = ("tl.region", "tl.tileop.region")
_SCOPES = ("shared", "shared.dyn", "local.fragment")


def written_first(func: Any) -> frozenset[Any]:
    """The data of buffers that are written whole before they are read, whatever is run."""
    order = _Order()
    order.statement(func.body, [])
    return frozenset(order.allocated) - order.read_first


class _Order:
    """Follows statements in their order; `written` are buffers that are surely written whole."""

    def __init__(self) -> None:
        self.allocated: dict[Any, Any] = {}
        """Buffers of blocks by their data."""
        self.read_first: set[Any] = set()
        self.written: set[Any] = set()

    def statement(self, node: Any, lanes: list[Any]) -> None:
        """One statement, in parallel loops `lanes`."""
        kind = type(node).__name__
        if kind == "SeqStmt":
            for child in node.seq:
                self.statement(child, lanes)
        elif kind == "SBlockRealize":
            self.statement(node.block, lanes)
        elif kind == "SBlock":
            self._block(node, lanes)
        elif kind == "For":
            self._loop(node, lanes)
        elif kind == "IfThenElse":
            self._branch(node, lanes)
        elif kind == "BufferStore":
            self._store(node, lanes)
        elif kind == "AttrStmt":
            self.statement(node.body, lanes)
        elif kind == "Evaluate" and op_name_of(node.value).startswith("tl.tileop."):
            self._tile_op(node.value)
        else:
            self._read(node)

    def _block(self, node: Any, lanes: list[Any]) -> None:
        for buffer in node.alloc_buffers:
            if str(buffer.scope()) in _SCOPES and not lanes:
                self.allocated[buffer.data] = buffer
            self.written.discard(buffer.data)
        if getattr(node, "init", None) is not None:
            self._read(node.init)
        self.statement(node.body, lanes)

    def _loop(self, node: Any, lanes: list[Any]) -> None:
        self._read(node.min)
        self._read(node.extent)
        if spreads(node):
            self.statement(node.body, [*lanes, node])
            return
        before = set(self.written)
        self.statement(node.body, lanes)
        self.written = before  # it may not turn once

    def _branch(self, node: Any, lanes: list[Any]) -> None:
        self._read(node.condition)
        before = set(self.written)
        self.statement(node.then_case, lanes)
        after, self.written = self.written, before
        if node.else_case is not None:
            self.statement(node.else_case, lanes)
        self.written = self.written & after

    def _store(self, node: Any, lanes: list[Any]) -> None:
        self._read(node.value)
        for index in node.indices:
            self._read(index)
        data, buffer = node.buffer.data, node.buffer
        if node.predicate is not None or not self.allocated.get(data, node).same_as(buffer):
            self._seen(data)
            return
        loops = [loop for i in node.indices for loop in lanes if loop.loop_var.same_as(i)]
        each_once = len(loops) == len(node.indices) == len(lanes) == len(set(loops))
        from_zero = all(_zero(loop.min) for loop in loops)
        if each_once and from_zero and _same([loop.extent for loop in loops], buffer.shape):
            self.written.add(data)

    def _tile_op(self, call: Any) -> None:
        name = op_name_of(call).removeprefix("tl.tileop.")
        args = list(call.args)
        target: Any = None
        if name in ("copy", "async_copy") and all(map(_is_region, args[:2])):
            source, target = args[:2]
            if not _same(_ranges(source), _ranges(target)):
                target = None
        elif name == "fill" and _is_region(args[0]):
            target = args[0]
        elif (name == "gemm" and _true(args[9])) or (name == "reduce" and _true(args[4])):
            target = args[2 if name == "gemm" else 1]
        for arg in args:
            if target is None or not arg.same_as(target):
                self._read(arg)
        if target is None:
            return
        load = target.args[0]
        for index in load.indices:
            self._read(index)
        mine = self.allocated.get(load.buffer.data)
        if mine is None or not mine.same_as(load.buffer):
            self._seen(load.buffer.data)
        elif _is_whole(target, mine):
            self.written.add(load.buffer.data)

    def _read(self, node: Any) -> None:
        """Whatever is named here may be read."""
        from tilelang import tvm

        def visit(child: Any) -> None:
            if isinstance(child, (tvm.tirx.BufferLoad, tvm.tirx.BufferStore)):
                self._seen(child.buffer.data)
            elif isinstance(child, tvm.tirx.Var) and child in self.allocated:
                self._seen(child)  # a pointer

        tvm.tirx.stmt_functor.post_order_visit(node, visit)

    def _seen(self, data: Any) -> None:
        if data not in self.written:
            self.read_first.add(data)


def sums_from_zero(first: Any, second: Any) -> bool:
    """Whether the first of two statements fills with zeros what the second adds a product to."""
    fill, gemm = (getattr(node, "value", None) for node in (first, second))
    if [op_name_of(call) for call in (fill, gemm)] != ["tl.tileop.fill", "tl.tileop.gemm"]:
        return False
    assert fill is not None
    assert gemm is not None
    mine, its = fill.args[0], gemm.args[2]
    if not (_is_region(mine) and _is_region(its) and _zero(fill.args[1]) and _zero(gemm.args[9])):
        return False
    buffer = mine.args[0].buffer
    factors = [arg.args[0].buffer.data for arg in gemm.args[:2] if _is_region(arg)]
    return (
        str(buffer.dtype) == "float32"
        and buffer.same_as(its.args[0].buffer)
        and _is_whole(mine, buffer)
        and _is_whole(its, buffer)
        and not any(data.same_as(buffer.data) for data in factors)
    )


def op_name_of(node: Any) -> str:
    """The name of what is called; nothing where nothing is."""
    return op_name(node) if type(node).__name__ == "Call" else ""


def _is_region(node: Any) -> bool:
    return op_name_of(node) in _REGIONS


def _ranges(region: Any) -> list[Any]:
    return [extent for extent in region.args[2:] if _number(extent) != 1]


def _is_whole(region: Any, buffer: Any) -> bool:
    return all(map(_zero, region.args[0].indices)) and _same(region.args[2:], buffer.shape)


def _number(node: Any) -> int | float | None:
    """The value of a constant."""
    return node.value if type(node).__name__ in ("IntImm", "FloatImm") else None


def _zero(node: Any) -> bool:
    return _number(node) == 0


def _true(node: Any) -> bool:
    return type(node).__name__ == "IntImm" and bool(node.value)


def _same(some: Any, others: Any) -> bool:
    """Whether extents are the same constants."""
    mine, its = [list(map(_number, each)) for each in (some, others)]
    return mine == its and None not in mine
