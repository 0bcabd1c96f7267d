"""Argument checks of the GEMM operators."""

import torch

from tlmatrix_kernels.dtypes import dtype_name
from tlmatrix_kernels.gemm.operands import ROW_BYTES
from tlmatrix_kernels.gemm.tiles import SIZES

DTYPES = (torch.float16, torch.bfloat16)
OUT_DTYPES = (*DTYPES, torch.float32)


def check_dtypes(a: torch.Tensor, b: torch.Tensor) -> None:
    """Raises ValueError unless both operands are float16 or both are bfloat16."""
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{name} must be one of {names(DTYPES)}, got {tensor.dtype}")
    if b.dtype != a.dtype:
        raise ValueError(f"b must have the dtype of a, {a.dtype}, got {b.dtype}")


def check_operands(
    a: torch.Tensor, b: torch.Tensor, *, transpose_a: bool, transpose_b: bool
) -> tuple[int, int, int]:
    """Checks the shapes and devices of `a` and `b`, and returns (m, n, k)."""
    for name, tensor in (("a", a), ("b", b)):
        if tensor.ndim != 2:
            raise ValueError(f"{name} must have 2 dimensions, got shape {tuple(tensor.shape)}")
    if b.device != a.device:
        raise ValueError(f"b must be on the device of a, {a.device}, got {b.device}")
    m, k = reversed(a.shape) if transpose_a else a.shape
    n, k_of_b = b.shape if transpose_b else reversed(b.shape)
    if k != k_of_b:
        raise ValueError(
            f"a and b must agree in k: a of shape {tuple(a.shape)} has k = {k}, "
            f"b of shape {tuple(b.shape)} has k = {k_of_b}"
        )
    return m, n, k


def check_addend(
    c: torch.Tensor | None,
    shape: tuple[int, int],
    device: torch.device,
    *,
    accumulate: bool,
    dtypes: tuple[torch.dtype, ...] = OUT_DTYPES,
) -> None:
    """Raises ValueError unless `c` is given iff `accumulate`, with a valid shape and dtype."""
    if not accumulate:
        if c is not None:
            raise ValueError("c is only used with accumulate=True: omit it or set accumulate")
        return
    if c is None:
        raise ValueError("c must be given with accumulate=True: the product is added to it")
    if tuple(c.shape) != shape:
        raise ValueError(f"c must have shape {shape}, got {tuple(c.shape)}")
    if c.dtype not in dtypes:
        raise ValueError(f"c must be one of {names(dtypes)}, got {c.dtype}")
    if c.device != device:
        raise ValueError(f"c must be on the device of a, {device}, got {c.device}")


def check_out_dtype(
    out_dtype: torch.dtype | None,
    c: torch.Tensor | None,
    default: torch.dtype,
    dtypes: tuple[torch.dtype, ...] = OUT_DTYPES,
) -> torch.dtype:
    """The dtype of the result: that of `c` if given, else `out_dtype`, else `default`."""
    if c is not None:
        if out_dtype not in (None, c.dtype):
            raise ValueError(f"out_dtype must be the dtype of c, {c.dtype}, got {out_dtype}")
        return c.dtype
    out_dtype = out_dtype or default
    if out_dtype not in dtypes:
        raise ValueError(f"out_dtype must be one of {names(dtypes)}, got {out_dtype}")
    return out_dtype


def check_tiles(tiles: str | None) -> None:
    """Raises ValueError unless `tiles` is one of `SIZES` or None."""
    if tiles is not None and tiles not in SIZES:
        raise ValueError(f"tiles must be one of {', '.join(SIZES)}, or None, got {tiles!r}")


def rows_aligned(*tensors: torch.Tensor) -> bool:
    """Whether every row of every contiguous matrix starts at a multiple of 16 bytes."""
    return all(
        tensor.data_ptr() % ROW_BYTES == 0
        and tensor.shape[1] * tensor.element_size() % ROW_BYTES == 0
        for tensor in tensors
    )


def names(dtypes: tuple[torch.dtype, ...]) -> str:
    """The dtype names, separated by commas."""
    return ", ".join(dtype_name(dtype) for dtype in dtypes)
