"""The mixed-dtype GEMM operator: accepted dtype pairs, output dtypes, allocation and launch."""

import torch

from tlmatrix_kernels.alignment import aligned
from tlmatrix_kernels.dtypes import dtype_name
from tlmatrix_kernels.gemm.mixed import mixed_kernel
from tlmatrix_kernels.gemm.tiles import MIXED_FLOATS, size_for
from tlmatrix_kernels.gemm.validate import (
    OUT_DTYPES,
    check_addend,
    check_operands,
    check_out_dtype,
    check_tiles,
    names,
    rows_aligned,
)
from tlmatrix_kernels.target import multiprocessors

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
PARTNERS = {
    torch.float16: (torch.int8, *_FLOAT8),
    torch.bfloat16: (torch.int8, *_FLOAT8),
    torch.float8_e4m3fn: _FLOAT8,
    torch.float8_e5m2: _FLOAT8,
    torch.int8: (torch.int8,),
}
"""The accepted dtypes of `b` for each dtype of `a`."""


def gemm_mixed(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    scale: torch.Tensor | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    accumulate: bool = False,
    out_dtype: torch.dtype | None = None,
    tiles: str | None = None,
) -> torch.Tensor:
    """`op(a) @ op(b) * scale`, plus `c` if `accumulate`; rounded once.

    Accumulates in float32; int8 by int8 in int32, which is exact up to k = 131071.

    Args:
        a: [m, k], or [k, m] with `transpose_a`; float16, bfloat16, float8_e4m3fn, float8_e5m2
            or int8.
        b: [k, n], or [n, k] with `transpose_b`; int8 or float8 if `a` is float16 or bfloat16,
            float8 if `a` is float8, int8 if `a` is int8.
        c: [m, n], the addend with `accumulate`; not modified.
        scale: [n], float32, contiguous: the dequantization scale of each column of op(b).
        transpose_a: whether `a` is stored transposed.
        transpose_b: whether `b` is stored transposed.
        accumulate: whether `c` is added.
        out_dtype: dtype of the result. With `c` it is the dtype of `c`. Otherwise float16, bfloat16
            or float32 (for int8 by int8 without scale also int32); by default the dtype of `a` if
            it has 16 bits, bfloat16 for float8, and int32 for int8 (float32 with a scale).
        tiles: "wide" or "narrow"; by default chosen to occupy every multiprocessor.

    Returns:
        [m, n] in `out_dtype`, a new tensor.

    Raises:
        ValueError: an invalid shape, dtype or device; the message names the argument.
    """
    check_tiles(tiles)
    if a.dtype not in PARTNERS:
        raise ValueError(f"a must be one of {names(tuple(PARTNERS))}, got {a.dtype}")
    if b.dtype not in PARTNERS[a.dtype]:
        raise ValueError(
            f"b must be one of {names(PARTNERS[a.dtype])} beside {dtype_name(a.dtype)}, "
            f"got {b.dtype}"
        )
    m, n, k = check_operands(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    _check_scale(scale, n, a.device)
    integers = a.dtype == torch.int8
    exact = integers and scale is None
    dtypes = (torch.int32, *OUT_DTYPES) if exact else OUT_DTYPES
    check_addend(c, (m, n), a.device, accumulate=accumulate, dtypes=dtypes)
    if integers:
        default = torch.int32 if exact else torch.float32
    else:
        default = torch.bfloat16 if a.dtype in _FLOAT8 else a.dtype
    out_dtype = check_out_dtype(out_dtype, c, default, dtypes)
    if m == 0 or n == 0 or k == 0:  # an empty sum; the kernel needs a tile to load
        return a.new_zeros(m, n, dtype=out_dtype) if c is None else c.clone()
    if c is None:
        out = a.new_empty(m, n, dtype=out_dtype)
    else:
        out = c.clone(memory_format=torch.contiguous_format)
    a, b = a.contiguous(), b.contiguous()
    size = tiles or size_for(m, n, MIXED_FLOATS["wide"], multiprocessors(a.device))
    kernel = mixed_kernel(
        dtype_name(a.dtype),
        dtype_name(b.dtype),
        dtype_name(out_dtype),
        transpose_a,
        transpose_b,
        accumulate,
        scale is not None,
        rows_aligned(a, b),
        size,
    )
    kernel(*((a, b, out) if scale is None else (a, b, aligned(scale), out)))
    return out


def _check_scale(scale: torch.Tensor | None, n: int, device: torch.device) -> None:
    if scale is None:
        return
    if tuple(scale.shape) != (n,):
        raise ValueError(f"scale must have shape {(n,)}, got {tuple(scale.shape)}")
    if scale.dtype != torch.float32:
        raise ValueError(f"scale must be float32, got {scale.dtype}")
    if scale.device != device:
        raise ValueError(f"scale must be on the device of a, {device}, got {scale.device}")
    if not scale.is_contiguous():
        raise ValueError(f"scale must be contiguous, got stride {scale.stride(0)}")
