"""What the operators compute, in plain PyTorch and on one device."""

import torch

__all__ = ["gemm_bias"]


def gemm_bias(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, world: int) -> torch.Tensor:
    """`a @ b + bias` as ranks add it up that share out k as `torch.tensor_split` does.

    The dtype of `a` is what a rank's product is rounded to; the sum is float32, or float64.

    a: [m, k], b: [k, n], bias: [n] -> [m, n]
    """
    wide = torch.promote_types(a.dtype, torch.float32)
    total = bias.to(wide)
    for rows, columns in zip(a.tensor_split(world, 1), b.tensor_split(world), strict=True):
        total = total + (rows @ columns).to(wide)
    return total
