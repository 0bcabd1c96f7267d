"""Pointers into shared memory (`buffer.access_ptr`) as operands: they become regions of it."""

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


def without_pointers(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with regions in place of pointers that operations take.

    Raises:
        Unsupported: for elements that are no row of a buffer, or part of one.
    """
    if not calls(kernel.body, *_ELEMENTS):
        return kernel
    buffers: dict[ir.Var, ir.Buffer] = {}
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
        if not isinstance(node, ir.Call) or node.op not in _ELEMENTS:
            return None
        pointer = pointers.get(node.args[0], node.args[0])
        if getattr(pointer, "op", "") != _POINTER or pointer.args[1] not in buffers:
            raise Unsupported(f"the interpreter does not model {node.op} through a pointer")
        found = _region(buffers[pointer.args[1]], pointer, _ELEMENTS[node.op], node.op)
        return replace(node, args=(found, *node.args[1:]))

    return replace(kernel, body=transform(kernel.body, rewritten))


def _region(buffer: ir.Buffer, pointer: ir.Call, count: int, op: str) -> ir.Region:
    """The region of `count` elements in a row of a buffer, from a pointer on."""
    shape = [n.value for n in buffer.shape if isinstance(n, ir.IntImm)]
    if len(shape) < len(buffer.shape) or buffer.strides or shape[-1] % count:
        raise Unsupported(f"the interpreter does not model {op} of {buffer.name} in such a shape")
    offset, access = pointer.args[2], pointer.args[4].value
    indices: list[ir.Expr] = []
    step = 1
    for k, extent in reversed(list(enumerate(shape))):
        index = _folded(ir.FloorDiv, offset, step)
        indices.insert(0, index if k == 0 else _folded(ir.FloorMod, index, extent))
        step *= extent
    extents = [ir.IntImm("int32", 1)] * (len(shape) - 1) + [ir.IntImm("int32", count)]
    return ir.Region(
        "handle", buffer, tuple(indices), tuple(extents), bool(access & 1), bool(access & 2)
    )


def _folded(kind: type[ir.Binary], value: ir.Expr, number: int) -> ir.Expr:
    if isinstance(value, ir.IntImm):
        divided, left = divmod(value.value, number)
        return ir.IntImm("int32", divided if kind is ir.FloorDiv else left)
    if number == 1:
        return value if kind is ir.FloorDiv else ir.IntImm("int32", 0)
    return kind(value.dtype, value, ir.IntImm("int32", number))
