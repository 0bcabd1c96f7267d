"""The split-K GEMM operator: how many slices a sum gets, and who adds them."""

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

__all__ = ["REDUCTIONS", "choose_splits", "gemm_split_k"]

REDUCTIONS = ("workspace", "atomic")
MOST_SPLITS = 32
"""More slices of one element take longer to add than they save."""
LEAST_STEPS = 4
"""Of K for a slice: with fewer, filling and draining the pipeline takes most of the time."""


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
    """`op(a) @ op(b)`, plus `c` when `accumulate` is set, with K in slices that are summed at once.

    For products with few output tiles and a long K: one decoded token times a weight, a weight's
    gradient. Sums are float32, and the result is rounded once.

    Args:
        a: [m, k], or [k, m] with `transpose_a`; float16 or bfloat16.
        b: [k, n], or [n, k] with `transpose_b`; the dtype of `a`.
        c: [m, n], what is added with `accumulate`; not changed.
        transpose_a: whether `a` is stored transposed.
        transpose_b: whether `b` is stored transposed.
        accumulate: whether `c` is added.
        out_dtype: dtype of the result: that of `c` when it is added, else that of `a`, unless
            given (float16, bfloat16 or float32).
        splits: slices of K, 1 or more (more than K has elements is fine: the last ones are empty);
            by default as many as give every multiprocessor a block, see `choose_splits`.
        reduction: "workspace" adds slices in their order, [splits, m, n] float32 of memory: the
            same bits at every call. "atomic" adds them as they end, in [m, n] float32: no two calls
            need agree in the last bits.

    Returns:
        [m, n] in `out_dtype`, a new tensor.

    Raises:
        ValueError: a shape, dtype, device, count or reduction that does not fit; the message names
            the argument.
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
    if m == 0 or n == 0 or k == 0:  # an empty sum, and no tile to load
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
    """Slices of K for a product [m, k] @ [k, n] on a GPU of so many multiprocessors; 1 to 32.

    As many as its output tiles go into the multiprocessors, so that there is one wave of blocks,
    but none that would have less than four steps of K to sum.
    """
    tiles = split_tiles(capability(), split_size(m), whole_rows=True)
    blocks = max(1, tiles.count(m, n))
    steps = -(-k // tiles.block_k)
    return max(1, min(processors // blocks, steps // LEAST_STEPS, MOST_SPLITS))


def _copied(c: torch.Tensor) -> torch.Tensor:
    return c.clone(memory_format=torch.contiguous_format)
