"""The kernels of dense attention: all sequences of the batch have the same lengths.

Layouts bshd and bhsd (see `rows`). Batch, heads and lengths are symbolic: one compiled kernel
serves all shapes; scale and window are runtime arguments. The grid is (tiles, heads, sequences);
the algorithm of one block is in `forward` and `backward`.
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
from tlmatrix_kernels.attention.rows import PADDING, Rows, matrix_shape, statistic_shape
from tlmatrix_kernels.attention.softmax import no_sink, with_sink
from tlmatrix_kernels.attention.tiles import Tiles, tiles_for

ORDER = "mma"
"""The order of the dq accumulator of `reordered` (see the module)."""
SHARED_KEYS = False
"""Whether several blocks of `reordered` add to one dk and dv."""


@dataclass(frozen=True)
class _Config:
    """Compile-time configuration of the forward kernels, and their symbolic sizes."""

    layout: str
    groups: int
    dims: tuple[int, int]
    causal: bool
    windowed: bool
    tiles: Tiles
    batch: object
    heads: object
    seqlen_q: object
    seqlen_k: object


@T.macro
def _forward(q, k, v, initial_of, out, lse, scale, window, cfg):
    """The launch of a forward kernel; `initial_of(head, scale)` is the initial softmax state."""
    tiles = cfg.tiles
    count = T.ceildiv(cfg.seqlen_q, tiles.queries)
    with T.Kernel(*block_order(cfg.causal, count, cfg.heads), cfg.batch, threads=tiles.threads) as (
        first,
        second,
        sequence,
    ):
        tile, head = tile_and_head(cfg.causal, first, second)
        query, queries, keys = query_tile(
            cfg.causal, tile, tiles.queries,
            Rows(cfg.layout, sequence, 0, cfg.seqlen_q),
            Rows(cfg.layout, sequence, 0, cfg.seqlen_k),
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
def forward(
    layout, dtype, groups, head_dim, head_dim_v, causal, windowed, tiles: Tiles | None = None
):
    """Build the forward kernel: q, k, v to out and lse."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=windowed).forward
    batch, heads, kv_heads = T.dynamic("batch, heads, kv_heads")
    seqlen_q, seqlen_k = T.dynamic("seqlen_q, seqlen_k")
    dims = head_dim, head_dim_v
    cfg = _Config(layout, groups, dims, causal, windowed, tiles, batch, heads, seqlen_q, seqlen_k)

    @T.prim_func
    def dense_forward(
        q: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim), dtype),
        k: T.Tensor(matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim), dtype),
        v: T.Tensor(matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim_v), dtype),
        out: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim_v), dtype),
        lse: T.Tensor(statistic_shape(layout, batch, seqlen_q, heads), "float32"),
        scale: T.float32,
        window: T.int32,
    ):
        _forward(q, k, v, no_sink, out, lse, scale, window, cfg)

    return dense_forward


