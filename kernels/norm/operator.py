"""The RMS norm operator: argument checks and an autograd function over the two kernels."""

import torch
from torch.autograd.function import once_differentiable

from tlmatrix_kernels.dtypes import dtype_name
from tlmatrix_kernels.norm.kernel import (
    BLOCK_ROWS,
    rms_norm_backward_kernel,
    rms_norm_forward_kernel,
)

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def rms_norm(x: torch.Tensor, w: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """`x / sqrt(mean(x * x) + eps) * w` over the last dimension; differentiable in `x` and `w`.

    Args:
        x: [rows, cols]; float16, bfloat16 or float32.
        w: [cols], the dtype of `x`.
        eps: added to the mean square; positive.

    Returns:
        [rows, cols], the dtype of `x`.

    Raises:
        ValueError: an invalid shape, dtype, device or eps; the message names the argument.
    """
    if x.ndim != 2:
        raise ValueError(f"x must have 2 dimensions, [rows, cols], got shape {tuple(x.shape)}")
    if x.shape[1] == 0:
        raise ValueError("x must have at least one column: the mean of none is not defined")
    if x.dtype not in DTYPES:
        raise ValueError(f"x must be float16, bfloat16 or float32, got {x.dtype}")
    if tuple(w.shape) != (x.shape[1],):
        raise ValueError(
            f"w must have shape ({x.shape[1]},), a weight a column, got {tuple(w.shape)}"
        )
    if w.dtype != x.dtype:
        raise ValueError(f"w must have the dtype of x, {x.dtype}, got {w.dtype}")
    if w.device != x.device:
        raise ValueError(f"w must be on the device of x, {x.device}, got {w.device}")
    if not eps > 0:
        raise ValueError(f"eps must be positive, got {eps}")
    return _RmsNorm.apply(x.contiguous(), w.contiguous(), eps)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, eps):
        y = torch.empty_like(x)
        rstd = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
        if x.shape[0]:
            rms_norm_forward_kernel(dtype_name(x.dtype))(x, w, eps, y, rstd)
        ctx.save_for_backward(x, w, rstd)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, w, rstd = ctx.saved_tensors
        rows, cols = x.shape
        dx = torch.empty_like(x)
        dw_partial = torch.empty(-(-rows // BLOCK_ROWS), cols, dtype=torch.float32, device=x.device)
        if rows:
            rms_norm_backward_kernel(dtype_name(x.dtype))(
                x, w, rstd, dy.contiguous(), dx, dw_partial
            )
        return dx, dw_partial.sum(0).to(w.dtype), None
