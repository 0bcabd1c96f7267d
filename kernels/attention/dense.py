"""The forward kernel of dense attention, under the name that specs bind it by."""

from tlmatrix_kernels.attention.kernels import forward

__all__ = ["forward"]
