"""Kernels and operators of several ranks, a GPU each, over PyTorch's symmetric memory."""

from tlmatrix_kernels.distributed.all_gather import all_gather
from tlmatrix_kernels.distributed.context import Context, create_context

__all__ = ["Context", "all_gather", "create_context"]
