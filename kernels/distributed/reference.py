"""PyTorch reference of `gemm_reduce_scatter`, on one device."""

import torch


def gemm_bias(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor,
    world: int,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`a @ b + bias`, with k split over `world` ranks as by `torch.tensor_split`.

    Each rank's product is rounded to `out_dtype`, by default the dtype of `a`; the sum is float32.
    Of float64 inputs nothing is rounded.

    a: [m, k], b: [k, n], bias: [n] -> [m, n]
    """
    wide = torch.promote_types(a.dtype, torch.float32)
    parts = wide if a.dtype == torch.float64 else out_dtype or a.dtype
    total = bias.to(wide)
    for rows, columns in zip(a.tensor_split(world, 1), b.tensor_split(world), strict=True):
        total = total + (rows.to(wide) @ columns.to(wide)).to(parts).to(wide)
    return total
