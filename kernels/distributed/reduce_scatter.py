"""Reduce-scatter by the copy engines: every rank pulls its rows from its peers and adds them."""

import torch

from tlmatrix_kernels.distributed.barriers import barrier
from tlmatrix_kernels.distributed.collectives import reduce_scatter_rows, reduce_scatter_single
from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.memory import SymmetricBuffer
from tlmatrix_kernels.distributed.partition import row_range
from tlmatrix_kernels.distributed.pull import pull
from tlmatrix_kernels.distributed.ring import add_in_ring_order, ring
from tlmatrix_kernels.distributed.two_level import TwoLevelContext
from tlmatrix_kernels.distributed.validate import check_context, check_reducible


def reduce_scatter(x: torch.Tensor, *, context: Context) -> torch.Tensor:
    """This rank's rows of the sum over ranks. Can be captured in a CUDA graph.

    Sums are float32, in ring order, and rounded once: bitwise reproducible.

    Args:
        x: [rows, ...], with the same shape and dtype on all ranks; float16, bfloat16 or float32.
        context: see `create_context`.

    Returns:
        [local rows, ...], a new tensor; rows are split as by `torch.tensor_split`.

    Raises:
        ValueError: an unsupported dtype, or x is a scalar; or ranks differ in shape or dtype.
    """
    check_context(context)
    check_reducible("x", x)
    context.agree("reduce_scatter", {"shape": tuple(x.shape), "dtype": x.dtype})
    begin, end = row_range(x.shape[0], context.world, context.rank)
    out = x.new_empty(end - begin, *x.shape[1:])
    if x.numel() > 0:
        flat, columns = x.reshape(x.shape[0], -1).contiguous(), x[0].numel()
        if not context.direct:
            return reduce_scatter_rows(flat, context).view(out.shape)
        _reduce([(begin, end)], flat, out.view(1, end - begin, columns), context)
    return out


def reduce_scatter_two_level(x: torch.Tensor, *, context: TwoLevelContext) -> torch.Tensor:
    """Reduce-scatter over several nodes: within each node by copy engines, then between nodes.

    Can be captured in a CUDA graph if the collectives of `torch.distributed` can, as with NCCL.

    With V nodes of W ranks, rank r of node v gets part v * W + r of V * W equal parts of the rows.
    First it sums, over the ranks of its node, the rows for rank r of *every* node, in float32; then
    `torch.distributed` sums those over nodes. A row crosses nodes once instead of W times.

    Args:
        x: [rows, ...], with the same shape and dtype on all ranks; float16, bfloat16 or float32;
            rows must be a multiple of V * W.
        context: see `create_two_level_context`.

    Returns:
        [rows / (V * W), ...], a new tensor.

    Raises:
        ValueError: an unsupported dtype, x is a scalar, or V * W does not divide its rows; or
            ranks, of whichever node, differ in shape or dtype.
    """
    check_context(context, TwoLevelContext)
    check_reducible("x", x)
    count, node = context.nodes, context.node
    world = node.world
    if x.shape[0] % (count * world):
        raise ValueError(
            f"x must have a multiple of {count * world} rows for {count} nodes of {world} ranks, "
            f"got {x.shape[0]}"
        )
    sizes = {"shape": tuple(x.shape), "dtype": x.dtype}
    node.agree("reduce_scatter_two_level", sizes, between=context.between)
    rows = x.shape[0] // (count * world)
    out = x.new_empty(rows, *x.shape[1:])
    if x.numel() == 0:
        return out
    columns = x[0].numel()
    flat = x.reshape(x.shape[0], columns).contiguous()
    begins = [(each * world + node.rank) * rows for each in range(count)]
    sums = torch.empty(count, rows, columns, dtype=torch.float32, device=x.device)
    if node.direct:
        _reduce([(begin, begin + rows) for begin in begins], flat, sums, node)
    else:
        for part, target in zip(flat.view(count, world * rows, columns), sums, strict=True):
            target.copy_(reduce_scatter_rows(part.float(), node))
    if count == 1:
        return out.copy_(sums.view(out.shape))
    mine = torch.empty(rows, columns, dtype=torch.float32, device=x.device)
    reduce_scatter_single(mine, sums.view(count * rows, columns), group=context.between)
    return out.copy_(mine.view(out.shape))


def _reduce(
    ranges: list[tuple[int, int]], x: torch.Tensor, out: torch.Tensor, context: Context
) -> None:
    """Sum row `ranges` of x [rows, columns] over ranks: out [ranges, rows, columns]."""
    rank, world = context.rank, context.world
    if world == 1:
        for (begin, end), target in zip(ranges, out, strict=True):
            target.copy_(x[begin:end])
        return
    epoch = context.next_epoch("reduce_scatter")
    buffer = context.buffer(f"reduce_scatter/{epoch % 2}", x.numel() * x.element_size())
    with context.graph_barriers(buffer):
        buffer.local(x.shape, x.dtype).copy_(x)
        barrier(buffer)
        for (begin, end), target in zip(ranges, out, strict=True):
            parts = x.new_empty(world - 1, end - begin, x.shape[1])
            if parts.numel() > 0:
                _pull_rows(buffer, x, begin, parts, rank)
                add_in_ring_order(parts, x[begin:end], None, target)


def _pull_rows(
    buffer: SymmetricBuffer, x: torch.Tensor, begin: int, parts: torch.Tensor, rank: int
) -> None:
    """parts[i] = the rows from `begin` of the i-th rank of the ring."""
    slots = {peer: slot for slot, peer in enumerate(ring(rank, buffer.world))}
    pull(
        slots,
        source=lambda peer: buffer.on(peer, x.shape, x.dtype)[begin : begin + parts.shape[1]],
        target=lambda peer: parts[slots[peer]],
    )
