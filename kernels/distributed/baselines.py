"""What the overlapped operators are timed beside: a collective and a kernel in turn, and PyTorch's.

Each is called like the operator, and does the same. PyTorch's fused operators take shares that are
all equal.
"""

import torch

from tlmatrix_kernels.distributed.all_gather_gemm import all_gather_gemm
from tlmatrix_kernels.distributed.collectives import all_gather_rows, reduce_scatter_single
from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.gemm_reduce_scatter import gemm_reduce_scatter

__all__ = [
    "all_gather_then_gemm",
    "all_gather_then_torch",
    "gemm_then_reduce_scatter",
    "torch_all_gather_matmul",
    "torch_matmul_reduce_scatter",
    "torch_then_reduce_scatter",
]


def all_gather_then_gemm(
    a: torch.Tensor, b: torch.Tensor, *, context: Context, m: int, transpose_b: bool = False
) -> torch.Tensor:
    """The collective of `torch.distributed`, then the project's kernel."""
    return all_gather_gemm(a, b, context=context, m=m, transpose_b=transpose_b, overlap=False)


def all_gather_then_torch(
    a: torch.Tensor, b: torch.Tensor, *, context: Context, m: int, transpose_b: bool = False
) -> torch.Tensor:
    """The collective of `torch.distributed`, then `torch.matmul`."""
    return all_gather_rows(a, m, context) @ _transposed(b, transpose_b)


def torch_all_gather_matmul(
    a: torch.Tensor, b: torch.Tensor, *, context: Context, m: int, transpose_b: bool = False
) -> torch.Tensor:
    """PyTorch's own, over symmetric memory.

    Raises:
        NotImplementedError: ranks with different shares, or one rank.
    """
    _refuse_uneven(m, context)
    fused = torch.ops.symm_mem.fused_all_gather_matmul
    return fused(a, [_transposed(b, transpose_b)], 0, context.group.group_name, return_A=False)[1][
        0
    ]


def gemm_then_reduce_scatter(
    a: torch.Tensor, b: torch.Tensor, *, context: Context, transpose_b: bool = False
) -> torch.Tensor:
    """The project's kernel, then a collective of `torch.distributed` and sums in float32."""
    return gemm_reduce_scatter(a, b, context=context, transpose_b=transpose_b, overlap=False)


def torch_then_reduce_scatter(
    a: torch.Tensor, b: torch.Tensor, *, context: Context, m: int, transpose_b: bool = False
) -> torch.Tensor:
    """`torch.matmul`, then the reduce-scatter of `torch.distributed`, which rounds as it adds.

    Raises:
        NotImplementedError: ranks with different shares, or one rank.
    """
    _refuse_uneven(m, context)
    product = a @ _transposed(b, transpose_b)
    out = product.new_empty(m // context.world, product.shape[1])
    reduce_scatter_single(out, product, group=context.group)
    return out


def torch_matmul_reduce_scatter(
    a: torch.Tensor, b: torch.Tensor, *, context: Context, m: int, transpose_b: bool = False
) -> torch.Tensor:
    """PyTorch's own, over symmetric memory.

    Raises:
        NotImplementedError: ranks with different shares, or one rank.
    """
    _refuse_uneven(m, context)
    fused = torch.ops.symm_mem.fused_matmul_reduce_scatter
    return fused(a, _transposed(b, transpose_b), "sum", 0, context.group.group_name)


def _transposed(b: torch.Tensor, transpose_b: bool) -> torch.Tensor:
    """[k, n], whichever way it is stored."""
    return b.T if transpose_b else b


def _refuse_uneven(m: int, context: Context) -> None:
    if context.group is None or m % context.world:
        raise NotImplementedError(
            f"shares {m} rows among several ranks evenly; there are {context.world}"
        )
