"""Argument checks of sequence-parallel attention, in addition to those of attention on one GPU.

A rank checks only what it knows: the lengths of the whole batch, and the number of rows of its own
shards. Each check raises a ValueError with the argument, the rule and the value.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tlmatrix_kernels.attention import validate as one_gpu
from tlmatrix_kernels.attention.validate import refuse
from tlmatrix_kernels.distributed.attention.shards import ORDERS, Sharding
from tlmatrix_kernels.distributed.validate import check_size
from tlmatrix_kernels.target import capability

VARIANTS = ("pipelined", "specialized")
"""Forward kernels: TileLang specializes the warps of the first itself."""


@dataclass(frozen=True)
class Call:
    """The checked options of a call. Lengths are those of the whole sequences."""

    attention: one_gpu.Attention
    sharding: Sharding
    rank: int
    lengths_q: tuple[int, ...]
    lengths_k: tuple[int, ...]
    steps: int | None
    variant: str = "pipelined"


def _sharding(sharding, world: int, steps) -> Sharding:
    if sharding not in ORDERS:
        refuse(f"sharding must be one of {', '.join(ORDERS)}, got {sharding!r}")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int)):
        refuse(f"steps must be an int or None, got {steps!r}")
    if steps is not None and not 1 <= steps <= world:
        refuse(f"steps must be from 1 to the number of ranks, {world}, got {steps}")
    return Sharding(sharding, world)


def _check_variant(variant) -> None:
    if variant not in VARIANTS:
        refuse(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
    if variant == "specialized" and capability() // 10 != 9:
        refuse(f"variant must be pipelined on sm_{capability()}: specialized is for sm_90a")


def _check_shard(
    name: str, rows: int, sharding: Sharding, rank: int, lengths: Sequence[int], whole: str
) -> None:
    share = sharding.total(lengths, rank)
    if rows != share:
        refuse(
            f"{name} must have the rows of rank {rank} of {sharding.world} in {sharding.order} "
            f"order, {share} of {whole}, got {rows}"
        )


def _whole_length(name: str, given, tensor: torch.Tensor, of: str, sharding: Sharding) -> int:
    """The whole length of dense sequences, given this rank's shard."""
    rows = tensor.shape[1]
    if given is None:
        whole = rows * sharding.world
        if whole % sharding.chunks:
            refuse(
                f"{of} must have an even number of rows in zigzag order, two equal chunks, got "
                f"{rows}; if the chunks differ, pass {name}, the length of the whole sequence"
            )
        return whole
    check_size(name, given)
    return given


def check_dense_call(
    q, k, v, seqlen_q, seqlen_k, causal, scale, sharding, steps, variant, rank: int, world: int
) -> Call:
    """Check the arguments of `sequence_attention`.

    Raises:
        ValueError: the first invalid argument; the message names it, the rule and the value.
    """
    attention = one_gpu.check_dense(q, k, v, causal, None, scale, "bshd", "grouped")
    order = _sharding(sharding, world, steps)
    _check_variant(variant)
    batch = q.shape[0]
    whole_q = _whole_length("seqlen_q", seqlen_q, q, "q", order)
    whole_k = _whole_length("seqlen_k", seqlen_k, k, "k", order)
    _check_shard("q", q.shape[1], order, rank, [whole_q], f"seqlen_q {whole_q}")
    _check_shard("k", k.shape[1], order, rank, [whole_k], f"seqlen_k {whole_k}")
    return Call(attention, order, rank, (whole_q,) * batch, (whole_k,) * batch, steps, variant)


def _check_max_seqlen(name: str, given, lengths: Sequence[int], sharding: Sharding) -> None:
    """Checks an upper bound of the whole lengths; hints if it is that of the shards."""
    if given is None:
        return
    if isinstance(given, bool) or not isinstance(given, int):
        refuse(f"{name} must be an int or None, got {given!r}")
    longest = max(lengths, default=0)
    if given < longest:
        share = max(sharding.rows(longest, rank) for rank in range(sharding.world))
        hint = f"; a rank has up to {share} of them" if given <= share else ""
        refuse(
            f"{name} must be at least the longest of the whole sequences, {longest} rows over "
            f"{sharding.world} ranks, got {given}{hint}"
        )


def check_packed_call(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    causal, scale, sharding, steps, variant, rank: int, world: int,
) -> Call:  # fmt: skip
    """Check the arguments of `sequence_attention_varlen`.

    Raises:
        ValueError: the first invalid argument; the message names it, the rule and the value.
    """
    attention, lengths_q, lengths_k = one_gpu.check_packed_shards(
        q, k, v, cu_seqlens_q, cu_seqlens_k, causal, scale
    )
    order = _sharding(sharding, world, steps)
    _check_variant(variant)
    _check_max_seqlen("max_seqlen_q", max_seqlen_q, lengths_q, order)
    _check_max_seqlen("max_seqlen_k", max_seqlen_k, lengths_k, order)
    _check_shard("q", q.shape[0], order, rank, lengths_q, "cu_seqlens_q")
    _check_shard("k", k.shape[0], order, rank, lengths_k, "cu_seqlens_k")
    return Call(attention, order, rank, lengths_q, lengths_k, steps, variant)
