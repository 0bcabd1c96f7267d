"""Multi-GPU kernels and operators over PyTorch's symmetric memory, one rank per GPU."""

from tlmatrix_kernels.distributed.all_gather import all_gather
from tlmatrix_kernels.distributed.all_gather_gemm import all_gather_gemm
from tlmatrix_kernels.distributed.context import Context, create_context
from tlmatrix_kernels.distributed.gemm_reduce_scatter import gemm_reduce_scatter
from tlmatrix_kernels.distributed.gemm_two_level import gemm_reduce_scatter_two_level
from tlmatrix_kernels.distributed.reduce_scatter import reduce_scatter, reduce_scatter_two_level
from tlmatrix_kernels.distributed.two_level import TwoLevelContext, create_two_level_context

__all__ = [
    "Context",
    "TwoLevelContext",
    "all_gather",
    "all_gather_gemm",
    "create_context",
    "create_two_level_context",
    "gemm_reduce_scatter",
    "gemm_reduce_scatter_two_level",
    "reduce_scatter",
    "reduce_scatter_two_level",
]