@tilelang.jit(pass_configs=PASS_CONFIGS)
def forward_with_sink(
    layout, dtype, groups, head_dim, head_dim_v, causal, windowed, sink_dtype, tiles=None
):
    """Build the forward kernel with sinks: q, k, v and sink [heads] to out and lse."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=windowed).forward
    batch, heads, kv_heads = T.dynamic("batch, heads, kv_heads")
    seqlen_q, seqlen_k = T.dynamic("seqlen_q, seqlen_k")
    dims = head_dim, head_dim_v
    cfg = _Config(layout, groups, dims, causal, windowed, tiles, batch, heads, seqlen_q, seqlen_k)

    @T.prim_func
    def dense_sink_forward(
        q: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim), dtype),
        k: T.Tensor(matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim), dtype),
        v: T.Tensor(matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim_v), dtype),
        sink: T.Tensor((heads,), sink_dtype),
        out: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim_v), dtype),
        lse: T.Tensor(statistic_shape(layout, batch, seqlen_q, heads), "float32"),
        scale: T.float32,
        window: T.int32,
    ):
        _forward(q, k, v, partial(with_sink, sink), out, lse, scale, window, cfg)

    return dense_sink_forward


@tilelang.jit(pass_configs=PASS_CONFIGS)
def prepare(layout, dtype, head_dim_v, rows, threads):
    """Build the backward pre-pass: out, do and lse to padded rows of lse * log2(e) and delta."""
    batch, heads, seqlen_q, padded_q = T.dynamic("batch, heads, seqlen_q, padded_q")

    @T.prim_func
    def dense_prepare(
        out: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim_v), dtype),
        do: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim_v), dtype),
        lse: T.Tensor(statistic_shape(layout, batch, seqlen_q, heads), "float32"),
        row_lse: T.Tensor(statistic_shape(layout, batch, padded_q, heads), "float32"),
        row_delta: T.Tensor(statistic_shape(layout, batch, padded_q, heads), "float32"),
    ):
        with T.Kernel(T.ceildiv(seqlen_q, rows), heads, batch, threads=threads) as (
            tile,
            head,
            sequence,
        ):
            queries = Rows(layout, sequence, 0, seqlen_q)
            bwd.prepare_block(
                out, do, lse, row_lse, row_delta, queries, tile * rows, head, rows, head_dim_v
            )

    return dense_prepare


@tilelang.jit(pass_configs=PASS_CONFIGS)
def atomic_gradients(layout, dtype, groups, head_dim, head_dim_v, causal, windowed, tiles=None):
    """Build strategy `atomic`: adds dq, dk and dv to zero-initialized float32 tensors."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=windowed).key_block
    batch, heads, kv_heads = T.dynamic("batch, heads, kv_heads")
    seqlen_q, seqlen_k, padded_q = T.dynamic("seqlen_q, seqlen_k, padded_q")
    k_shape = matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim)
    v_shape = matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim_v)

    @T.prim_func
    def dense_atomic_gradients(
        q: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim), dtype),
        k: T.Tensor(k_shape, dtype),
        v: T.Tensor(v_shape, dtype),
        do: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim_v), dtype),
        row_lse: T.Tensor(statistic_shape(layout, batch, padded_q, heads), "float32"),
        row_delta: T.Tensor(statistic_shape(layout, batch, padded_q, heads), "float32"),
        dq_sum: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim), "float32"),
        dk_sum: T.Tensor(k_shape, "float32"),
        dv_sum: T.Tensor(v_shape, "float32"),
        scale: T.float32,
        window: T.int32,
    ):
        count = T.ceildiv(seqlen_k, tiles.keys)
        with T.Kernel(*block_order(causal, count, heads), batch, threads=tiles.threads) as (
            first,
            second,
            sequence,
        ):
            tile, head = tile_and_head(causal, first, second)
            queries = Rows(layout, sequence, 0, seqlen_q)
            keys = Rows(layout, sequence, 0, seqlen_k)
            mask = Mask(causal, windowed, seqlen_q, seqlen_k, window)
            key = tile * tiles.keys
            gradients = bwd.KeyGradients(dk_sum, dv_sum, dq=dq_sum)
            if mask.any_query_visible(key, tiles.keys, tiles.queries):
                bwd.key_block(
                    q, k, v, do, row_lse, row_delta, gradients, queries, keys, mask, key,
                    head, head // groups, scale, (head_dim, head_dim_v), tiles,
                )  # fmt: skip

    return dense_atomic_gradients


