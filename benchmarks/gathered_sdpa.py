"""The baseline of `sequence_attention.py`: NCCL's all-gather and PyTorch's SDPA, in sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

from tlmatrix_kernels.distributed.attention.shards import Sharding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.distributed import ProcessGroup


def gathered_sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    sharding: str = "zigzag",
    group: ProcessGroup | None = None,
) -> torch.Tensor:
    """NCCL's all-gather, then scaled_dot_product_attention.

    Every rank has the same number of rows, and there are as many keys as queries.

    Args:
        q: [batch, rows, heads, head_dim], this rank's shard.
        k: [batch, rows, kv_heads, head_dim].
        v: [batch, rows, kv_heads, head_dim].
        causal: whether a query attends only to keys up to its own position.
        sharding: "zigzag" or "contiguous".
        group: the process group.

    Returns:
        out [batch, rows, heads, head_dim].
    """
    order = Sharding(sharding, dist.get_world_size(group))
    rank = dist.get_rank(group)
    k, v = (
        in_sequence_order(all_gather(tensor, group), order).transpose(1, 2) for tensor in (k, v)
    )
    if not causal:
        return _sdpa(q, k, v, None)
    from torch.nn.attention.bias import causal_lower_right  # imports torch.compile: two seconds

    found, row, chunk = [], 0, q.shape[1] * order.world // order.chunks
    for index in order.owned(rank):
        end = (index + 1) * chunk
        bias = causal_lower_right(chunk, end)
        found.append(_sdpa(q[:, row : row + chunk], k[:, :, :end], v[:, :, :end], bias))
        row += chunk
    return torch.cat(found, 1)


def _sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    out = scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=bias, enable_gqa=True)
    return out.transpose(1, 2)


def all_gather(tensor: torch.Tensor, group: ProcessGroup | None = None) -> torch.Tensor:
    """[batch, rows, ...] of each rank to [world, batch, rows, ...], by the group's backend."""
    found = tensor.new_empty((dist.get_world_size(group), *tensor.shape))
    # PyTorch 2.13 renamed it.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(found.flatten(0, 1), tensor.contiguous(), group=group)
    return found


def in_sequence_order(found: torch.Tensor, order: Sharding) -> torch.Tensor:
    """[world, batch, rows, ...] to whole sequences, [batch, world * rows, ...]."""
    if order.order == "contiguous":
        parts: Iterable[torch.Tensor] = found
    else:
        halves = found.unflatten(2, (2, -1))
        parts = [*halves[:, :, 0], *halves[:, :, 1].flip(0)]
    return torch.cat(list(parts), 1)
