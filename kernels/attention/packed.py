"""The kernels of packed (varlen) attention.

q, out and do are [total_q, heads, dim], k and v [total_k, kv_heads, dim], lse and delta
[heads, total_q] (layout thd, see `rows`). Sequence b owns the query rows from cu_seqlens_q[b] up
to cu_seqlens_q[b + 1], and likewise the keys. Totals, heads and the number of sequences are
symbolic: one compiled kernel serves every batch. The grid is (tiles of the longest sequence, heads,
sequences); the longest length is an argument, of queries or of keys depending on the kernel. The
algorithm of one block is in `forward` and `backward`.
"""

from dataclasses import dataclass
from functools import partial

import tilelang
import tilelang.language as T

from tlmatrix_kernels.attention import backward as bwd
from tlmatrix_kernels.attention import forward as fwd
from tlmatrix_kernels.attention.masks import Mask, block_order, query_tile, tile_and_head
from tlmatrix_kernels.attention.options import PASS_CONFIGS
from tlmatrix_kernels.attention.reordered import (
    RESTORE_THREADS,
    accumulator_shape,
    restore_block,
)
from tlmatrix_kernels.attention.rows import PADDING, Rows
from tlmatrix_kernels.attention.softmax import no_sink, with_sink
from tlmatrix_kernels.attention.tiles import Tiles, tiles_for

ORDER = "mma"
"""The order of the dq accumulator of `reordered` (see the module)."""
SHARED_KEYS = False
"""Whether several blocks of `reordered` add to one dk and dv."""


def _rows(cu_seqlens, sequence, total):
    start = cu_seqlens[sequence]
    return Rows("thd", sequence, start, cu_seqlens[sequence + 1] - start, total)


@dataclass(frozen=True)
class _Config:
    """Compile-time configuration of the forward kernels, and their symbolic sizes."""

    groups: int
    dims: tuple[int, int]
    causal: bool
    windowed: bool
    tiles: Tiles
    heads: object
    batch: object


@T.macro
def _forward(
    q, k, v, initial_of, cu_seqlens_q, cu_seqlens_k, out, lse, max_seqlen_q, scale, window, cfg
):
    """The launch of a forward kernel; `initial_of(head, scale)` is the initial softmax state."""
    tiles = cfg.tiles
    count = T.ceildiv(max_seqlen_q, tiles.queries)
    with T.Kernel(*block_order(cfg.causal, count, cfg.heads), cfg.batch, threads=tiles.threads) as (
        first,
        second,
        sequence,
    ):
        tile, head = tile_and_head(cfg.causal, first, second)
        query, queries, keys = query_tile(
            cfg.causal, tile, tiles.queries,
            _rows(cu_seqlens_q, sequence, q.shape[0]), _rows(cu_seqlens_k, sequence, k.shape[0]),
        )  # fmt: skip
        mask = Mask(cfg.causal, cfg.windowed, queries.length, keys.length, window)
        initial = initial_of(head, scale)
        if mask.any_key_visible(query, tiles.queries, tiles.keys):
            fwd.forward_block(
                q, k, v, initial, out, lse, queries, keys, mask, query, head, head // cfg.groups,
                scale, cfg.dims, tiles,
            )  # fmt: skip
        else:
            fwd.masked_block(initial, out, lse, queries, query, head, cfg.dims[1], tiles)


