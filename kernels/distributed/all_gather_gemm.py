"""All-gather and GEMM at once: tiles of the rows that are here are made while others arrive."""

import torch

from tlmatrix_kernels.alignment import ready as aligned
from tlmatrix_kernels.distributed.barriers import barrier
from tlmatrix_kernels.distributed.choose import overlaps
from tlmatrix_kernels.distributed.collectives import gathered
from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.gemm_ordered import gemm_on_arrival
from tlmatrix_kernels.distributed.pull import arrivals, pull, signed, write_flag
from tlmatrix_kernels.distributed.shares import shares
from tlmatrix_kernels.distributed.swizzle import panel_height
from tlmatrix_kernels.distributed.validate import check_rows
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

__all__ = ["all_gather_gemm"]


def all_gather_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    context: Context,
    transpose_b: bool = False,
    out_dtype: torch.dtype | None = None,
    m: int | None = None,
    overlap: bool | None = None,
) -> torch.Tensor:
    """`all_gather(a) @ op(b)`: the rows of all ranks times what each has of the columns.

    Args:
        a: [my rows, k]; float16 or bfloat16.
        b: [k, n], or [n, k] with `transpose_b`: this rank's columns; the dtype of `a`.
        context: see `create_context`.
        transpose_b: whether `b` is stored transposed.
        out_dtype: of the result: that of `a`, unless given (float16, bfloat16 or float32).
        m: rows of `a` on all ranks together, where they do not all have as many: then each has its
            share (`torch.tensor_split`).
        overlap: whether tiles are made while rows arrive; by default where that is faster than a
            collective and then a kernel (`choose`). All ranks must agree.

    Returns:
        [m, n] in `out_dtype`, a new tensor.

    Raises:
        ValueError: a shape, dtype or device that does not fit; the message names the argument.
        RuntimeError: `overlap` while a CUDA graph is captured.
    """
    check_dtypes(a, b)
    _, n, k = check_operands(a, b, transpose_a=False, transpose_b=transpose_b)
    out_dtype = check_out_dtype(out_dtype, None, a.dtype)
    m = check_rows("a", a.shape[0], m, context, "m")
    if not overlaps("all_gather_gemm", overlap, context, m, n, k):
        whole = gathered(a, m, context)
        return gemm(whole, b, transpose_b=transpose_b, out_dtype=out_dtype)
    out = torch.empty(m, n, dtype=out_dtype, device=a.device)
    if k == 0 or m == 0:
        return out.zero_()
    _overlapped(a, aligned(b), out, transpose_b, context)
    return out


def _overlapped(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, transpose_b: bool, context: Context
) -> None:
    """`out` = all rows of `a` times op(b).

    The gathered rows are a symmetric buffer, in which every rank puts its own: peers pull them from
    there to the same place in theirs, once the barrier says that they are there. Copies, and the
    flags behind them, take no multiprocessor, so tiles may fill the GPU and wait.
    """
    rank, world = context.rank, context.world
    (m, n), k = out.shape, a.shape[1]
    cuts = shares(m, world)
    epoch = context.begin("all_gather_gemm")
    buffer = context.buffer(f"all_gather_gemm/{epoch % 2}", m * k * a.element_size())
    flags = context.flags("all_gather_gemm/ready", world).mine([world], torch.int32)
    whole = buffer.mine([m, k], a.dtype)
    whole[slice(*cuts[rank])].copy_(a)
    barrier(buffer)
    write_flag(flags, rank, epoch)
    side = context.side()
    with torch.cuda.stream(side):
        pull(
            arrivals(rank, world),
            source=lambda peer: buffer.on(peer, [m, k], a.dtype)[slice(*cuts[peer])],
            target=lambda peer: whole[slice(*cuts[peer])],
            arrived=lambda peer: write_flag(flags, peer, epoch),
        )
    if n > 0:
        whole_rows = rows_aligned(whole, b)
        wide = gemm_tiles(capability(), "wide", whole_rows=whole_rows)
        size = size_for(m, n, wide, multiprocessors(a.device))
        tiles = gemm_tiles(capability(), size, whole_rows=whole_rows)
        kernel = gemm_on_arrival(
            dtype_name(a.dtype), dtype_name(out.dtype), transpose_b, whole_rows, size
        )
        # The first row of tiles that has only rows of ours, or one that has some.
        first = -(-cuts[rank][0] // tiles.block_m) % -(-m // tiles.block_m)
        panel = panel_height(m, world, tiles.block_m)
        kernel(whole, b, out, flags, signed(epoch), first, panel)
    torch.cuda.current_stream().wait_stream(side)
