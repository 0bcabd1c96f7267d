"""PyTorch reference of RMS norm, for any floating-point dtype."""

import torch


def rms_norm(x: torch.Tensor, w: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """`x / sqrt(mean(x * x) + eps) * w`: x [rows, cols], w [cols] -> [rows, cols].

    A low-precision `x` is normalized in float32, as in the kernels.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    rstd = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * rstd * w.to(wide.dtype)).to(x.dtype)
