"""`T.tcgen05_gemm(use_2cta=True)`: one product of two blocks of a cluster.

Each block has its rows of A, half of the columns of B, and its rows of C. The first block issues
the product for both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.interpreter.emit.threads.clusters import (
    cluster_of,
    rank_in_cluster,
    refuse_sanitizers,
)

from .gemm import Gemm

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir import nodes as ir
    from tlmatrix.interpreter.runtime.codecs import Array
    from tlmatrix.interpreter.sync.clusters import Cluster


class PairGemm(Gemm):
    """A product of two blocks."""

    name, rule = "gemm", ""

    def __init__(self, e: Emitter, call: ir.Call) -> None:
        super().__init__(e, of_one_block(e, call))
        operands = (self.a.buf, self.b.buf, self.c.buf)
        if any(buf.codec for buf in operands) or self.c.buf.dtype != "float32":
            names = ", ".join(f"{buf.name} ({buf.dtype})" for buf in operands)
            raise e.refuse(f"T.gemm over two blocks (use_2cta) of {names}")

    def emit(self, e: Emitter) -> None:
        """Write the product."""
        operands = (f"({r.buf.code!r}, {r.dims_code})" for r in (self.a, self.b, self.c))
        e.w.line(
            f"gemm_of_pair({cluster_of(e)}, {rank_in_cluster(e)}, {', '.join(operands)}, "
            f"{', '.join(self.transposes)}, {self.clear.code})"
        )


def of_one_block(e: Emitter, call: ir.Call) -> ir.Call:
    """The product of two blocks as one of one block with the same operands."""
    refuse_sanitizers(e, "T.gemm over two blocks (use_2cta)")
    alone = {k: v for k, v in call.annotations.items() if k != "use_2cta"}
    return replace(call, annotations=alone)


def part_of(cluster: Cluster, operand: tuple[str, Any], block: int) -> Array:
    """A region, given by its array's name and its dims, of a block of the cluster."""
    name, dims = operand
    index = (slice(d[0], d[0] + d[1] * d[2], d[2]) if isinstance(d, tuple) else d for d in dims)
    found: Array = cluster.array(name, block)[tuple(index)]
    return found


def gemm_of_pair(
    cluster: Cluster,
    rank: int,
    a: tuple[str, Any],
    b: tuple[str, Any],
    c: tuple[str, Any],
    transpose_a: bool,
    transpose_b: bool,
    clear: Any,
) -> None:
    """`c = a @ b` or `c += a @ b` of the block with a rank and its neighbour."""
    pair = (rank & ~1, rank | 1)

    right = np.concatenate([part_of(cluster, b, block) for block in pair], 0 if transpose_b else 1)
    factor = torch.from_numpy(right.T if transpose_b else right)
    for block in pair:
        left, target = (part_of(cluster, operand, block) for operand in (a, c))
        left = np.ascontiguousarray(left.T if transpose_a else left)
        product = torch.mm(torch.from_numpy(left), factor).numpy()
        np.copyto(target, product if clear else target + product)


FUNCTIONS = (gemm_of_pair,)
