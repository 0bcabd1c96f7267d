"""The GEMM operator: checks its arguments, makes room for the result, and calls a kernel."""

import torch

from tlmatrix_kernels.alignment import ready
from tlmatrix_kernels.dtypes import dtype_name
from tlmatrix_kernels.gemm.boxes import ROW_BYTES
from tlmatrix_kernels.gemm.kernel import gemm_kernel
from tlmatrix_kernels.gemm.tcgen05 import (
    RAGGED_TCGEN05_TILES,
    TCGEN05_TILES,
    tcgen05_kernel,
    tcgen05_ws_kernel,
)
from tlmatrix_kernels.gemm.tiles import gemm_tiles, size_for
from tlmatrix_kernels.gemm.validate import (
    check_addend,
    check_dtypes,
    check_operands,
    check_out_dtype,
    check_tiles,
    rows_aligned,
)
from tlmatrix_kernels.gemm.wgmma import WGMMA_TILES, wgmma_ws_kernel
from tlmatrix_kernels.target import capability, multiprocessors

__all__ = ["VARIANTS", "gemm"]

VARIANTS = {"tiled": None, "tcgen05": 10, "tcgen05_ws": 10, "wgmma_ws": 9}
"""The major compute capability that each is for; None for any."""
PERSISTENT = ("tcgen05_ws", "wgmma_ws")
BLOCKS_WITHOUT_GPU = 2
"""Blocks of a persistent kernel where no GPU says how many it runs at once."""


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    accumulate: bool = False,
    out_dtype: torch.dtype | None = None,
    variant: str = "tiled",
    tiles: str | None = None,
) -> torch.Tensor:
    """`op(a) @ op(b)`, plus `c` when `accumulate` is set; summed in float32, rounded once.

    Args:
        a: [m, k], or [k, m] with `transpose_a`; float16 or bfloat16.
        b: [k, n], or [n, k] with `transpose_b`; the dtype of `a`.
        c: [m, n], what is added with `accumulate`; not changed.
        transpose_a: whether `a` is stored transposed.
        transpose_b: whether `b` is stored transposed.
        accumulate: whether `c` is added.
        out_dtype: dtype of the result: that of `c` when it is added, else that of `a`, unless
            given (float16, bfloat16 or float32).
        variant: the kernel: "tiled" on any GPU; on Blackwell (sm_100) also "tcgen05", and the
            warp-specialised and persistent "tcgen05_ws"; on Hopper (sm_90) its like "wgmma_ws".
            The last two need rows of `a` and `b` of a multiple of 8 elements (16 bytes), as the
            copy engine does.
        tiles: of variant "tiled": "wide" or "narrow"; by default what gives every multiprocessor
            work.

    Returns:
        [m, n] in `out_dtype`, a new tensor.

    Raises:
        ValueError: a shape, dtype, device or variant that does not fit; the message names the
            argument.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
    check_tiles(tiles)
    if tiles is not None and variant != "tiled":
        raise ValueError(f"tiles must be None for variant {variant!r}, got {tiles!r}")
    check_dtypes(a, b)
    m, n, _ = check_operands(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    check_addend(c, (m, n), a.device, accumulate=accumulate)
    out_dtype = check_out_dtype(out_dtype, c, a.dtype)
    if c is None:
        out = torch.empty(m, n, dtype=out_dtype, device=a.device)
    else:
        out = c.clone(memory_format=torch.contiguous_format)
    _check_variant(variant, a, b)
    if out.numel() == 0:
        return out
    a, b = a.contiguous(), b.contiguous()
    if a.numel() == 0:  # k is 0: an empty sum, and no tile to load
        return out if accumulate else out.zero_()
    options = (dtype_name(a.dtype), dtype_name(out_dtype), transpose_a, transpose_b, accumulate)
    if variant == "tiled":
        whole_rows = rows_aligned(a, b)
        wide = gemm_tiles(capability(), "wide", whole_rows=whole_rows)
        size = tiles or size_for(m, n, wide, multiprocessors(a.device))
        gemm_kernel(*options, whole_rows, size)(a, b, out)
    elif variant == "tcgen05":
        whole_rows = rows_aligned(a, b, out)
        shape = TCGEN05_TILES if whole_rows else RAGGED_TCGEN05_TILES
        tcgen05_kernel(*options, whole_rows, shape)(a, b, out)
    else:
        if variant == "tcgen05_ws":
            kernel = tcgen05_ws_kernel(*options, rows_aligned(out))
            rows, columns = TCGEN05_TILES.block_m, TCGEN05_TILES.block_n
        else:
            kernel = wgmma_ws_kernel(*options, rows_aligned(out))
            rows, columns = 2 * WGMMA_TILES.half_m, WGMMA_TILES.block_n
        count = -(-m // rows) * -(-n // columns)
        kernel(ready(a), ready(b), out, min(count, _blocks(a.device)))
    return out


def _check_variant(variant: str, a: torch.Tensor, b: torch.Tensor) -> None:
    """Refuse what a kernel for one architecture cannot do."""
    wanted = VARIANTS[variant]
    if wanted is not None and a.device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(a.device)
        if major != wanted:
            raise ValueError(
                f"variant {variant!r} needs a GPU of compute capability {wanted}, "
                f"got {major}.{minor}: use variant 'tiled'"
            )
    if variant not in PERSISTENT:
        return
    step = ROW_BYTES // a.element_size()
    for name, tensor in (("a", a), ("b", b)):
        if tensor.shape[1] % step:
            raise ValueError(
                f"{name} must have rows of a multiple of {step} elements ({ROW_BYTES} bytes) for "
                f"variant {variant!r}, got {tensor.shape[1]}: use variant 'tiled'"
            )


def _blocks(device: torch.device) -> int:
    """How many blocks of a persistent kernel run at once."""
    return multiprocessors(device) if device.type == "cuda" else BLOCKS_WITHOUT_GPU
