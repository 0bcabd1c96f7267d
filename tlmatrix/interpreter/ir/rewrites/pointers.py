"""Pointers to elements by number (`buffer.access_ptr`) as operands.

They become regions of shared memory; those of `T.ptx_cp_async` become pointers to an element by
its indices (`T.access_ptr`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import calls, transform, walk

_ELEMENTS = {
    "tl.ptx_tcgen05_cp_warpx4": 128,
    "tl.ptx_tcgen05_sf_warp_transpose": 128,
    **dict.fromkeys(("tl.clc_try_cancel", "tl.clc_try_cancel_multicast"), 4),
    **dict.fromkeys(("tl.clc_is_canceled", *(f"tl.clc_get_first_ctaid_{x}" for x in "xyz")), 4),
}
"""By operation how many elements its first argument points to."""
_POINTER = "tirx.tvm_access_ptr"
_COPY = "tl.ptx_cp_async"


def without_pointers(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with regions in place of pointers that operations take.

    Raises:
        Unsupported: for elements that are no row of a buffer, or part of one.
    """
    if not calls(kernel.body, _COPY, *_ELEMENTS):
        return kernel
    buffers = {buffer.data: buffer for buffer in kernel.buffer_map.values()}
    pointers: dict[Any, ir.Call] = {}
    for node in walk(kernel.body):
        if isinstance(node, ir.Block):
            buffers |= {buffer.data: buffer for buffer in node.alloc_buffers}
        elif isinstance(node, ir.Bind) and getattr(node.value, "op", "") == _POINTER:
            assert isinstance(node.value, ir.Call)
            pointers[node.var] = node.value

    def rewritten(node: Any) -> Any:
        if isinstance(node, ir.Bind) and node.var in pointers:
            return ir.SeqStmt(node.location, ())
        if isinstance(node, ir.Call) and node.op == _COPY:
            ends = (_end(buffers, pointers.get(a, a), node.args[2]) for a in node.args[:2])
            return replace(node, args=(*ends, *node.args[2:]))
        if not isinstance(node, ir.Call) or node.op not in _ELEMENTS:
            return None
        pointer = pointers.get(node.args[0], node.args[0])
        if getattr(pointer, "op", "") != _POINTER or pointer.args[1] not in buffers:
            raise Unsupported(f"the interpreter does not model {node.op} through a pointer")
        found = _region(buffers[pointer.args[1]], pointer, _ELEMENTS[node.op], node.op)
        return replace(node, args=(found, *node.args[1:]))

    return replace(kernel, body=transform(kernel.body, rewritten))


def _end(buffers: dict[ir.Var, ir.Buffer], pointer: Any, count: Any) -> Any:
    """The source or destination of a copy of `count` elements, by its indices."""
    if getattr(pointer, "op", "") != _POINTER or pointer.args[1] not in buffers:
        return pointer
    buffer = buffers[pointer.args[1]]
    indices = _indices(buffer, pointer.args[2], getattr(count, "value", 0), "T.ptx_cp_async")
    load = ir.BufferLoad(buffer.dtype, buffer, indices, None)
    return ir.Call("handle", "tl.access_ptr", (load, count, pointer.args[4]), {})


def _region(buffer: ir.Buffer, pointer: ir.Call, count: int, op: str) -> ir.Region:
    """The region of `count` elements in a row of a buffer, from a pointer on."""
    access = pointer.args[4].value
    indices = _indices(buffer, pointer.args[2], count, op)
    extents = [ir.IntImm("int32", 1)] * (len(indices) - 1) + [ir.IntImm("int32", count)]
    return ir.Region("handle", buffer, indices, tuple(extents), bool(access & 1), bool(access & 2))


def _indices(buffer: ir.Buffer, offset: ir.Expr, count: int, op: str) -> tuple[ir.Expr, ...]:
    """The indices of an element by its number, from which `count` elements lie in a row.

    Raises:
        Unsupported: they may not lie in one row, or rows are not one after another.
    """
    rows = [n.value for n in buffer.shape[1:] if isinstance(n, ir.IntImm)]
    fits = len(buffer.shape) == 1 or (rows and count and rows[-1] % count == 0)
    if len(rows) + 1 < len(buffer.shape) or not _is_contiguous(buffer) or not fits:
        raise Unsupported(f"the interpreter does not model {op} of {buffer.name} in such a shape")
    found: list[ir.Expr] = []
    step = 1
    for extent in reversed(rows):
        found.insert(0, _folded(ir.FloorMod, _folded(ir.FloorDiv, offset, step), extent))
        step *= extent
    return _folded(ir.FloorDiv, offset, step), *found


def _is_contiguous(buffer: ir.Buffer) -> bool:
    """Whether the elements of a buffer of known rows follow each other."""
    step = 1
    for extent, stride in zip(reversed(buffer.shape), reversed(buffer.strides), strict=False):
        if getattr(stride, "value", None) != step:
            return False
        step *= getattr(extent, "value", 0)
    return True


def _folded(kind: type[ir.Binary], value: ir.Expr, number: int) -> ir.Expr:
    if isinstance(value, ir.IntImm):
        divided, left = divmod(value.value, number)
        return ir.IntImm("int32", divided if kind is ir.FloorDiv else left)
    if number == 1:
        return value if kind is ir.FloorDiv else ir.IntImm("int32", 0)
    return kind(value.dtype, value, ir.IntImm("int32", number))
