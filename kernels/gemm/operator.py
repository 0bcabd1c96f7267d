"""The GEMM operator: checks its arguments, makes room for the result, and calls a kernel."""

import torch

from tlmatrix_kernels.gemm.kernel import gemm_kernel
from tlmatrix_kernels.gemm.tcgen05 import TCGEN05_TILES, tcgen05_kernel, tcgen05_ws_kernel
from tlmatrix_kernels.gemm.wgmma import WGMMA_TILES, wgmma_ws_kernel

__all__ = ["VARIANTS", "gemm"]

DTYPES = (torch.float16, torch.bfloat16)
OUT_DTYPES = (*DTYPES, torch.float32)
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

    Returns:
        [m, n] in `out_dtype`, a new tensor.

    Raises:
        ValueError: a shape, dtype, device or variant that does not fit; the message names the
            argument.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
    m, n = _check(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    if accumulate:
        c = _check_addend(c, (m, n), a.device)
        out_dtype = out_dtype or c.dtype
        if out_dtype != c.dtype:
            raise ValueError(f"out_dtype must be the dtype of c, {c.dtype}, got {out_dtype}")
        out = c.clone(memory_format=torch.contiguous_format)
    else:
        if c is not None:
            raise ValueError("c is only used with accumulate=True; leave it out or set accumulate")
        out_dtype = out_dtype or a.dtype
        if out_dtype not in OUT_DTYPES:
            raise ValueError(f"out_dtype must be one of {_names(OUT_DTYPES)}, got {out_dtype}")
        out = torch.empty(m, n, dtype=out_dtype, device=a.device)
    _check_variant(variant, a, b)
    if out.numel() == 0:
        return out
    a, b = a.contiguous(), b.contiguous()
    if a.numel() == 0:  # k is 0: an empty sum, and no tile to load
        return out if accumulate else out.zero_()
    options = (_name(a.dtype), _name(out_dtype), transpose_a, transpose_b, accumulate)
    if variant == "tiled":
        gemm_kernel(*options, _rows_aligned(a, b))(a, b, out)
    elif variant == "tcgen05":
        tcgen05_kernel(*options, _rows_aligned(a, b, out))(a, b, out)
    else:
        if variant == "tcgen05_ws":
            kernel = tcgen05_ws_kernel(*options, _rows_aligned(out))
            rows, columns = TCGEN05_TILES.block_m, TCGEN05_TILES.block_n
        else:
            kernel = wgmma_ws_kernel(*options, _rows_aligned(out))
            rows, columns = 2 * WGMMA_TILES.half_m, WGMMA_TILES.block_n
        tiles = -(-m // rows) * -(-n // columns)
        kernel(_aligned(a), _aligned(b), out, min(tiles, _blocks(a.device)))
    return out


def _check(
    a: torch.Tensor, b: torch.Tensor, *, transpose_a: bool, transpose_b: bool
) -> tuple[int, int]:
    """(m, n) of the product, once `a` and `b` are known to fit."""
    for name, tensor in (("a", a), ("b", b)):
        if tensor.ndim != 2:
            raise ValueError(f"{name} must have 2 dimensions, got shape {tuple(tensor.shape)}")
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{name} must be one of {_names(DTYPES)}, got {tensor.dtype}")
    if b.dtype != a.dtype:
        raise ValueError(f"b must have the dtype of a, {a.dtype}, got {b.dtype}")
    if b.device != a.device:
        raise ValueError(f"b must be on the device of a, {a.device}, got {b.device}")
    m, k = reversed(a.shape) if transpose_a else a.shape
    n, k_of_b = b.shape if transpose_b else reversed(b.shape)
    if k != k_of_b:
        raise ValueError(
            f"a and b must agree in k: a of shape {tuple(a.shape)} has k = {k}, "
            f"b of shape {tuple(b.shape)} has k = {k_of_b}"
        )
    return m, n


def _check_addend(
    c: torch.Tensor | None, shape: tuple[int, int], device: torch.device
) -> torch.Tensor:
    if c is None:
        raise ValueError("c must be given with accumulate=True: it is what the product is added to")
    if tuple(c.shape) != shape:
        raise ValueError(f"c must have shape {shape}, got {tuple(c.shape)}")
    if c.dtype not in OUT_DTYPES:
        raise ValueError(f"c must be one of {_names(OUT_DTYPES)}, got {c.dtype}")
    if c.device != device:
        raise ValueError(f"c must be on the device of a, {device}, got {c.device}")
    return c


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


ROW_BYTES = 16
"""TMA reads and writes rows that start at multiples of this many bytes."""


def _rows_aligned(*tensors: torch.Tensor) -> bool:
    """Whether every row of every tensor starts where TMA needs it."""
    return all(
        tensor.data_ptr() % ROW_BYTES == 0
        and tensor.stride(0) * tensor.element_size() % ROW_BYTES == 0
        for tensor in tensors
    )


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, copied if it does not start where TMA needs it."""
    return tensor if tensor.data_ptr() % ROW_BYTES == 0 else tensor.clone()


def _blocks(device: torch.device) -> int:
    """How many blocks of a persistent kernel run at once."""
    if device.type != "cuda":
        return BLOCKS_WITHOUT_GPU
    return torch.cuda.get_device_properties(device).multi_processor_count


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(_name(dtype) for dtype in dtypes)
