"""The kernels of dense attention, and of packed (varlen) attention.

They differ in the layout: a `rows.Batch` has the parameters of each, and the rows of a sequence.
Sizes are symbolic; scale and window are runtime arguments. The grid is (tiles of the longest
sequence, heads, sequences), see `launch`; the algorithm of one block is in `forward` and
`backward`.
"""

from functools import partial

import tilelang
import tilelang.language as T

from tlmatrix_kernels.attention import backward as bwd
from tlmatrix_kernels.attention import forward as fwd
from tlmatrix_kernels.attention.launch import Config, key_blocks, query_blocks
from tlmatrix_kernels.attention.options import PASS_CONFIGS, SYNCHRONIZED_CONFIGS
from tlmatrix_kernels.attention.reordered import RESTORE_THREADS, block_shape, restore_block
from tlmatrix_kernels.attention.rows import PADDING, Batch
from tlmatrix_kernels.attention.softmax import initial_state_of
from tlmatrix_kernels.attention.specialized import (
    line_shape,
    specialized_key_block,
    specialized_tiles,
)
from tlmatrix_kernels.attention.tiles import PASS_ROWS, tiles_for
from tlmatrix_kernels.parameters import absent

ORDER = "mma"
"""The order of the dq accumulator of `reordered` (see the module)."""
SHARED_KEYS = False
"""Whether several blocks of `reordered` add to one dk and dv."""