@tilelang.jit(pass_configs=PASS_CONFIGS)
def forward(dtype, groups, head_dim, head_dim_v, causal, windowed, tiles=None):
    """Build the forward kernel: q, k, v to out and lse."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=windowed).forward
    total_q, total_k, bounds = T.dynamic("total_q, total_k, bounds")
    heads, kv_heads = T.dynamic("heads, kv_heads")
    cfg = _Config(groups, (head_dim, head_dim_v), causal, windowed, tiles, heads, bounds - 1)

    @T.prim_func
    def packed_forward(
        q: T.Tensor((total_q, heads, head_dim), dtype),
        k: T.Tensor((total_k, kv_heads, head_dim), dtype),
        v: T.Tensor((total_k, kv_heads, head_dim_v), dtype),
        cu_seqlens_q: T.Tensor((bounds,), "int32"),
        cu_seqlens_k: T.Tensor((bounds,), "int32"),
        out: T.Tensor((total_q, heads, head_dim_v), dtype),
        lse: T.Tensor((heads, total_q), "float32"),
        max_seqlen_q: T.int32,
        scale: T.float32,
        window: T.int32,
    ):
        _forward(
            q, k, v, no_sink, cu_seqlens_q, cu_seqlens_k, out, lse,
            max_seqlen_q, scale, window, cfg,
        )  # fmt: skip

    return packed_forward


@tilelang.jit(pass_configs=PASS_CONFIGS)
def forward_with_sink(
    dtype, groups, head_dim, head_dim_v, causal, windowed, sink_dtype, tiles=None
):
    """Build the forward kernel with sinks: q, k, v and sink [heads] to out and lse."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=windowed).forward
    total_q, total_k, bounds = T.dynamic("total_q, total_k, bounds")
    heads, kv_heads = T.dynamic("heads, kv_heads")
    cfg = _Config(groups, (head_dim, head_dim_v), causal, windowed, tiles, heads, bounds - 1)

    @T.prim_func
    def packed_sink_forward(
        q: T.Tensor((total_q, heads, head_dim), dtype),
        k: T.Tensor((total_k, kv_heads, head_dim), dtype),
        v: T.Tensor((total_k, kv_heads, head_dim_v), dtype),
        sink: T.Tensor((heads,), sink_dtype),
        cu_seqlens_q: T.Tensor((bounds,), "int32"),
        cu_seqlens_k: T.Tensor((bounds,), "int32"),
        out: T.Tensor((total_q, heads, head_dim_v), dtype),
        lse: T.Tensor((heads, total_q), "float32"),
        max_seqlen_q: T.int32,
        scale: T.float32,
        window: T.int32,
    ):
        _forward(
            q, k, v, partial(with_sink, sink), cu_seqlens_q, cu_seqlens_k, out, lse,
            max_seqlen_q, scale, window, cfg,
        )  # fmt: skip

    return packed_sink_forward


@tilelang.jit(pass_configs=PASS_CONFIGS)
def prepare(dtype, head_dim_v, rows, threads):
    """Build the backward pre-pass: out, do and lse to padded rows of lse * log2(e) and delta."""
    total_q, padded_q, bounds, heads = T.dynamic("total_q, padded_q, bounds, heads")

    @T.prim_func
    def packed_prepare(
        out: T.Tensor((total_q, heads, head_dim_v), dtype),
        do: T.Tensor((total_q, heads, head_dim_v), dtype),
        lse: T.Tensor((heads, total_q), "float32"),
        cu_seqlens_q: T.Tensor((bounds,), "int32"),
        row_lse: T.Tensor((heads, padded_q), "float32"),
        row_delta: T.Tensor((heads, padded_q), "float32"),
        max_seqlen_q: T.int32,
    ):
        # A sequence may own one more tile of padded rows than its length fills.
        with T.Kernel(T.ceildiv(max_seqlen_q, rows) + 1, heads, bounds - 1, threads=threads) as (
            tile,
            head,
            sequence,
        ):
            queries = _rows(cu_seqlens_q, sequence, total_q)
            if tile * rows < queries.padded_length:
                bwd.prepare_block(
                    out, do, lse, row_lse, row_delta, queries, tile * rows, head, rows, head_dim_v
                )

    return packed_prepare


