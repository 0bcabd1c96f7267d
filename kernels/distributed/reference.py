"""What the operators compute, in plain PyTorch and on one device."""

import torch

__all__ = ["gemm_bias"]


def gemm_bias(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`a @ b + bias`: a [m, k], b [k, n], bias [n] -> [m, n]."""
    return a @ b + bias
