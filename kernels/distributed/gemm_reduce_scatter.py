"""GEMM and reduce-scatter at once: parts of the product travel while others are made."""

import torch

from tlmatrix_kernels.alignment import ready as aligned
from tlmatrix_kernels.distributed.barriers import barrier
from tlmatrix_kernels.distributed.choose import overlaps
from tlmatrix_kernels.distributed.collectives import scattered_sum
from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.gemm_ordered import gemm_signalling
from tlmatrix_kernels.distributed.pull import wait_flag
from tlmatrix_kernels.distributed.ring import add_in_ring_order, ring
from tlmatrix_kernels.distributed.shares import share, shares
from tlmatrix_kernels.distributed.swizzle import panel_height
from tlmatrix_kernels.distributed.validate import check_bias
from tlmatrix_kernels.dtypes import dtype_name
from tlmatrix_kernels.gemm import gemm
from tlmatrix_kernels.gemm.tiles import gemm_tiles, size_for
from tlmatrix_kernels.gemm.validate import (
    check_dtypes,
    check_operands,
    check_out_dtype,
    rows_aligned,
)
from tlmatrix_kernels.target import capability, multiprocessors

__all__ = ["gemm_reduce_scatter"]

MOST_ELEMENTS = 2**30
"""Of a rank's share: peers count them, modulo 2^32, and may be up to two calls ahead."""


def gemm_reduce_scatter(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    context: Context,
    transpose_b: bool = False,
    out_dtype: torch.dtype | None = None,
    overlap: bool | None = None,
) -> torch.Tensor:
    """This rank's share of the rows of `sum over ranks of a @ op(b)`, plus `bias`.

    Each rank has a slice of k. Its product is rounded once, to the dtype of the result; the sum
    over ranks is float32 (with `overlap`; else as `torch.distributed` adds), and rounded once more.

    Args:
        a: [m, my k]; float16 or bfloat16.
        b: [my k, n], or [n, my k] with `transpose_b`; the dtype of `a`.
        bias: [n], the same on all ranks, added once; float16, bfloat16 or float32.
        context: see `create_context`.
        transpose_b: whether `b` is stored transposed.
        out_dtype: of the result: that of `a`, unless given (float16, bfloat16 or float32).
        overlap: whether parts travel while others are made; by default where that is faster than a
            kernel and then a collective (`choose`). All ranks must agree: give it where they do not
            all have as much of k.

    Returns:
        [my rows, n] in `out_dtype`, a new tensor; m rows are shared as `torch.tensor_split` does.

    Raises:
        ValueError: a shape, dtype or device that does not fit; the message names the argument.
        RuntimeError: `overlap` while a CUDA graph is captured.
    """
    check_dtypes(a, b)
    m, n, k = check_operands(a, b, transpose_a=False, transpose_b=transpose_b)
    out_dtype = check_out_dtype(out_dtype, None, a.dtype)
    check_bias(bias, n, a.device)
    if not overlaps("gemm_reduce_scatter", overlap, context, m, n, k):
        parts = gemm(a, b, transpose_b=transpose_b, out_dtype=out_dtype)
        out = scattered_sum(parts, context)
        return out if bias is None else (out.float() + bias.float()).to(out_dtype)
    begin, end = share(m, context.world, context.rank)
    if -(-m // context.world) * n > MOST_ELEMENTS:
        raise ValueError(
            f"a rank's share of [{m}, {n}] must have at most {MOST_ELEMENTS} elements, which "
            f"it counts in 32 bits: use overlap=False"
        )
    out = torch.empty(end - begin, n, dtype=out_dtype, device=a.device)
    if m > 0 and n > 0:
        if k == 0:  # a slice of nothing: zeros to add
            a, b = a.new_zeros(m, 8), b.new_zeros((n, 8) if transpose_b else (8, n))
        if bias is not None:
            bias = bias.float().contiguous()
        _overlapped(aligned(a), aligned(b), bias, out, transpose_b, context)
    return out


def _overlapped(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    transpose_b: bool,
    context: Context,
) -> None:
    """`out` = my rows of the sum over ranks of a @ op(b).

    Tiles are made rank by rank: first those of the next rank, ours last. So what rank r has for us
    is ready the earlier, the closer r is before us, and no rank is asked by two at once. A second
    stream waits until a rank has made all of our rows, pulls them by the copy engine, and adds. The
    kernel waits for nobody, so nothing is starved of a place to run.
    """
    rank, world = context.rank, context.world
    m, n = a.shape[0], out.shape[1]
    cuts = shares(m, world)
    begin, end = cuts[rank]
    epoch = context.begin("gemm_reduce_scatter")
    buffer = context.buffer(f"gemm_reduce_scatter/{epoch % 2}", m * n * out.element_size())
    flags = context.flags("gemm_reduce_scatter/done", world)
    product = buffer.mine([m, n], out.dtype)
    whole_rows = rows_aligned(a, b)
    wide = gemm_tiles(capability(), "wide", whole_rows=whole_rows)
    size = size_for(m, n, wide, multiprocessors(a.device))
    tiles = gemm_tiles(capability(), size, whole_rows=whole_rows)
    counts = [(last - first) * n for first, last in cuts]
    total = context.count("gemm_reduce_scatter", counts)[rank]

    side = context.side()
    kernel = gemm_signalling(
        dtype_name(a.dtype), dtype_name(out.dtype), transpose_b, whole_rows, size
    )
    first = cuts[(rank + 1) % world][0] // tiles.block_m % -(-m // tiles.block_m)
    panel = panel_height(m, world, tiles.block_m)
    kernel(a, b, product, flags.mine([world], torch.int32), first, panel)
    with torch.cuda.stream(side):
        barrier(buffer)
        if out.numel() > 0:
            parts = out.new_empty(world - 1, *out.shape)
            for slot, peer in enumerate(ring(rank, world)):
                wait_flag(flags.on(peer, [world], torch.int32), rank, total)
                parts[slot].copy_(buffer.on(peer, [m, n], out.dtype)[begin:end])
            wait_flag(flags.mine([world], torch.int32), rank, total)
            add_in_ring_order(parts, product[begin:end], bias, out)
    torch.cuda.current_stream().wait_stream(side)
