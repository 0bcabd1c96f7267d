"""The split-K GEMM operator: chooses the number of slices, allocates the workspace and launches."""

import torch

from tlmatrix_kernels.dtypes import dtype_name
from tlmatrix_kernels.gemm.split_k import (
    atomic_sums_kernel,
    combine_kernel,
    partial_sums_kernel,
)
from tlmatrix_kernels.gemm.tiles import split_size, split_tiles
from tlmatrix_kernels.gemm.validate import (
    check_addend,
    check_dtypes,
    check_operands,
    check_out_dtype,
    rows_aligned,
)
from tlmatrix_kernels.target import capability, multiprocessors

REDUCTIONS = ("workspace", "atomic")
MAX_SPLITS = 32
"""Beyond it, adding the slices takes longer than the split saves."""
MIN_STEPS = 4
"""Minimum K steps per slice; with fewer, filling and draining the pipeline dominates."""


def gemm_split_k(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    accumulate: bool = False,
    out_dtype: torch.dtype | None = None,
    splits: int | None = None,
    reduction: str = "workspace",
) -> torch.Tensor:
    """`op(a) @ op(b)`, plus `c` if `accumulate`, with K split into slices that run in parallel.

    For products with few output tiles and a long K, e.g. decoding one token, or a weight gradient.
    Accumulates in float32 and rounds the result once.

    Args:
        a: [m, k], or [k, m] with `transpose_a`; float16 or bfloat16.
        b: [k, n], or [n, k] with `transpose_b`; the dtype of `a`.
        c: [m, n], the addend with `accumulate`; not modified.
        transpose_a: whether `a` is stored transposed.
        transpose_b: whether `b` is stored transposed.
        accumulate: whether `c` is added.
        out_dtype: dtype of the result: with `c` the dtype of `c`; otherwise float16, bfloat16 or
            float32, by default the dtype of `a`.
        splits: slices of K, at least 1; slices beyond K are empty. By default see `choose_splits`.
        reduction: "workspace" adds the slices in order, bitwise reproducible, with a workspace
            [splits, m, n] float32. "atomic" adds them by atomics in [m, n] float32; the last bits
            vary from run to run.

    Returns:
        [m, n] in `out_dtype`, a new tensor.

    Raises:
        ValueError: an invalid shape, dtype, device, number of splits or reduction; the message
            names the argument.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    if splits is not None and splits < 1:
        raise ValueError(f"splits must be at least 1, got {splits}")
    check_dtypes(a, b)
    m, n, k = check_operands(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    check_addend(c, (m, n), a.device, accumulate=accumulate)
    out_dtype = check_out_dtype(out_dtype, c, a.dtype)
    if splits is None:
        splits = choose_splits(m, n, k, multiprocessors(a.device))
    if m == 0 or n == 0 or k == 0:  # an empty sum; the kernels need a tile to load
        return a.new_zeros(m, n, dtype=out_dtype) if c is None else c.clone()
    a, b = a.contiguous(), b.contiguous()
    whole_rows = rows_aligned(a, b)
    options = (dtype_name(a.dtype), transpose_a, transpose_b, whole_rows, split_size(m))
    if reduction == "atomic" and out_dtype == torch.float32:
        sums = a.new_zeros(m, n, dtype=out_dtype) if c is None else _copied(c)
        atomic_sums_kernel(*options)(a, b, sums, splits)
        return sums
    if reduction == "atomic":
        sums = a.new_zeros(1, m, n, dtype=torch.float32)
        atomic_sums_kernel(*options)(a, b, sums[0], splits)
    else:
        sums = a.new_empty(splits, m, n, dtype=torch.float32)
        partial_sums_kernel(*options)(a, b, sums)
    out = a.new_empty(m, n, dtype=out_dtype) if c is None else _copied(c)
    combine_kernel(dtype_name(out_dtype), accumulate)(sums.view(-1, m * n), out.view(m * n))
    return out


def choose_splits(m: int, n: int, k: int, processors: int) -> int:
    """The number of K slices, 1 to 32, for [m, k] @ [k, n] on `processors` multiprocessors.

    The largest number that fits one wave of blocks, with at least `MIN_STEPS` K steps per slice.
    """
    tiles = split_tiles(capability(), split_size(m), whole_rows=True)
    blocks = max(1, tiles.count(m, n))
    steps = -(-k // tiles.block_k)
    return max(1, min(processors // blocks, steps // MIN_STEPS, MAX_SPLITS))


def _copied(c: torch.Tensor) -> torch.Tensor:
    return c.clone(memory_format=torch.contiguous_format)
