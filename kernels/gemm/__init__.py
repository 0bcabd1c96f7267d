"""Matrix multiplication."""

from tlmatrix_kernels.gemm.operator import gemm

__all__ = ["gemm"]