@tilelang.jit(pass_configs=PASS_CONFIGS)
def atomic_gradients(dtype, groups, head_dim, head_dim_v, causal, windowed, tiles=None):
    """Build strategy `atomic`: adds dq, dk and dv to zero-initialized float32 tensors."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=windowed).key_block
    total_q, padded_q, total_k, bounds = T.dynamic("total_q, padded_q, total_k, bounds")
    heads, kv_heads = T.dynamic("heads, kv_heads")
    k_shape, v_shape = (total_k, kv_heads, head_dim), (total_k, kv_heads, head_dim_v)

    @T.prim_func
    def packed_atomic_gradients(
        q: T.Tensor((total_q, heads, head_dim), dtype),
        k: T.Tensor(k_shape, dtype),
        v: T.Tensor(v_shape, dtype),
        do: T.Tensor((total_q, heads, head_dim_v), dtype),
        row_lse: T.Tensor((heads, padded_q), "float32"),
        row_delta: T.Tensor((heads, padded_q), "float32"),
        cu_seqlens_q: T.Tensor((bounds,), "int32"),
        cu_seqlens_k: T.Tensor((bounds,), "int32"),
        dq_sum: T.Tensor((total_q, heads, head_dim), "float32"),
        dk_sum: T.Tensor(k_shape, "float32"),
        dv_sum: T.Tensor(v_shape, "float32"),
        max_seqlen_k: T.int32,
        scale: T.float32,
        window: T.int32,
    ):
        count = T.ceildiv(max_seqlen_k, tiles.keys)
        with T.Kernel(*block_order(causal, count, heads), bounds - 1, threads=tiles.threads) as (
            first,
            second,
            sequence,
        ):
            tile, head = tile_and_head(causal, first, second)
            key = tile * tiles.keys
            queries = _rows(cu_seqlens_q, sequence, total_q)
            keys = _rows(cu_seqlens_k, sequence, total_k)
            mask = Mask(causal, windowed, queries.length, keys.length, window)
            gradients = bwd.KeyGradients(dk_sum, dv_sum, dq=dq_sum)
            if mask.any_query_visible(key, tiles.keys, tiles.queries):
                bwd.key_block(
                    q, k, v, do, row_lse, row_delta, gradients, queries, keys, mask, key,
                    head, head // groups, scale, (head_dim, head_dim_v), tiles,
                )  # fmt: skip

    return packed_atomic_gradients


@tilelang.jit(pass_configs=PASS_CONFIGS)
def key_gradients(dtype, groups, head_dim, head_dim_v, causal, windowed, strategy, tiles=None):
    """Build the key blocks of `split` or `grouped`, which store dk and dv.

    `split`: one float32 part per query head of a group, [groups, ...]; `grouped`: the gradient
    itself, [1, ...].
    """
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=windowed).key_block
    total_q, padded_q, total_k, bounds = T.dynamic("total_q, padded_q, total_k, bounds")
    heads, kv_heads = T.dynamic("heads, kv_heads")
    k_shape, v_shape = (total_k, kv_heads, head_dim), (total_k, kv_heads, head_dim_v)
    parts = groups if strategy == "split" else 1
    part_dtype = dtype if strategy == "grouped" else "float32"
    walked = groups if strategy == "grouped" else 1

    @T.prim_func
    def packed_key_gradients(
        q: T.Tensor((total_q, heads, head_dim), dtype),
        k: T.Tensor(k_shape, dtype),
        v: T.Tensor(v_shape, dtype),
        do: T.Tensor((total_q, heads, head_dim_v), dtype),
        row_lse: T.Tensor((heads, padded_q), "float32"),
        row_delta: T.Tensor((heads, padded_q), "float32"),
        cu_seqlens_q: T.Tensor((bounds,), "int32"),
        cu_seqlens_k: T.Tensor((bounds,), "int32"),
        dk_parts: T.Tensor((parts, *k_shape), part_dtype),
        dv_parts: T.Tensor((parts, *v_shape), part_dtype),
        max_seqlen_k: T.int32,
        scale: T.float32,
        window: T.int32,
    ):
        count = T.ceildiv(max_seqlen_k, tiles.keys)
        with T.Kernel(
            *block_order(causal, count, heads // walked), bounds - 1, threads=tiles.threads
        ) as (first, second, sequence):
            tile, block_head = tile_and_head(causal, first, second)
            head = block_head * walked
            key = tile * tiles.keys
            queries = _rows(cu_seqlens_q, sequence, total_q)
            keys = _rows(cu_seqlens_k, sequence, total_k)
            mask = Mask(causal, windowed, queries.length, keys.length, window)
            gradients = bwd.KeyGradients(dk_parts, dv_parts, part=head % parts, heads=walked)
            if mask.any_query_visible(key, tiles.keys, tiles.queries):
                bwd.key_block(
                    q, k, v, do, row_lse, row_delta, gradients, queries, keys, mask, key,
                    head, head // groups, scale, (head_dim, head_dim_v), tiles,
                )  # fmt: skip
            else:
                bwd.zero_key_block(
                    gradients, keys, key, head // groups, (head_dim, head_dim_v), tiles
                )

    return packed_key_gradients


@tilelang.jit(pass_configs=PASS_CONFIGS)
def query_gradients(dtype, groups, head_dim, head_dim_v, causal, windowed, tiles=None):
    """Build the query blocks of `split` and `grouped`, which store dq."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=windowed).query_block
    total_q, padded_q, total_k, bounds = T.dynamic("total_q, padded_q, total_k, bounds")
    heads, kv_heads = T.dynamic("heads, kv_heads")

    @T.prim_func
    def packed_query_gradients(
        q: T.Tensor((total_q, heads, head_dim), dtype),
        k: T.Tensor((total_k, kv_heads, head_dim), dtype),
        v: T.Tensor((total_k, kv_heads, head_dim_v), dtype),
        do: T.Tensor((total_q, heads, head_dim_v), dtype),
        row_lse: T.Tensor((heads, padded_q), "float32"),
        row_delta: T.Tensor((heads, padded_q), "float32"),
        cu_seqlens_q: T.Tensor((bounds,), "int32"),
        cu_seqlens_k: T.Tensor((bounds,), "int32"),
        dq: T.Tensor((total_q, heads, head_dim), dtype),
        max_seqlen_q: T.int32,
        scale: T.float32,
        window: T.int32,
    ):
        count = T.ceildiv(max_seqlen_q, tiles.queries)
        with T.Kernel(*block_order(causal, count, heads), bounds - 1, threads=tiles.threads) as (
            first,
            second,
            sequence,
        ):
            tile, head = tile_and_head(causal, first, second)
            query, queries, keys = query_tile(
                causal, tile, tiles.queries,
                _rows(cu_seqlens_q, sequence, total_q), _rows(cu_seqlens_k, sequence, total_k),
            )  # fmt: skip
            mask = Mask(causal, windowed, queries.length, keys.length, window)
            if mask.any_key_visible(query, tiles.queries, tiles.keys):
                bwd.query_block(
                    q, k, v, do, row_lse, row_delta, dq, queries, keys, mask, query, head,
                    head // groups, scale, (head_dim, head_dim_v), tiles,
                )  # fmt: skip
            else:
                bwd.zero_query_block(dq, queries, query, head, head_dim, tiles)

    return packed_query_gradients


