"""GEMM and reduce-scatter over several nodes: overlapped within nodes, then summed between them."""

import torch
import torch.distributed as dist

from tlmatrix_kernels.distributed.gemm_reduce_scatter import gemm_reduce_scatter
from tlmatrix_kernels.distributed.partition import row_range
from tlmatrix_kernels.distributed.two_level import TwoLevelContext
from tlmatrix_kernels.distributed.validate import (
    check_bias,
    check_bool,
    check_context,
    check_overlap,
)
from tlmatrix_kernels.gemm.validate import check_dtypes, check_operands, check_out_dtype


def gemm_reduce_scatter_two_level(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    context: TwoLevelContext,
    transpose_b: bool = False,
    out_dtype: torch.dtype | None = None,
    overlap: bool | None = None,
) -> torch.Tensor:
    """This rank's rows of `sum over the ranks of all nodes of a @ op(b)`, plus `bias`.

    With V nodes of W ranks, rank r of node v gets part v * W + r of the rows. Node by node, the
    ranks of a node compute and sum the rows of that node (`gemm_reduce_scatter`), while
    `torch.distributed` sums the rows of the node before between nodes. A row crosses nodes once for
    each node instead of once for each rank. Sums and parts are float32; the result is rounded once.

    Args:
        a: [m, local k]; float16 or bfloat16; m is the same on all ranks.
        b: [local k, n], or [n, local k] with `transpose_b`; the dtype of `a`.
        bias: [n], the same on all ranks, added once; float16, bfloat16 or float32.
        context: see `create_two_level_context`.
        transpose_b: whether `b` is stored transposed.
        out_dtype: dtype of the result: float16, bfloat16 or float32; by default the dtype of `a`.
        overlap: within nodes, as in `gemm_reduce_scatter`.

    Returns:
        [local rows, n] in `out_dtype`, a new tensor; m is split as by `torch.tensor_split` over all
        V * W ranks.

    Raises:
        ValueError: an invalid argument; the message names it. Or ranks differ in m, n, out_dtype or
            overlap.
        TypeError: context is not a `TwoLevelContext`.
        RuntimeError: overlap=True while a CUDA graph is captured.
    """
    check_context(context, TwoLevelContext)
    node, nodes = context.node, context.nodes
    check_overlap(overlap, node)
    check_bool("transpose_b", transpose_b)
    check_dtypes(a, b)
    m, n, _ = check_operands(a, b, transpose_a=False, transpose_b=transpose_b)
    out_dtype = check_out_dtype(out_dtype, None, a.dtype)
    check_bias(bias, n, a.device)
    sizes = {"m": m, "n": n, "out_dtype": out_dtype, "overlap": overlap}
    node.agree("gemm_reduce_scatter_two_level", sizes, between=context.between)
    ranks = nodes * node.world
    own = 0 if context.between is None else dist.get_rank(context.between)
    sums, pending = [], []
    for target in range(nodes):  # in the same order on all nodes: each sum is a collective
        begin, _ = row_range(m, ranks, target * node.world)
        _, end = row_range(m, ranks, (target + 1) * node.world - 1)
        part = gemm_reduce_scatter(
            a[begin:end],
            b,
            bias if target == own else None,
            context=node,
            transpose_b=transpose_b,
            out_dtype=torch.float32,
            overlap=overlap,
        )
        sums.append(part)
        if context.between is not None and part.numel():
            owner = dist.get_global_rank(context.between, target)
            pending.append(dist.reduce(part, owner, group=context.between, async_op=True))
    for each in pending:
        each.wait()
    return sums[own].to(out_dtype)
