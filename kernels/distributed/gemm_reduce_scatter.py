"""GEMM and reduce-scatter at once: parts of the product travel while others are made."""

from dataclasses import dataclass

import torch

from tlmatrix_kernels.alignment import aligned
from tlmatrix_kernels.distributed.barriers import barrier
from tlmatrix_kernels.distributed.collectives import reduce_scatter_rows
from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.gemm_launch import CheckedCall, call_key, gemm_launch
from tlmatrix_kernels.distributed.gemm_ordered import gemm_signalling
from tlmatrix_kernels.distributed.memory import SymmetricBuffer
from tlmatrix_kernels.distributed.overlap import should_overlap
from tlmatrix_kernels.distributed.partition import row_ranges
from tlmatrix_kernels.distributed.pull import wait_by_kernel, wait_by_stream
from tlmatrix_kernels.distributed.ring import add_in_ring_order, ring
from tlmatrix_kernels.distributed.segments import MAX_SEGMENTS, own_segments, segment_count
from tlmatrix_kernels.distributed.validate import check_bias, check_share
from tlmatrix_kernels.gemm import gemm
from tlmatrix_kernels.gemm.validate import (
    check_dtypes,
    check_operands,
    check_out_dtype,
    rows_aligned,
)

__all__ = ["gemm_reduce_scatter"]

MAX_ELEMENTS = 2**30
"""Of a rank's share: peers count them, modulo 2^32, and may be up to two calls ahead."""


