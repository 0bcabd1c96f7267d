"""All-gather by the copy engines: every rank pulls the parts of the others."""

import torch

from tlmatrix_kernels.distributed.barriers import barrier
from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.pull import arrivals, pull

__all__ = ["all_gather"]


def all_gather(x: torch.Tensor, *, context: Context) -> torch.Tensor:
    """The rows of all ranks, in the order of ranks.

    Args:
        x: [rows, ...], what this rank has, of equal shape and dtype on all.
        context: see `create_context`.

    Returns:
        [world * rows, ...], a new tensor, the same on every rank.

    Raises:
        ValueError: x without dimensions.
    """
    if x.ndim == 0:
        raise ValueError("x must have at least 1 dimension, got a scalar")
    rank, world = context.rank, context.world
    out = torch.empty(world, *x.shape, dtype=x.dtype, device=x.device)
    if out.numel() > 0:
        out[rank].copy_(x)
        if world > 1:
            _pull_others(x, out, context)
    return out.flatten(0, 1)


def _pull_others(x: torch.Tensor, out: torch.Tensor, context: Context) -> None:
    epoch = context.begin("all_gather")
    buffer = context.buffer(f"all_gather/{epoch % 2}", x.numel() * x.element_size())
    buffer.mine(x.shape, x.dtype).copy_(x)
    barrier(buffer)
    side = context.side()
    with torch.cuda.stream(side):
        pull(
            arrivals(context.rank, context.world),
            source=lambda peer: buffer.on(peer, x.shape, x.dtype),
            target=lambda peer: out[peer],
        )
    torch.cuda.current_stream().wait_stream(side)
