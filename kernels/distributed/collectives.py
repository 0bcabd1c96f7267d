"""The collectives of `torch.distributed`, of shares that may differ by a row."""

import torch
import torch.distributed as dist

from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.shares import shares

__all__ = ["gather_single", "gathered", "reduce_scatter_single", "scattered_sum"]

# What PyTorch 2.13 renames; earlier ones know only the second names.
gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def gathered(x: torch.Tensor, rows: int, context: Context) -> torch.Tensor:
    """The rows of all ranks: x [my share of rows, ...] -> [rows, ...]."""
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
    for part, (begin, end) in zip(parts, shares(rows, context.world), strict=True):
        out[begin:end] = part[: end - begin]
    return out


def scattered_sum(x: torch.Tensor, context: Context) -> torch.Tensor:
    """My share of the sum over ranks: x [rows, ...] -> [my share of rows, ...], in x's dtype."""
    if context.world == 1:
        return x
    rows, world = x.shape[0], context.world
    most = -(-rows // world)
    begin, end = shares(rows, world)[context.rank]
    if rows % world == 0:
        whole = x.contiguous()
    else:
        whole = torch.cat([_padded(x[one:two], most) for one, two in shares(rows, world)])
    out = x.new_empty(most, *x.shape[1:])
    reduce_scatter_single(out, whole, group=context.group)
    return out[: end - begin]


def _padded(x: torch.Tensor, rows: int) -> torch.Tensor:
    """Zeros behind the rows of x, up to so many."""
    return torch.cat([x, x.new_zeros(rows - x.shape[0], *x.shape[1:])])