@tilelang.jit(pass_configs=PASS_CONFIGS)
def reordered_gradients(dtype, groups, head_dim, head_dim_v, causal, windowed, tiles=None):
    """Build strategy `reordered`: stores dk and dv [1, ...], adds dq_sum in its order."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=windowed).key_block
    total_q, padded_q, blocks = T.dynamic("total_q, padded_q, blocks")
    total_k, bounds = T.dynamic("total_k, bounds")
    heads, kv_heads = T.dynamic("heads, kv_heads")
    k_shape, v_shape = (total_k, kv_heads, head_dim), (total_k, kv_heads, head_dim_v)
    sum_shape = accumulator_shape(ORDER, "thd", None, blocks, heads, head_dim)

    @T.prim_func
    def packed_reordered_gradients(
        q: T.Tensor((total_q, heads, head_dim), dtype),
        k: T.Tensor(k_shape, dtype),
        v: T.Tensor(v_shape, dtype),
        do: T.Tensor((total_q, heads, head_dim_v), dtype),
        row_lse: T.Tensor((heads, padded_q), "float32"),
        row_delta: T.Tensor((heads, padded_q), "float32"),
        cu_seqlens_q: T.Tensor((bounds,), "int32"),
        cu_seqlens_k: T.Tensor((bounds,), "int32"),
        dq_sum: T.Tensor(sum_shape, "float32"),
        dk: T.Tensor((1, *k_shape), dtype),
        dv: T.Tensor((1, *v_shape), dtype),
        max_seqlen_k: T.int32,
        scale: T.float32,
        window: T.int32,
    ):
        count = T.ceildiv(max_seqlen_k, tiles.keys)
        with T.Kernel(*block_order(causal, count, kv_heads), bounds - 1, threads=tiles.threads) as (
            first,
            second,
            sequence,
        ):
            tile, kv_head = tile_and_head(causal, first, second)
            key = tile * tiles.keys
            queries = _rows(cu_seqlens_q, sequence, total_q)
            keys = _rows(cu_seqlens_k, sequence, total_k)
            mask = Mask(causal, windowed, queries.length, keys.length, window)
            gradients = bwd.KeyGradients(dk, dv, dq=dq_sum, order=ORDER, part=0, heads=groups)
            if mask.any_query_visible(key, tiles.keys, tiles.queries):
                bwd.key_block(
                    q, k, v, do, row_lse, row_delta, gradients, queries, keys, mask, key,
                    kv_head * groups, kv_head, scale, (head_dim, head_dim_v), tiles,
                )  # fmt: skip
            else:
                bwd.zero_key_block(gradients, keys, key, kv_head, (head_dim, head_dim_v), tiles)

    return packed_reordered_gradients


@tilelang.jit(pass_configs=PASS_CONFIGS)
def restore(dtype, head_dim, order):
    """Build the post-pass of `reordered`: dq = scale * dq_sum, in the layout of q."""
    total_q, blocks, bounds, heads = T.dynamic("total_q, blocks, bounds, heads")
    sum_shape = accumulator_shape(order, "thd", None, blocks, heads, head_dim)

    @T.prim_func
    def packed_restore(
        dq_sum: T.Tensor(sum_shape, "float32"),
        cu_seqlens_q: T.Tensor((bounds,), "int32"),
        dq: T.Tensor((total_q, heads, head_dim), dtype),
        max_seqlen_q: T.int32,
        scale: T.float32,
    ):
        with T.Kernel(
            T.ceildiv(max_seqlen_q, PADDING), heads, bounds - 1, threads=RESTORE_THREADS
        ) as (tile, head, sequence):
            queries = _rows(cu_seqlens_q, sequence, total_q)
            if tile * PADDING < queries.length:
                restore_block(dq_sum, dq, order, queries, head, tile * PADDING, scale, head_dim)

    return packed_restore