@tilelang.jit(pass_configs=PASS_CONFIGS)
def key_gradients(
    layout, dtype, groups, head_dim, head_dim_v, causal, windowed, strategy, tiles=None
):
    """Build the key blocks of `split` or `grouped`, which store dk and dv.

    `split`: one float32 part per query head of a group, [groups, ...]; `grouped`: the gradient
    itself, [1, ...].
    """
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=windowed).key_block
    batch, heads, kv_heads = T.dynamic("batch, heads, kv_heads")
    seqlen_q, seqlen_k, padded_q = T.dynamic("seqlen_q, seqlen_k, padded_q")
    k_shape = matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim)
    v_shape = matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim_v)
    parts = groups if strategy == "split" else 1
    part_dtype = dtype if strategy == "grouped" else "float32"
    walked = groups if strategy == "grouped" else 1

    @T.prim_func
    def dense_key_gradients(
        q: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim), dtype),
        k: T.Tensor(k_shape, dtype),
        v: T.Tensor(v_shape, dtype),
        do: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim_v), dtype),
        row_lse: T.Tensor(statistic_shape(layout, batch, padded_q, heads), "float32"),
        row_delta: T.Tensor(statistic_shape(layout, batch, padded_q, heads), "float32"),
        dk_parts: T.Tensor((parts, *k_shape), part_dtype),
        dv_parts: T.Tensor((parts, *v_shape), part_dtype),
        scale: T.float32,
        window: T.int32,
    ):
        count = T.ceildiv(seqlen_k, tiles.keys)
        with T.Kernel(
            *block_order(causal, count, heads // walked), batch, threads=tiles.threads
        ) as (first, second, sequence):
            tile, block_head = tile_and_head(causal, first, second)
            head = block_head * walked
            queries = Rows(layout, sequence, 0, seqlen_q)
            keys = Rows(layout, sequence, 0, seqlen_k)
            mask = Mask(causal, windowed, seqlen_q, seqlen_k, window)
            key = tile * tiles.keys
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

    return dense_key_gradients


@tilelang.jit(pass_configs=PASS_CONFIGS)
def query_gradients(layout, dtype, groups, head_dim, head_dim_v, causal, windowed, tiles=None):
    """Build the query blocks of `split` and `grouped`, which store dq."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=windowed).query_block
    batch, heads, kv_heads = T.dynamic("batch, heads, kv_heads")
    seqlen_q, seqlen_k, padded_q = T.dynamic("seqlen_q, seqlen_k, padded_q")

    @T.prim_func
    def dense_query_gradients(
        q: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim), dtype),
        k: T.Tensor(matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim), dtype),
        v: T.Tensor(matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim_v), dtype),
        do: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim_v), dtype),
        row_lse: T.Tensor(statistic_shape(layout, batch, padded_q, heads), "float32"),
        row_delta: T.Tensor(statistic_shape(layout, batch, padded_q, heads), "float32"),
        dq: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim), dtype),
        scale: T.float32,
        window: T.int32,
    ):
        count = T.ceildiv(seqlen_q, tiles.queries)
        with T.Kernel(*block_order(causal, count, heads), batch, threads=tiles.threads) as (
            first,
            second,
            sequence,
        ):
            tile, head = tile_and_head(causal, first, second)
            query, queries, keys = query_tile(
                causal, tile, tiles.queries,
                Rows(layout, sequence, 0, seqlen_q), Rows(layout, sequence, 0, seqlen_k),
            )  # fmt: skip
            mask = Mask(causal, windowed, queries.length, keys.length, window)
            if mask.any_key_visible(query, tiles.queries, tiles.keys):
                bwd.query_block(
                    q, k, v, do, row_lse, row_delta, dq, queries, keys, mask, query, head,
                    head // groups, scale, (head_dim, head_dim_v), tiles,
                )  # fmt: skip
            else:
                bwd.zero_query_block(dq, queries, query, head, head_dim, tiles)

    return dense_query_gradients


@tilelang.jit(pass_configs=PASS_CONFIGS)
def reordered_gradients(layout, dtype, groups, head_dim, head_dim_v, causal, windowed, tiles=None):
    """Build strategy `reordered`: stores dk and dv [1, ...], adds dq_sum in its order."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=windowed).key_block
    batch, heads, kv_heads = T.dynamic("batch, heads, kv_heads")
    seqlen_q, seqlen_k, padded_q, blocks = T.dynamic("seqlen_q, seqlen_k, padded_q, blocks")
    k_shape = matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim)
    v_shape = matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim_v)
    sum_shape = accumulator_shape(ORDER, layout, batch, blocks, heads, head_dim)

    @T.prim_func
    def dense_reordered_gradients(
        q: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim), dtype),
        k: T.Tensor(k_shape, dtype),
        v: T.Tensor(v_shape, dtype),
        do: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim_v), dtype),
        row_lse: T.Tensor(statistic_shape(layout, batch, padded_q, heads), "float32"),
        row_delta: T.Tensor(statistic_shape(layout, batch, padded_q, heads), "float32"),
        dq_sum: T.Tensor(sum_shape, "float32"),
        dk: T.Tensor((1, *k_shape), dtype),
        dv: T.Tensor((1, *v_shape), dtype),
        scale: T.float32,
        window: T.int32,
    ):
        count = T.ceildiv(seqlen_k, tiles.keys)
        with T.Kernel(*block_order(causal, count, kv_heads), batch, threads=tiles.threads) as (
            first,
            second,
            sequence,
        ):
            tile, kv_head = tile_and_head(causal, first, second)
            queries = Rows(layout, sequence, 0, seqlen_q)
            keys = Rows(layout, sequence, 0, seqlen_k)
            mask = Mask(causal, windowed, seqlen_q, seqlen_k, window)
            key = tile * tiles.keys
            gradients = bwd.KeyGradients(dk, dv, dq=dq_sum, order=ORDER, part=0, heads=groups)
            if mask.any_query_visible(key, tiles.keys, tiles.queries):
                bwd.key_block(
                    q, k, v, do, row_lse, row_delta, gradients, queries, keys, mask, key,
                    kv_head * groups, kv_head, scale, (head_dim, head_dim_v), tiles,
                )  # fmt: skip
            else:
                bwd.zero_key_block(gradients, keys, key, kv_head, (head_dim, head_dim_v), tiles)

    return dense_reordered_gradients


@tilelang.jit(pass_configs=PASS_CONFIGS)
def restore(layout, dtype, head_dim, order):
    """Build the post-pass of `reordered`: dq = scale * dq_sum, in the layout of q."""
    batch, heads, seqlen_q, blocks = T.dynamic("batch, heads, seqlen_q, blocks")
    sum_shape = accumulator_shape(order, layout, batch, blocks, heads, head_dim)

    @T.prim_func
    def dense_restore(
        dq_sum: T.Tensor(sum_shape, "float32"),
        dq: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim), dtype),
        scale: T.float32,
    ):
        with T.Kernel(T.ceildiv(seqlen_q, PADDING), heads, batch, threads=RESTORE_THREADS) as (
            tile,
            head,
            sequence,
        ):
            queries = Rows(layout, sequence, 0, seqlen_q)
            restore_block(dq_sum, dq, order, queries, head, tile * PADDING, scale, head_dim)

    return dense_restore
