"""The same kernel with float64 in place of every float dtype: its exact twin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import transform, walk

from .vectors import without_vectors


def widened(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with float64 in place of every float dtype.

    Raises:
        Unsupported: if it looks at the bits of a float.
    """
    kernel = without_vectors(kernel)  # a vector's dtype has another name
    for node in walk(kernel.body):
        if isinstance(node, ir.Call) and node.op.endswith("reinterpret") and _is_float(node.dtype):
            raise Unsupported(
                "float64 has no place for a float that is made of bits (T.reinterpret)"
            )
    buffers: dict[ir.Buffer, ir.Buffer] = {}
    variables: dict[ir.Var, ir.Var] = {}

    def buffer(old: ir.Buffer) -> ir.Buffer:
        if old not in buffers:
            buffers[old] = replace(old, dtype="float64") if _is_float(old.dtype) else old
        return buffers[old]

    def variable(old: ir.Var) -> ir.Var:
        if not _is_float(old.dtype):
            return old
        return variables.setdefault(old, ir.Var("float64", old.name))

    def wide(node: Any) -> Any:
        changes: dict[str, Any] = {}
        if isinstance(node, ir.Var):
            return variable(node)
        if isinstance(node, ir.Block):
            changes["alloc_buffers"] = tuple(map(buffer, node.alloc_buffers))
        if isinstance(node, (ir.BufferLoad, ir.BufferStore, ir.Region)):
            changes["buffer"] = buffer(node.buffer)
        if isinstance(node, (ir.Bind, ir.Let)):
            changes["var"] = variable(node.var)
        if isinstance(node, ir.Expr) and _is_float(node.dtype):
            changes["dtype"] = "float64"
        return replace(node, **changes) if changes else None

    return ir.Kernel(
        kernel.name,
        tuple(map(variable, kernel.params)),
        {variable(k): buffer(b) for k, b in kernel.buffer_map.items()},
        transform(kernel.body, wide),
    )


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))
