"""All-gather by the copy engines: every rank pulls the rows of its peers."""

import torch

from tlmatrix_kernels.distributed.barriers import barrier
from tlmatrix_kernels.distributed.collectives import all_gather_rows
from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.partition import row_ranges
from tlmatrix_kernels.distributed.pull import pull, pull_order
from tlmatrix_kernels.distributed.validate import UNEVEN, check_context, check_rows


def all_gather(x: torch.Tensor, *, context: Context, rows: int | None = None) -> torch.Tensor:
    """Concatenate the rows of all ranks in rank order. Can be captured in a CUDA graph.

    Args:
        x: [local rows, ...], of the same dtype on all ranks.
        context: see `create_context`.
        rows: the total over all ranks; required if ranks have different numbers of rows, which must
            then be those of `torch.tensor_split`.

    Returns:
        [rows, ...], a new tensor, the same on every rank.

    Raises:
        ValueError: x is a scalar, or has not this rank's number of rows; or ranks differ in rows,
            in the other dimensions or in dtype.
    """
    check_context(context)
    if x.ndim == 0:
        raise ValueError("x must have at least 1 dimension, got a scalar")
    rows = check_rows("x", x.shape[0], rows, context)
    sizes = {"rows": rows, "shape of a row": tuple(x.shape[1:]), "dtype": x.dtype}
    context.agree("all_gather", sizes, hint=UNEVEN.format("rows"))
    rank, world = context.rank, context.world
    if not context.direct:
        return all_gather_rows(x, rows, context)
    out = x.new_empty(rows, *x.shape[1:])
    if out.numel() == 0:
        return out
    parts = [out[begin:end] for begin, end in row_ranges(rows, world)]
    parts[rank].copy_(x)
    if world == 1:
        return out
    epoch = context.next_epoch("all_gather")
    most = -(-rows // world) * out[0].numel() * out.element_size()
    buffer = context.buffer(f"all_gather/{epoch % 2}", most)
    with context.graph_barriers(buffer):
        buffer.local(x.shape, x.dtype).copy_(x)
        barrier(buffer)
        side = context.side_stream()
        with torch.cuda.stream(side):
            pull(
                [peer for peer in pull_order(rank, world) if parts[peer].numel() > 0],
                source=lambda peer: buffer.on(peer, parts[peer].shape, x.dtype),
                target=lambda peer: parts[peer],
            )
        torch.cuda.current_stream().wait_stream(side)
    return out