@tilelang.jit(pass_configs=PASS_CONFIGS)
def forward(
    layout, dtype, groups, head_dim, head_dim_v, causal, windowed, sink_dtype=None, tiles=None
):
    """Build the forward kernel: q, k, v and, with `sink_dtype`, sink [heads] to out and lse."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=windowed).forward
    cfg = Config(groups, (head_dim, head_dim_v), causal, windowed, tiles)
    batch = Batch(layout)

    @T.prim_func
    @batch.named("forward" if sink_dtype is None else "sink_forward")
    def forward(
        q: batch.like_q(head_dim, dtype),
        k: batch.like_k(head_dim, dtype),
        v: batch.like_k(head_dim_v, dtype),
        sink: absent if sink_dtype is None else T.Tensor((batch.heads,), sink_dtype),
        cu_seqlens_q: batch.cu_seqlens,
        cu_seqlens_k: batch.cu_seqlens,
        out: batch.like_q(head_dim_v, dtype),
        lse: batch.statistic(),
        max_seqlen_q: batch.max_seqlen,
        scale: T.float32,
        window: T.int32,
    ):
        query_blocks(
            batch.sequences(cu_seqlens_q, cu_seqlens_k, max_seqlen_q=max_seqlen_q), window, cfg,
            partial(fwd.forward_block, q, k, v, initial_state_of(sink), out, lse, scale, cfg),
            partial(fwd.masked_block, initial_state_of(sink), out, lse, scale, cfg),
        )  # fmt: skip

    return forward


@tilelang.jit(pass_configs=PASS_CONFIGS)
def prepare(layout, dtype, head_dim_v, rows, threads):
    """Build the backward pre-pass: out, do and lse to padded rows of lse * log2(e) and delta."""
    batch = Batch(layout)

    @T.prim_func
    @batch.named("prepare")
    def prepare(
        out: batch.like_q(head_dim_v, dtype),
        do: batch.like_q(head_dim_v, dtype),
        lse: batch.statistic(),
        cu_seqlens_q: batch.cu_seqlens,
        row_lse: batch.padded_statistic(),
        row_delta: batch.padded_statistic(),
        max_seqlen_q: batch.max_seqlen,
    ):
        sequences = batch.sequences(cu_seqlens_q, max_seqlen_q=max_seqlen_q)
        # A packed sequence may own one more tile of padded rows than its length fills.
        tiles = T.ceildiv(sequences.longest_q, PADDING) + (1 if batch.packed else 0)
        count = tiles * (PADDING // rows)
        with T.Kernel(count, batch.heads, batch.count, threads=threads) as (tile, head, sequence):
            queries = sequences.queries(sequence)
            if not batch.packed or tile * rows < queries.padded_length:
                bwd.prepare_block(
                    out, do, lse, row_lse, row_delta, queries, tile * rows, head, rows, head_dim_v
                )

    return prepare


@tilelang.jit(pass_configs=PASS_CONFIGS)
def key_gradients(
    layout, dtype, groups, head_dim, head_dim_v, causal, windowed, strategy, tiles=None
):
    """Build the key blocks of a strategy (see `backward`).

    `atomic`: adds dq_sum, dk_sum and dv_sum, zero-initialized float32 tensors. `split`: stores one
    float32 part of dk and dv per query head of a group, [groups, ...]. `grouped`: stores the
    gradient itself, [1, ...]. `reordered`: the same, and adds dq_sum in its order.
    """
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=windowed).key_block
    dims = head_dim, head_dim_v
    return _key_gradients(layout, dtype, groups, dims, causal, windowed, strategy, tiles)


@tilelang.jit(pass_configs=SYNCHRONIZED_CONFIGS)
def specialized_gradients(layout, dtype, groups, head_dim, head_dim_v, causal, windowed):
    """Build the key blocks of `specialized`: as those of `reordered`, with rows of `line_shape`."""
    dims = head_dim, head_dim_v
    tiles = specialized_tiles(*dims)
    return _key_gradients(layout, dtype, groups, dims, causal, windowed, "specialized", tiles)


def _key_gradients(layout, dtype, groups, dims, causal, windowed, strategy, tiles):
    head_dim, head_dim_v = dims
    # Tiles of 64 keys add dq so often that it must stay in L2: tiles of one head in turn.
    ordered = not (strategy == "specialized" and tiles.staged)
    cfg = Config(groups, dims, causal, windowed, tiles, ordered)
    batch = Batch(layout)
    atomic, specialized = strategy == "atomic", strategy == "specialized"
    reordered = specialized or strategy == "reordered"
    stored = not (atomic or reordered)
    parts = 0 if atomic else groups if strategy == "split" else 1
    part_dtype = "float32" if strategy == "split" else dtype
    walked = groups if reordered or strategy == "grouped" else 1
    blocks = batch.kv_heads if reordered else batch.heads // walked
    row_block = line_shape(head_dim) if specialized else block_shape(ORDER, head_dim)
    queries = batch.blocks(row_block) if reordered else absent
    block = specialized_key_block if specialized else bwd.key_block

    @T.prim_func
    @batch.named(f"{'key' if stored else strategy}_gradients")
    def key_gradients(
        q: batch.like_q(head_dim, dtype),
        k: batch.like_k(head_dim, dtype),
        v: batch.like_k(head_dim_v, dtype),
        do: batch.like_q(head_dim_v, dtype),
        row_lse: batch.padded_statistic(),
        row_delta: batch.padded_statistic(),
        cu_seqlens_q: batch.cu_seqlens,
        cu_seqlens_k: batch.cu_seqlens,
        dq_sum: batch.like_q(head_dim, "float32") if atomic else queries,
        dk_sum: batch.like_k(head_dim, "float32") if atomic else absent,
        dv_sum: batch.like_k(head_dim_v, "float32") if atomic else absent,
        dk_parts: batch.like_k(head_dim, part_dtype, parts) if stored else absent,
        dv_parts: batch.like_k(head_dim_v, part_dtype, parts) if stored else absent,
        dk: batch.like_k(head_dim, dtype, 1) if reordered else absent,
        dv: batch.like_k(head_dim_v, dtype, 1) if reordered else absent,
        max_seqlen_k: batch.max_seqlen,
        scale: T.float32,
        window: T.int32,
    ):
        pair = (dk_parts, dv_parts) if stored else (dk, dv) if reordered else (dk_sum, dv_sum)
        order = ORDER if reordered else None
        key_blocks(
            batch.sequences(cu_seqlens_q, cu_seqlens_k, max_seqlen_k=max_seqlen_k), window, cfg,
            bwd.KeyGradients(*pair, blocks, walked, parts, dq_sum, order),
            partial(block, q, k, v, do, row_lse, row_delta, scale, cfg),
            partial(bwd.zero_key_block, cfg),
        )  # fmt: skip

    return key_gradients


@tilelang.jit(pass_configs=PASS_CONFIGS)
def query_gradients(layout, dtype, groups, head_dim, head_dim_v, causal, windowed, tiles=None):
    """Build the query blocks of `split` and `grouped`, which store dq."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=windowed).query_block
    cfg = Config(groups, (head_dim, head_dim_v), causal, windowed, tiles)
    batch = Batch(layout)

    @T.prim_func
    @batch.named("query_gradients")
    def query_gradients(
        q: batch.like_q(head_dim, dtype),
        k: batch.like_k(head_dim, dtype),
        v: batch.like_k(head_dim_v, dtype),
        do: batch.like_q(head_dim_v, dtype),
        row_lse: batch.padded_statistic(),
        row_delta: batch.padded_statistic(),
        cu_seqlens_q: batch.cu_seqlens,
        cu_seqlens_k: batch.cu_seqlens,
        dq: batch.like_q(head_dim, dtype),
        max_seqlen_q: batch.max_seqlen,
        scale: T.float32,
        window: T.int32,
    ):
        query_blocks(
            batch.sequences(cu_seqlens_q, cu_seqlens_k, max_seqlen_q=max_seqlen_q), window, cfg,
            partial(bwd.query_block, q, k, v, do, row_lse, row_delta, dq, scale, cfg),
            partial(bwd.zero_query_block, dq, cfg),
        )  # fmt: skip

    return query_gradients


@tilelang.jit(pass_configs=PASS_CONFIGS)
def restore(layout, dtype, head_dim, order, width):
    """Build the post-pass of an accumulator in the order of registers, `width` columns wide.

    dq = scale * dq_sum, in the layout of q.
    """
    batch = Batch(layout)

    @T.prim_func
    @batch.named("restore")
    def restore(
        dq_sum: batch.blocks(block_shape(order, width)),
        cu_seqlens_q: batch.cu_seqlens,
        dq: batch.like_q(head_dim, dtype),
        max_seqlen_q: batch.max_seqlen,
        scale: T.float32,
    ):
        sequences = batch.sequences(cu_seqlens_q, max_seqlen_q=max_seqlen_q)
        count = T.ceildiv(sequences.longest_q, PASS_ROWS)
        with T.Kernel(count, batch.heads, batch.count, threads=RESTORE_THREADS) as (
            tile,
            head,
            sequence,
        ):
            queries = sequences.queries(sequence)
            if not batch.packed or tile * PASS_ROWS < queries.length:
                restore_block(dq_sum, dq, order, queries, head, tile * PASS_ROWS, scale, head_dim)

    return restore
