"""Memory whose elements are vectors (`float16x2`, `float4_e2m1fnx2`).

It becomes memory of as many more elements along its last dimension, and an access of an element of
it an access of a vector.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import transform, walk

from .vectors import lanes_of


def without_vector_memory(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with memory of numbers alone; PyTorch has parameters of packed pairs alone."""
    flat: dict[ir.Buffer, ir.Buffer] = {}
    for buffer in kernel.buffer_map.values():
        if lanes_of(buffer) > 1 and TILE_DTYPES[_element(buffer)].packed_as:
            flat[buffer] = _flattened(buffer)
    for node in walk(kernel.body):
        if isinstance(node, ir.Block):
            found = (b for b in node.alloc_buffers if lanes_of(b) > 1)
            flat |= {b: _flattened(b) for b in found if _element(b) in TILE_DTYPES}
    if not flat:
        return kernel

    def rewritten(node: Any) -> Any:
        if isinstance(node, ir.Block):
            allocated = tuple(flat.get(b, b) for b in node.alloc_buffers)
            return replace(node, alloc_buffers=allocated)
        if not isinstance(node, (ir.BufferLoad, ir.BufferStore, ir.Region)):
            return None
        buffer = flat.get(node.buffer)
        if buffer is None:
            return None
        lanes = lanes_of(node.buffer)
        first = _times(node.indices[-1], lanes)
        if isinstance(node, ir.Region):
            extents = (*node.extents[:-1], _times(node.extents[-1], lanes))
            indices = (*node.indices[:-1], first)
            return replace(node, buffer=buffer, indices=indices, extents=extents)
        index = ir.Ramp(f"int32x{lanes}", first, ir.IntImm("int32", 1), lanes)
        return replace(node, buffer=buffer, indices=(*node.indices[:-1], index))

    buffer_map = {param: flat.get(b, b) for param, b in kernel.buffer_map.items()}
    return replace(kernel, buffer_map=buffer_map, body=transform(kernel.body, rewritten))


def _element(buffer: ir.Buffer) -> str:
    return buffer.dtype.removesuffix(f"x{lanes_of(buffer)}")


def _flattened(buffer: ir.Buffer) -> ir.Buffer:
    lanes = lanes_of(buffer)
    return replace(
        buffer,
        dtype=_element(buffer),
        shape=(*buffer.shape[:-1], _times(buffer.shape[-1], lanes)),
        strides=tuple(_times(n, lanes) for n in buffer.strides[:-1]) + buffer.strides[-1:],
        scope="local" if buffer.scope == "local.var" else buffer.scope,
    )


def _times(value: ir.Expr, lanes: int) -> ir.Expr:
    if isinstance(value, ir.IntImm):
        return ir.IntImm(value.dtype, value.value * lanes)
    return ir.Mul(value.dtype, value, ir.IntImm(value.dtype, lanes))
