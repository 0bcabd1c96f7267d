"""Bytes of memory of four-bit floats (`T.view(x, dtype="uint8")`): each byte is two elements.

The first is its low half. Loads and stores of bytes become those of elements, and copies of bytes
become parallel loops.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import transform, walk

_COPY = "tl.tileop.copy"


def without_packed_views(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel without views of four-bit floats as bytes; other views stay as they are."""
    held = {buffer.data: buffer for buffer in kernel.buffer_map.values()}
    used: dict[ir.Buffer, None] = {}
    for node in walk(kernel.body):
        if isinstance(node, ir.Block):
            held |= {buffer.data: buffer for buffer in node.alloc_buffers}
        elif isinstance(node, (ir.BufferLoad, ir.BufferStore, ir.Region)):
            used[node.buffer] = None
    views = {b: held[b.data] for b in used if b.data in held and _is_view(b, held[b.data])}
    if not views:
        return kernel

    def rewritten(node: Any) -> Any:
        if isinstance(node, ir.BufferLoad) and node.buffer in views:
            return _byte(node, views[node.buffer])
        if isinstance(node, ir.BufferStore) and node.buffer in views:
            return _halves(node, views[node.buffer])
        if isinstance(node, ir.Evaluate) and getattr(node.value, "op", "") == _COPY:
            src, dst = node.value.args[:2]
            if src.buffer in views or dst.buffer in views:
                loops = _loops(node, src, dst)
                return None if loops is None else transform(loops, rewritten)
        return None

    return replace(kernel, body=transform(kernel.body, rewritten))


def _is_view(view: ir.Buffer, whole: ir.Buffer) -> bool:
    """Whether a buffer is all of another's elements, two in each byte."""
    dtype = TILE_DTYPES.get(whole.dtype)
    if view.dtype not in ("uint8", "int8") or dtype is None or not dtype.packed_as:
        return False
    sizes = [[getattr(n, "value", None) for n in b.shape] for b in (view, whole)]
    if len(sizes[0]) != len(sizes[1]) or None in (*sizes[0], *sizes[1]):
        return False
    return sizes[0][:-1] == sizes[1][:-1] and 2 * int(sizes[0][-1] or 0) == sizes[1][-1]


def _places(indices: tuple[ir.Expr, ...]) -> list[tuple[ir.Expr, ...]]:
    """The indices of the two elements of a byte."""
    *outer, last = indices
    first = ir.Mul(last.dtype, last, ir.IntImm(last.dtype, 2))
    return [(*outer, first), (*outer, ir.Add(last.dtype, first, ir.IntImm(last.dtype, 1)))]


def _byte(load: ir.BufferLoad, whole: ir.Buffer) -> ir.Expr:
    low, high = (
        ir.Call("uint8", "tirx.reinterpret", (ir.BufferLoad(whole.dtype, whole, at),), {})
        for at in _places(load.indices)
    )
    byte: ir.Expr = ir.Add("uint8", low, ir.Mul("uint8", high, ir.IntImm("uint8", 16)))
    return byte if load.dtype == "uint8" else ir.Call(load.dtype, "tirx.reinterpret", (byte,), {})


def _halves(store: ir.BufferStore, whole: ir.Buffer) -> ir.Stmt:
    byte = store.value
    if byte.dtype != "uint8":
        byte = ir.Call("uint8", "tirx.reinterpret", (byte,), {})
    codes = (
        ir.Call("uint8", "tirx.bitwise_and", (byte, ir.IntImm("uint8", 15)), {}),
        ir.Call("uint8", "tirx.shift_right", (byte, ir.IntImm("uint8", 4)), {}),
    )
    stores = [
        ir.BufferStore(
            store.location, whole, ir.Call(whole.dtype, "tirx.reinterpret", (code,), {}), at
        )
        for code, at in zip(codes, _places(store.indices), strict=True)
    ]
    return ir.SeqStmt(store.location, tuple(stores))


def _loops(node: ir.Evaluate, src: ir.Region, dst: ir.Region) -> ir.Stmt | None:
    """A copy as a parallel loop over its elements; None if the sides have different extents."""
    extents = [[n for n in side.extents if getattr(n, "value", 0) != 1] for side in (src, dst)]
    sizes = [[getattr(n, "value", n) for n in side] for side in extents]
    if sizes[0] != sizes[1]:
        return None
    loops = [ir.Var("int32", f"i{k}") for k in range(len(extents[0]))]

    def indices(side: ir.Region) -> tuple[ir.Expr, ...]:
        over = iter(loops)
        return tuple(
            base if getattr(n, "value", 0) == 1 else ir.Add(base.dtype, base, next(over))
            for base, n in zip(side.indices, side.extents, strict=True)
        )

    value: ir.Expr = ir.BufferLoad(src.buffer.dtype, src.buffer, indices(src))
    if src.buffer.dtype != dst.buffer.dtype:
        value = ir.Cast(dst.buffer.dtype, value)
    body: ir.Stmt = ir.BufferStore(node.location, dst.buffer, value, indices(dst))
    zero = ir.IntImm("int32", 0)
    for loop, extent in zip(reversed(loops), reversed(extents[0]), strict=True):
        body = ir.For(node.location, loop, zero, extent, ir.PARALLEL, body, annotations={})
    return body
