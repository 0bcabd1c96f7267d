"""The GEMM operator: checks arguments, allocates the result and launches a kernel."""

import torch

from tlmatrix_kernels.alignment import aligned
from tlmatrix_kernels.dtypes import dtype_name
from tlmatrix_kernels.gemm.kernel import gemm_kernel
from tlmatrix_kernels.gemm.operands import ROW_BYTES
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
from tlmatrix_kernels.gemm.wgmma import wgmma_tiles, wgmma_ws_kernel
from tlmatrix_kernels.target import capability, multiprocessors

VARIANTS = {"tiled": None, "tcgen05": 10, "tcgen05_ws": 10, "wgmma_ws": 9}
"""The required major compute capability of each variant; None for any."""
PERSISTENT = ("tcgen05_ws", "wgmma_ws")
BLOCKS_WITHOUT_GPU = 2
"""Grid size of a persistent kernel if there is no GPU."""


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    accumulate: bool = False,
    out_dtype: torch.dtype | None = None,
    variant: str | None = None,
    tiles: str | None = None,
) -> torch.Tensor:
    """`op(a) @ op(b)`, plus `c` if `accumulate`; accumulated in float32, rounded once.

    Args:
        a: [m, k], or [k, m] with `transpose_a`; float16 or bfloat16.
        b: [k, n], or [n, k] with `transpose_b`; the dtype of `a`.
        c: [m, n], the addend with `accumulate`; not modified.
        transpose_a: whether `a` is stored transposed.
        transpose_b: whether `b` is stored transposed.
        accumulate: whether `c` is added.
        out_dtype: dtype of the result: with `c` the dtype of `c`; otherwise float16, bfloat16 or
            float32, by default the dtype of `a`.
        variant: the kernel: "tiled" on any GPU; on Blackwell (sm_100) also "tcgen05", and the
            warp-specialized persistent "tcgen05_ws"; on Hopper (sm_90) the warp-specialized
            persistent "wgmma_ws". The last two load by TMA and need rows of `a` and `b` that are
            multiples of 8 elements (16 bytes). By default "wgmma_ws" on Hopper for wide tiles,
            such rows and a 16-bit result, otherwise "tiled".
        tiles: for the variants "tiled" and "wgmma_ws": "wide" or "narrow"; by default chosen to
            occupy every multiprocessor.

    Returns:
        [m, n] in `out_dtype`, a new tensor.

    Raises:
        ValueError: an invalid shape, dtype, device or variant; the message names the argument.
    """
    if variant is not None and variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
    check_tiles(tiles)
    if tiles is not None and variant not in (None, "tiled", "wgmma_ws"):
        raise ValueError(f"tiles must be None for variant {variant!r}, got {tiles!r}")
    check_dtypes(a, b)
    m, n, _ = check_operands(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    check_addend(c, (m, n), a.device, accumulate=accumulate)
    out_dtype = check_out_dtype(out_dtype, c, a.dtype)
    if c is None:
        out = torch.empty(m, n, dtype=out_dtype, device=a.device)
    else:
        out = c.clone(memory_format=torch.contiguous_format)
    if variant is not None:
        _check_variant(variant, a, b)
    if out.numel() == 0:
        return out
    a, b = a.contiguous(), b.contiguous()
    if a.numel() == 0:  # k is 0: an empty sum; the kernel needs a tile to load
        return out if accumulate else out.zero_()
    whole_rows = rows_aligned(a, b)
    wide = gemm_tiles(capability(), "wide", whole_rows=whole_rows)
    size = tiles or size_for(m, n, wide, multiprocessors(a.device))
    if variant is None:
        by_tma = capability() // 10 == VARIANTS["wgmma_ws"] and whole_rows
        halves = out_dtype != torch.float32
        variant = "wgmma_ws" if by_tma and halves and size == "wide" else "tiled"
    options = (dtype_name(a.dtype), dtype_name(out_dtype), transpose_a, transpose_b, accumulate)
    if variant == "tiled":
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
            shape = wgmma_tiles(size, dtype_name(out_dtype))
            kernel = wgmma_ws_kernel(*options, rows_aligned(out), shape)
            rows, columns = 2 * shape.half_m, shape.block_n
        count = -(-m // rows) * -(-n // columns)
        kernel(aligned(a), aligned(b), out, min(count, _blocks(a.device)))
    return out


def _check_variant(variant: str, a: torch.Tensor, b: torch.Tensor) -> None:
    """Raises ValueError if the device or the row lengths do not suit the variant."""
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
    """The grid size of a persistent kernel: one block per multiprocessor."""
    return multiprocessors(device) if device.type == "cuda" else BLOCKS_WITHOUT_GPU
