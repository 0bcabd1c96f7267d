"""Baselines: a collective and a GEMM in sequence, and PyTorch's fused operators.

Each has the signature of its operator and computes the same. PyTorch's fused operators need equal
rows on all ranks.
"""

import torch

from tlmatrix_kernels.distributed.all_gather_gemm import all_gather_gemm
from tlmatrix_kernels.distributed.collectives import all_gather_rows, reduce_scatter_single
from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.gemm_reduce_scatter import gemm_reduce_scatter


def all_gather_then_gemm(
    a: torch.Tensor, b: torch.Tensor, *, context: Context, m: int, transpose_b: bool = False
) -> torch.Tensor:
    """NCCL's all-gather, then the project's GEMM."""
    return all_gather_gemm(a, b, context=context, m=m, transpose_b=transpose_b, overlap=False)


def all_gather_then_torch(
    a: torch.Tensor, b: torch.Tensor, *, context: Context, m: int, transpose_b: bool = False
) -> torch.Tensor:
    """NCCL's all-gather, then `torch.matmul`."""
    return all_gather_rows(a, m, context) @ _transposed(b, transpose_b)


def torch_all_gather_matmul(
    a: torch.Tensor, b: torch.Tensor, *, context: Context, m: int, transpose_b: bool = False
) -> torch.Tensor:
    """PyTorch's fused all-gather and matmul over symmetric memory.

    Raises:
        NotImplementedError: a world of one, or ranks with different numbers of rows.
    """
    _refuse_uneven(m, context)
    fused = torch.ops.symm_mem.fused_all_gather_matmul
    return fused(a, [_transposed(b, transpose_b)], 0, context.group.group_name, return_A=False)[1][
        0
    ]


def gemm_then_reduce_scatter(
    a: torch.Tensor, b: torch.Tensor, *, context: Context, transpose_b: bool = False
) -> torch.Tensor:
    """The project's GEMM, then an all-to-all and float32 sums."""
    return gemm_reduce_scatter(a, b, context=context, transpose_b=transpose_b, overlap=False)


def torch_then_reduce_scatter(
    a: torch.Tensor, b: torch.Tensor, *, context: Context, m: int, transpose_b: bool = False
) -> torch.Tensor:
    """`torch.matmul`, then NCCL's reduce-scatter, which rounds each partial sum.

    Raises:
        NotImplementedError: a world of one, or ranks with different numbers of rows.
    """
    _refuse_uneven(m, context)
    product = a @ _transposed(b, transpose_b)
    out = product.new_empty(m // context.world, product.shape[1])
    reduce_scatter_single(out, product, group=context.group)
    return out


def torch_matmul_reduce_scatter(
    a: torch.Tensor, b: torch.Tensor, *, context: Context, m: int, transpose_b: bool = False
) -> torch.Tensor:
    """PyTorch's fused matmul and reduce-scatter over symmetric memory.

    Raises:
        NotImplementedError: a world of one, or ranks with different numbers of rows.
    """
    _refuse_uneven(m, context)
    fused = torch.ops.symm_mem.fused_matmul_reduce_scatter
    return fused(a, _transposed(b, transpose_b), "sum", 0, context.group.group_name)


def _transposed(b: torch.Tensor, transpose_b: bool) -> torch.Tensor:
    """op(b) [k, n]."""
    return b.T if transpose_b else b


def _refuse_uneven(m: int, context: Context) -> None:
    if context.group is None or m % context.world:
        raise NotImplementedError(
            f"needs {m} rows split evenly over at least 2 ranks, got {context.world} ranks"
        )
