"""Overlapped GEMM and reduce-scatter: rows of the product travel while others are computed."""

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
from tlmatrix_kernels.distributed.validate import (
    check_bias,
    check_bool,
    check_context,
    check_overlap,
    check_partition,
)
from tlmatrix_kernels.gemm import gemm
from tlmatrix_kernels.gemm.validate import (
    check_dtypes,
    check_operands,
    check_out_dtype,
    rows_aligned,
)

MAX_ELEMENTS = 2**30
"""Per rank's rows: peers count elements modulo 2^32, and may be up to two calls ahead."""


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
    """This rank's rows of `sum over ranks of a @ op(b)`, plus `bias`.

    Each rank has a slice of k. Its product is rounded once, to the dtype of the result; the sum
    over ranks, with the bias, is float32, and rounded once more.

    Args:
        a: [m, local k]; float16 or bfloat16.
        b: [local k, n], or [n, local k] with `transpose_b`; the dtype of `a`.
        bias: [n], the same on all ranks, added once; float16, bfloat16 or float32.
        context: see `create_context`.
        transpose_b: whether `b` is stored transposed.
        out_dtype: dtype of the result: float16, bfloat16 or float32; by default the dtype of `a`.
        k: the total over all ranks, split as by `torch.tensor_split`; with it, ranks agree on
            `overlap` without communication.
        overlap: whether to overlap computation and communication, or run a GEMM and then a
            collective; by default the faster one (see `overlap`). Must be the same on all ranks.

    Returns:
        [local rows, n] in `out_dtype`, a new tensor; m is split as by `torch.tensor_split`.

    Raises:
        ValueError: an invalid argument; the message names it. Or ranks differ in m, n, out_dtype,
            k or overlap.
        TypeError: context is not a `Context`.
        RuntimeError: overlap=True while a CUDA graph is captured.
    """
    check_context(context)
    check_overlap(overlap, context)
    check_bool("transpose_b", transpose_b)
    key = call_key(a, b, "gemm_reduce_scatter", transpose_b, out_dtype, k, overlap)
    call = context.cached(
        key,
        lambda: _checked(
            a, b, context, transpose_b=transpose_b, out_dtype=out_dtype, k=k, overlap=overlap
        ),
    )
    check_bias(bias, call.n, a.device)
    if not should_overlap("gemm_reduce_scatter", overlap, context, (call.m, call.n), call.k, k):
        parts = gemm(a, b, transpose_b=transpose_b, out_dtype=call.out_dtype)
        return reduce_scatter_rows(parts, context, bias)
    if -(-call.m // context.world) * call.n > MAX_ELEMENTS:
        raise ValueError(
            f"a rank's rows of [{call.m}, {call.n}] must have at most {MAX_ELEMENTS} elements, "
            f"which are counted in 32 bits: use overlap=False"
        )
    begin, end = call.cuts[context.rank]
    out = torch.empty(end - begin, call.n, dtype=call.out_dtype, device=a.device)
    if call.m > 0 and call.n > 0:
        if call.k == 0:  # an empty slice: add zeros
            a = a.new_zeros(call.m, 8)
            b = b.new_zeros((call.n, 8) if transpose_b else (8, call.n))
        if bias is not None:
            bias = bias.float().contiguous()
        _overlapped(call, aligned(a), aligned(b), bias, out, context)
    return out


@dataclass(frozen=True)
class _Half:
    """One half of the double-buffered symmetric memory, with the counters.

    `product` is the local [m, n] product, `ours` this rank's rows in the product of each rank.
    `done` are the counters of each rank for the rows of other ranks, `made` those of the segments
    of this rank's own rows.
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
    overlap: bool | None,
) -> CheckedCall:
    check_dtypes(a, b)
    m, n, mine = check_operands(a, b, transpose_a=False, transpose_b=transpose_b)
    out_dtype = check_out_dtype(out_dtype, None, a.dtype)
    if k is not None:
        check_partition("a", "columns", mine, k, context, "k")
    sizes = {"m": m, "n": n, "out_dtype": out_dtype, "k": k, "overlap": overlap}
    context.agree("gemm_reduce_scatter", sizes)
    return CheckedCall(m, n, mine, out_dtype, transpose_b, row_ranges(m, context.world))


def _half(call: CheckedCall, number: int, context: Context) -> _Half:
    """The half `number` of the buffer, with the views of this call."""
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
    """Compute `out` = this rank's rows of the sum over ranks of a @ op(b).

    Tiles are computed rank by rank, starting with the next rank and ending with the own rows. So
    the rows that rank r has for this rank complete earlier the closer r precedes it, and no two
    ranks pull from the same rank at once. The side stream waits until a rank has completed all rows
    for this rank and pulls them by the copy engine; then it adds the own rows segment by segment,
    while the kernel computes the next one (`segments`). The kernel waits for no other rank, so it
    always makes progress. It has one block per tile: blocks of the reduction, which have priority,
    replace tiles that are done.
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
            for segment, (first, last) in enumerate(own.cuts):
                wait_by_stream(half.made, segment, made[segment])
                mine = half.ours[rank][first:last]
                add_in_ring_order(parts, mine, bias, out[first:last], first)
    torch.cuda.current_stream().wait_stream(side)
