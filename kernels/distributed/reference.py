"""PyTorch reference of `gemm_reduce_scatter`, on one device."""

import torch


def gemm_bias(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, world: int) -> torch.Tensor:
    """`a @ b + bias`, with k split over `world` ranks as by `torch.tensor_split`.

    Each rank's product is rounded to the dtype of `a`; the sum is float32, or float64 for float64
    inputs.

    a: [m, k], b: [k, n], bias: [n] -> [m, n]
    """
    wide = torch.promote_types(a.dtype, torch.float32)
    total = bias.to(wide)
    for rows, columns in zip(a.tensor_split(world, 1), b.tensor_split(world), strict=True):
        total = total + (rows @ columns).to(wide)
    return total