def gemm_reduce_scatter(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    context: Context,
    transpose_b: bool = False,
    out_dtype: torch.dtype | None = None,
    k: int | None = None,
    overlap: bool | None = None,
) -> torch.Tensor:
    """This rank's share of the rows of `sum over ranks of a @ op(b)`, plus `bias`.

    Each rank has a slice of k. Its product is rounded once, to the dtype of the result; the sum
    over ranks, and the bias, is float32, and rounded once more.

    Args:
        a: [m, my k]; float16 or bfloat16.
        b: [my k, n], or [n, my k] with `transpose_b`; the dtype of `a`.
        bias: [n], the same on all ranks, added once; float16, bfloat16 or float32.
        context: see `create_context`.
        transpose_b: whether `b` is stored transposed.
        out_dtype: of the result: that of `a`, unless given (float16, bfloat16 or float32).
        k: of all ranks together, of which each has its share: so all ranks make the same choice of
            `overlap` without a word to each other.
        overlap: whether parts travel while others are made; by default where that is faster than a
            kernel and then a collective (`choose`). All ranks must agree.

    Returns:
        [my rows, n] in `out_dtype`, a new tensor; m rows are shared as `torch.tensor_split` does.

    Raises:
        ValueError: a shape, dtype or device that does not fit; the message names the argument.
        RuntimeError: `overlap` while a CUDA graph is captured.
    """
    key = call_key(a, b, "gemm_reduce_scatter", transpose_b, out_dtype, k)
    call = context.cached(
        key, lambda: _checked(a, b, context, transpose_b=transpose_b, out_dtype=out_dtype, k=k)
    )
    check_bias(bias, call.n, a.device)
    if not should_overlap("gemm_reduce_scatter", overlap, context, (call.m, call.n), call.k, k):
        parts = gemm(a, b, transpose_b=transpose_b, out_dtype=call.out_dtype)
        return reduce_scatter_rows(parts, context, bias)
    if -(-call.m // context.world) * call.n > MAX_ELEMENTS:
        raise ValueError(
            f"a rank's share of [{call.m}, {call.n}] must have at most {MAX_ELEMENTS} elements, "
            f"which it counts in 32 bits: use overlap=False"
        )
    begin, end = call.cuts[context.rank]
    out = torch.empty(end - begin, call.n, dtype=call.out_dtype, device=a.device)
    if call.m > 0 and call.n > 0:
        if call.k == 0:  # a slice of nothing: zeros to add
            a = a.new_zeros(call.m, 8)
            b = b.new_zeros((call.n, 8) if transpose_b else (8, call.n))
        if bias is not None:
            bias = bias.float().contiguous()
        _overlapped(call, aligned(a), aligned(b), bias, out, context)
    return out


@dataclass(frozen=True)
class _Half:
    """Products in one half of the symmetric memory; of each rank's our rows, and its counts.

    `done` has those that tell other ranks of their rows, `made` those of pieces of our own.
    """

    buffer: SymmetricBuffer
    done: list[torch.Tensor]
    made: torch.Tensor
    product: torch.Tensor
    ours: list[torch.Tensor]


def _checked(
    a: torch.Tensor,
    b: torch.Tensor,
    context: Context,
    *,
    transpose_b: bool,
    out_dtype: torch.dtype | None,
    k: int | None,
) -> CheckedCall:
    check_dtypes(a, b)
    m, n, mine = check_operands(a, b, transpose_a=False, transpose_b=transpose_b)
    out_dtype = check_out_dtype(out_dtype, None, a.dtype)
    if k is not None:
        check_share("a", "columns", mine, k, context, "k")
    return CheckedCall(m, n, mine, out_dtype, transpose_b, row_ranges(m, context.world))


def _half(call: CheckedCall, number: int, context: Context) -> _Half:
    """That half of the buffer for such a call."""
    shape, dtype = [call.m, call.n], call.out_dtype
    buffer = context.buffer(f"gemm_reduce_scatter/{number}", call.m * call.n * dtype.itemsize)
    half = call.halves.get(number)
    if half is None or half.buffer is not buffer:
        begin, end = call.cuts[context.rank]
        ranks = range(context.world)
        flags = context.flags("gemm_reduce_scatter/done", context.world)
        done = [flags.on(peer, [context.world], torch.int32) for peer in ranks]
        made = context.flags("gemm_reduce_scatter/made", MAX_SEGMENTS)
        ours = [buffer.on(peer, shape, dtype)[begin:end] for peer in ranks]
        half = call.halves[number] = _Half(
            buffer, done, made.local([MAX_SEGMENTS], torch.int32), buffer.local(shape, dtype), ours
        )
    return half


def _overlapped(
    call: CheckedCall,
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    context: Context,
) -> None:
    """`out` = my rows of the sum over ranks of a @ op(b).

    Tiles are made rank by rank: first those of the next rank, ours last. So what rank r has for us
    is ready the earlier, the closer r is before us, and no rank is asked by two at once. A second
    stream waits until a rank has made all of our rows and pulls them by the copy engine; then it
    adds our own rows piece by piece, while the kernel makes the next piece (`pieces`). The kernel
    waits for nobody, so nothing is starved of a place to run. Its blocks are one a tile: those of a
    sum, which come first, take the places of tiles that are done.
    """
    rank, world = context.rank, context.world
    epoch = context.next_epoch("gemm_reduce_scatter")
    half = _half(call, epoch % 2, context)
    counts = [(last - first) * call.n for first, last in call.cuts]
    total = context.expected_counts("gemm_reduce_scatter", counts)[rank]

    side = context.side_stream()
    whole_rows = rows_aligned(a, b)
    most = segment_count(-(-call.m // world), call.n, 2.0 * call.m * call.n * call.k)
    launch = call.launches.get(whole_rows)
    if launch is None:
        launch = call.launches[whole_rows] = gemm_launch(
            gemm_signalling,
            a,
            half.product,
            world,
            call.cuts[(rank + 1) % world][0],
            transpose_b=call.transpose_b,
            whole_rows=whole_rows,
            whole_tile=False,
            panels=most,
        )
    own = own_segments(call.cuts[rank], call.m, launch, most)
    made = [(last - first) * call.n for first, last in own.cuts]
    made += [0] * (MAX_SEGMENTS - len(made))
    made = context.expected_counts("gemm_reduce_scatter/made", made)
    order = launch.first, launch.panel, rank, own.base, own.step
    launch.kernel(a, b, half.product, half.done[rank], half.made, *order)
    with torch.cuda.stream(side):
        barrier(half.buffer)
        if out.numel() > 0:
            parts = out.new_empty(world - 1, *out.shape)
            for slot, peer in enumerate(ring(rank, world)):
                wait_by_kernel(half.done[peer], rank, total)
                parts[slot].copy_(half.ours[peer])
            for piece, (first, last) in enumerate(own.cuts):
                wait_by_stream(half.made, piece, made[piece])
                mine = half.ours[rank][first:last]
                add_in_ring_order(parts, mine, bias, out[first:last], first)
    torch.cuda.current_stream().wait_stream(side)
