"""RMS normalization."""

from tlmatrix_kernels.norm.operator import rms_norm

__all__ = ["rms_norm"]
