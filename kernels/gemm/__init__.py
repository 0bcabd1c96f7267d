"""Matrix multiplication."""

from tlmatrix_kernels.gemm.mixed_operator import gemm_mixed
from tlmatrix_kernels.gemm.operator import gemm
from tlmatrix_kernels.gemm.split_operator import gemm_split_k

__all__ = ["gemm", "gemm_mixed", "gemm_split_k"]
