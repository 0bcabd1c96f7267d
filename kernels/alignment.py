"""Alignment of the tensors that kernels load."""

import torch

ALIGNMENT = 16
"""Bytes. TMA and the widest load of a thread (128 bits) need addresses that are multiples of it."""


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor contiguous and 16-byte aligned; copies it only if it is not."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()
