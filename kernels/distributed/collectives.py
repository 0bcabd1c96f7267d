"""Collectives of `torch.distributed` for rows that may be split unevenly over the ranks."""

import torch
import torch.distributed as dist

from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.partition import row_ranges
from tlmatrix_kernels.distributed.ring import add_in_ring_order

# PyTorch 2.13 renamed them; earlier versions have only the second names.
gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_gather_rows(x: torch.Tensor, rows: int, context: Context) -> torch.Tensor:
    """All-gather: x [local rows, ...] -> [rows, ...]."""
    if context.world == 1:
        return x
    x = x.contiguous()
    out = x.new_empty(rows, *x.shape[1:])
    if rows % context.world == 0:
        gather_single(out, x, group=context.group)
        return out
    padded = _padded(x, -(-rows // context.world))
    parts = x.new_empty(context.world, *padded.shape)
    gather_single(parts.flatten(0, 1), padded, group=context.group)
    for part, (begin, end) in zip(parts, row_ranges(rows, context.world), strict=True):
        out[begin:end] = part[: end - begin]
    return out


def reduce_scatter_rows(
    x: torch.Tensor, context: Context, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """This rank's rows of the sum over ranks, plus `bias` [n]: x [rows, n] -> [local rows, n].

    Moves as many bytes as a reduce-scatter, which would round to 16 bits at every hop of the ring.
    Here each rank receives its rows of all ranks, adds them in float32, and rounds once.
    """
    rows, world = x.shape[0], context.world
    if world == 1 and bias is None:
        return x
    most, cuts = -(-rows // world), row_ranges(rows, world)
    if rows % world == 0:
        parts = x.contiguous().view(world, most, x.shape[1])
    else:
        parts = torch.stack([_padded(x[begin:end], most) for begin, end in cuts])
    if world > 1:
        found = torch.empty_like(parts)
        dist.all_to_all_single(found, parts, group=context.group)
        parts = found
    out = torch.empty_like(parts[0])
    bias = None if bias is None else bias.float().contiguous()
    add_in_ring_order(parts[1:], parts[0], bias, out)
    begin, end = cuts[context.rank]
    return out[: end - begin]


def _padded(x: torch.Tensor, rows: int) -> torch.Tensor:
    """x, padded with zero rows to `rows` rows."""
    return torch.cat([x, x.new_zeros(rows - x.shape[0], *x.shape[1:])])
