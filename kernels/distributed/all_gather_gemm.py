"""Overlapped all-gather and GEMM: tiles whose rows are present are computed while others arrive."""

from dataclasses import dataclass

import torch

from tlmatrix_kernels.alignment import aligned
from tlmatrix_kernels.distributed.barriers import barrier
from tlmatrix_kernels.distributed.collectives import all_gather_rows
from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.gemm_launch import CheckedCall, call_key, gemm_launch
from tlmatrix_kernels.distributed.gemm_ordered import gemm_on_arrival
from tlmatrix_kernels.distributed.memory import SymmetricBuffer
from tlmatrix_kernels.distributed.overlap import should_overlap
from tlmatrix_kernels.distributed.partition import row_ranges
from tlmatrix_kernels.distributed.pull import pull, pull_order, to_int32, write_flag
from tlmatrix_kernels.distributed.validate import (
    UNEVEN,
    check_bool,
    check_context,
    check_overlap,
    check_partition,
    check_rows,
)
from tlmatrix_kernels.gemm import gemm
from tlmatrix_kernels.gemm.validate import (
    check_dtypes,
    check_operands,
    check_out_dtype,
    rows_aligned,
)


def all_gather_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    context: Context,
    transpose_b: bool = False,
    out_dtype: torch.dtype | None = None,
    m: int | None = None,
    n: int | None = None,
    overlap: bool | None = None,
) -> torch.Tensor:
    """`all_gather(a) @ op(b)`: the rows of all ranks times this rank's columns of op(b).

    Args:
        a: [local rows, k]; float16 or bfloat16.
        b: [k, n], or [n, k] with `transpose_b`: this rank's columns; the dtype of `a`.
        context: see `create_context`.
        transpose_b: whether `b` is stored transposed.
        out_dtype: dtype of the result: float16, bfloat16 or float32; by default the dtype of `a`.
        m: total rows of `a` over all ranks; required if ranks have different numbers of rows, which
            must then be those of `torch.tensor_split`.
        n: total columns of op(b) over all ranks, split as by `torch.tensor_split`; with it, ranks
            agree on `overlap` without communication.
        overlap: whether to overlap communication and computation, or run a collective and then a
            GEMM; by default the faster one (see `overlap`). Must be the same on all ranks.

    Returns:
        [m, local n] in `out_dtype`, a new tensor.

    Raises:
        ValueError: an invalid argument; the message names it. Or ranks differ in m, k, dtype, n or
            overlap.
        TypeError: context is not a `Context`.
        RuntimeError: overlap=True while a CUDA graph is captured.
    """
    check_context(context)
    check_overlap(overlap, context)
    check_bool("transpose_b", transpose_b)
    key = call_key(a, b, "all_gather_gemm", transpose_b, out_dtype, m, n, overlap)
    call = context.cached(
        key,
        lambda: _checked(
            a, b, context, transpose_b=transpose_b, out_dtype=out_dtype, m=m, n=n, overlap=overlap
        ),
    )
    if not should_overlap("all_gather_gemm", overlap, context, (call.m, call.k), call.n, n):
        whole = all_gather_rows(a, call.m, context)
        return gemm(whole, b, transpose_b=transpose_b, out_dtype=call.out_dtype)
    out = torch.empty(call.m, call.n, dtype=call.out_dtype, device=a.device)
    if call.k == 0 or call.m == 0:
        return out.zero_()
    _overlapped(call, a, aligned(b), out, context)
    return out


@dataclass(frozen=True)
class _Half:
    """One half of the double-buffered symmetric memory.

    `whole` is the local [m, k] buffer and `parts` its rows by rank; `theirs` are the rows of each
    rank in its own buffer; `ready` [world] int32 are the flags of the rows that have arrived.
    """

    buffer: SymmetricBuffer
    ready: torch.Tensor
    whole: torch.Tensor
    parts: list[torch.Tensor]
    theirs: list[torch.Tensor]


def _checked(
    a: torch.Tensor,
    b: torch.Tensor,
    context: Context,
    *,
    transpose_b: bool,
    out_dtype: torch.dtype | None,
    m: int | None,
    n: int | None,
    overlap: bool | None,
) -> CheckedCall:
    check_dtypes(a, b)
    _, columns, k = check_operands(a, b, transpose_a=False, transpose_b=transpose_b)
    out_dtype = check_out_dtype(out_dtype, None, a.dtype)
    rows = check_rows("a", a.shape[0], m, context, "m")
    if n is not None:
        check_partition("b", "columns", columns, n, context, "n")
    sizes = {"m": rows, "k": k, "dtype": a.dtype, "n": n, "overlap": overlap}
    context.agree("all_gather_gemm", sizes, hint=UNEVEN.format("m"))
    return CheckedCall(rows, columns, k, out_dtype, transpose_b, row_ranges(rows, context.world))


def _half(call: CheckedCall, dtype: torch.dtype, number: int, context: Context) -> _Half:
    """The half `number` of the buffer, with the views of this call."""
    shape = [call.m, call.k]
    buffer = context.buffer(f"all_gather_gemm/{number}", call.m * call.k * dtype.itemsize)
    half = call.halves.get(number)
    if half is None or half.buffer is not buffer:
        whole = buffer.local(shape, dtype)
        parts = [whole[begin:end] for begin, end in call.cuts]
        theirs = [
            buffer.on(peer, shape, dtype)[begin:end] for peer, (begin, end) in enumerate(call.cuts)
        ]
        world = context.world
        ready = context.flags("all_gather_gemm/ready", world).local([world], torch.int32)
        half = call.halves[number] = _Half(buffer, ready, whole, parts, theirs)
    return half


def _overlapped(
    call: CheckedCall, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, context: Context
) -> None:
    """Compute `out` = all rows of `a` times op(b).

    The gathered rows are a symmetric buffer. Every rank copies its own rows into it; after the
    barrier peers pull them into the same rows of their buffers. Copies and the flags behind them
    need no multiprocessor, so tiles can fill the GPU while they wait.
    """
    rank, world = context.rank, context.world
    epoch = context.next_epoch("all_gather_gemm")
    half = _half(call, a.dtype, epoch % 2, context)
    half.parts[rank].copy_(a)
    barrier(half.buffer)
    write_flag(half.ready, rank, epoch)
    side = context.side_stream()
    with torch.cuda.stream(side):
        pull(
            pull_order(rank, world),
            source=half.theirs.__getitem__,
            target=half.parts.__getitem__,
            arrived=lambda peer: write_flag(half.ready, peer, epoch),
        )
    if call.n > 0:
        whole_rows = rows_aligned(half.whole, b)
        launch = call.launches.get(whole_rows)
        if launch is None:
            # Start with the tiles that have only local rows, or with the one that has some.
            launch = call.launches[whole_rows] = gemm_launch(
                gemm_on_arrival,
                b,
                out,
                world,
                call.cuts[rank][0],
                transpose_b=call.transpose_b,
                whole_rows=whole_rows,
                whole_tile=True,
            )
        launch.kernel(half.whole, b, out, half.ready, to_int32(epoch), launch.first, launch.panel)
    torch.cuda.current_stream().wait_stream(side)
