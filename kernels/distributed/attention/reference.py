"""PyTorch reference of sequence-parallel attention: all-gather keys and values, then attention.

Differentiable, for any device and any backend of `torch.distributed`, including gloo between CPU
processes.
"""

import itertools
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from tlmatrix_kernels.attention.cu_seqlens import host_values
from tlmatrix_kernels.distributed.attention.shards import Sharding


def gathered_attention(
    q,
    k,
    v,
    *,
    context=None,
    causal=False,
    sharding="zigzag",
    scale=None,
    seqlen_q=None,
    seqlen_k=None,
):
    """Reference of `sequence_attention`; also supports float32 and float64.

    Args:
        q: [batch, rows_q, heads, head_dim], this rank's shard.
        k: [batch, rows_k, kv_heads, head_dim].
        v: [batch, rows_k, kv_heads, head_dim_v].
        context: provides the process group; all processes if None.
        causal: as in `sequence_attention`.
        sharding: as in `sequence_attention`.
        scale: as in `sequence_attention`.
        seqlen_q: as in `sequence_attention`.
        seqlen_k: as in `sequence_attention`.

    Returns:
        out [batch, rows_q, heads, head_dim_v], and lse [batch, heads, rows_q] in float32 (in
        float64 for float64 inputs).
    """
    batch = q.shape[0]
    world = _group_of(context)[2]
    lengths_q = [q.shape[1] * world if seqlen_q is None else seqlen_q] * batch
    lengths_k = [k.shape[1] * world if seqlen_k is None else seqlen_k] * batch
    rows = (tensor.flatten(0, 1) for tensor in (q, k, v))
    out, lse = _attention(*rows, lengths_q, lengths_k, context, causal, sharding, scale)
    lse = lse.view(lse.shape[0], batch, q.shape[1]).transpose(0, 1)
    return out.view(batch, q.shape[1], *out.shape[1:]), lse.contiguous()


def gathered_attention_varlen(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    *,
    context=None,
    causal=False,
    sharding="zigzag",
    scale=None,
):
    """Reference of `sequence_attention_varlen`; also supports float32 and float64.

    Args:
        q: [rows_q, heads, head_dim], this rank's shard.
        k: [rows_k, kv_heads, head_dim].
        v: [rows_k, kv_heads, head_dim_v].
        cu_seqlens_q: [batch + 1] int32, bounds of the whole sequences.
        cu_seqlens_k: the same for keys.
        context: provides the process group; all processes if None.
        causal: as in `sequence_attention`.
        sharding: as in `sequence_attention`.
        scale: as in `sequence_attention`.

    Returns:
        out [rows_q, heads, head_dim_v], and lse [heads, rows_q].
    """
    lengths_q, lengths_k = (
        [after - before for before, after in itertools.pairwise(bounds)]
        for bounds in host_values(cu_seqlens_q, cu_seqlens_k)
    )
    return _attention(q, k, v, lengths_q, lengths_k, context, causal, sharding, scale)


def _group_of(context) -> tuple[ProcessGroup | None, int, int]:
    """The process group of a context, this process's rank in it, and the world size."""
    if context is not None:
        return context.group, context.rank, context.world
    if not dist.is_initialized():
        return None, 0, 1
    return None, dist.get_rank(), dist.get_world_size()


class _Gather(torch.autograd.Function):
    """All-gather of [rows, ...] with different numbers of rows; returns a tuple, one per rank."""

    @staticmethod
    def forward(ctx, mine, rows: Sequence[int], group, rank: int):
        ctx.rows, ctx.group, ctx.rank = rows, group, rank
        longest = max(rows)
        padded = mine.new_zeros((longest, *mine.shape[1:]))
        padded[: rows[rank]] = mine
        found = [torch.empty_like(padded) for _ in rows]
        dist.all_gather(found, padded, group=group)
        return tuple(part[:count].clone() for part, count in zip(found, rows, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        # The sum over ranks of their gradients; in float32, since float16 would lose precision.
        dtype = gradients[0].dtype
        wide = dtype if dtype == torch.float64 else torch.float32
        whole = torch.cat(gradients).to(wide)
        dist.all_reduce(whole, group=ctx.group)
        return whole.split(list(ctx.rows))[ctx.rank].to(dtype), None, None, None


def _whole(mine: torch.Tensor, order: Sharding, lengths: Sequence[int], group, rank: int):
    """The rows of all ranks, in the order of the whole sequences."""
    if order.world == 1:
        return mine
    rows = [order.total(lengths, each) for each in range(order.world)]
    found = torch.cat(_Gather.apply(mine, rows, group, rank))
    places = torch.cat([order.positions(lengths, each) for each in range(order.world)])
    back = torch.empty_like(places)
    back[places] = torch.arange(len(places))
    return found[back.to(mine.device)]


def _attention(q, k, v, lengths_q, lengths_k, context, causal, sharding, scale):
    group, rank, world = _group_of(context)
    order = Sharding(sharding, world)
    k, v = (_whole(tensor, order, lengths_k, group, rank) for tensor in (k, v))
    shard = order.shard(lengths_q, rank)
    queries = q.split([sum(chunk.length for chunk in chunks) for chunks in shard])
    found = [
        _one_sequence(
            *rows,
            torch.cat([torch.arange(c.position, c.end, device=q.device) for c in chunks])
            + (length_k - length_q),
            causal,
            q.shape[-1] ** -0.5 if scale is None else scale,
        )
        for *rows, chunks, length_q, length_k in zip(
            queries,
            k.split(lengths_k),
            v.split(lengths_k),
            shard,
            lengths_q,
            lengths_k,
            strict=True,
        )
    ]
    if not found:
        lse = q.new_zeros((q.shape[1], 0)).float()
        return q.new_zeros((0, q.shape[1], v.shape[2])) + _zero_of(q, k, v), lse
    return torch.cat([out for out, _ in found]), torch.cat([lse for _, lse in found], 1).detach()


def _one_sequence(q, k, v, places, causal: bool, scale: float):
    """Attention of queries at positions `places` of a sequence: out, and lse [heads, rows]."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    groups = q.shape[1] // k.shape[1]
    keys, values = (t.to(wide).repeat_interleave(groups, 1) for t in (k, v))
    if keys.shape[0] == 0:
        out = q.new_zeros((*q.shape[:2], v.shape[2])) + _zero_of(q, k, v)
        return out, q.new_full((q.shape[1], q.shape[0]), float("-inf"), dtype=wide)
    scores = torch.einsum("ihd,jhd->hij", q.to(wide), keys) * scale
    seen = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device)
    if causal:
        seen = torch.arange(keys.shape[0], device=q.device) <= places[:, None]
    masked = ~seen.any(-1)
    # Fully masked rows keep their scores, to avoid NaN; their result is replaced afterwards.
    scores = scores.masked_fill(~(seen | masked[:, None]), float("-inf"))
    lse = scores.logsumexp(-1).masked_fill(masked, float("-inf"))
    out = torch.einsum("hij,jhd->ihd", scores.softmax(-1), values)
    return out.masked_fill(masked[:, None, None], 0.0).to(q.dtype), lse


def _zero_of(*tensors):
    """Zero, as a function of the tensors, so that their gradients are zeros and not None."""
    return sum(tensor[..., :0].sum() for tensor in tensors)
