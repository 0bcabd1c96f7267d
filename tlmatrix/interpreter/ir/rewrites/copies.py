"""Copies that are no plain ones become operations of their own, with their options as operands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import transform

MULTICAST = "tl.tileop.copy_multicast"
"""(src, dst, mask of blocks): `T.copy_cluster(cluster_mask=)`."""
TMA_MULTICAST = "tl.tileop.tma_multicast"
"""(src, dst, mask of blocks, barrier): `T.tma_copy(cluster_mask=)`."""
TO_BLOCK = "tl.tileop.copy_to_block"
"""(src, dst, block[, barrier]): `T.copy_cluster(dst_block=)`."""
ROWS_LOAD, ROWS_STORE = "tl.tileop.tma_gather4", "tl.tileop.tma_scatter4"
"""(row of src, row of dst, and so on[, barrier])."""


def with_named_copies(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with copies of clusters and of chosen rows by names of their own."""

    def rewritten(node: Any) -> Any:
        if not isinstance(node, ir.Call):
            return None
        if node.op not in ("tl.tileop.copy", "tl.tileop.tma_copy"):
            return None
        options = node.annotations
        barrier = (options["barrier"],) if "barrier" in options else ()
        if "is_gather4" in options:
            return replace(node, op=ROWS_LOAD, args=(*_rows(node, moved=0), *barrier))
        if "is_scatter4" in options:
            return replace(node, op=ROWS_STORE, args=_rows(node, moved=1))
        if "cluster_mask" in options:
            op = MULTICAST if node.op == "tl.tileop.copy" else TMA_MULTICAST
            return replace(node, op=op, args=(*node.args, options["cluster_mask"], *barrier))
        if "dst_block" in options:
            return replace(node, op=TO_BLOCK, args=(*node.args, options["dst_block"], *barrier))
        return None

    return replace(kernel, body=transform(kernel.body, rewritten))


def _rows(call: ir.Call, *, moved: int) -> tuple[ir.Region, ...]:
    """The rows of both operands; those of operand `moved` are the ones that the call lists."""
    regions: list[ir.Region] = []
    one = ir.IntImm("int32", 1)
    for k, row in enumerate(call.annotations["gather4_rows"]):
        for side in (0, 1):
            box = call.args[side]
            index = _number(row) if side == moved else ir.IntImm("int32", k)
            column = _number(call.annotations["gather4_col"]) if side == moved else box.indices[1]
            regions.append(replace(box, indices=(index, column), extents=(one, box.extents[1])))
    return tuple(regions)


def _number(value: Any) -> ir.Expr:
    return value if isinstance(value, ir.Expr) else ir.IntImm("int32", int(value))
