"""Where in memory kernels take their tensors from."""

import torch

__all__ = ["ALIGNMENT", "ready"]

ALIGNMENT = 16
"""Bytes: the copy engine, and a thread's widest load, read from multiples of it."""


def ready(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as kernels take it: contiguous and aligned, copied if it is not."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()
