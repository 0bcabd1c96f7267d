"""The kernels of dense attention: every sequence of the batch has the same lengths.

Layouts bshd and bhsd (see `rows`). Batch, heads and lengths are symbolic: one compiled kernel
serves them all, and the scale and the window are arguments. A kernel's grid is (tiles of its own
rows, query heads, sequences); what a block does is written in `forward` and `backward`.
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
from tlmatrix_kernels.attention.softmax import nothing_seen, sink_seen
from tlmatrix_kernels.attention.tiles import Tiles, tiles_for

__all__ = [
    "atomic_gradients",
    "forward",
    "forward_with_sink",
    "key_gradients",
    "prepare",
    "query_gradients",
    "reordered_gradients",
    "restore",
]


@dataclass(frozen=True)
class _Static:
    """What the forward kernels are compiled for, and their sizes."""

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
def _forward(q, k, v, origin_of, out, lse, scale, window, of):
    """All blocks of a forward kernel; `origin_of` tells how the rows of a head start."""
    tiles = of.tiles
    count = T.ceildiv(of.seqlen_q, tiles.queries)
    with T.Kernel(*block_order(of.causal, count, of.heads), of.batch, threads=tiles.threads) as (
        first,
        second,
        sequence,
    ):
        tile, head = tile_and_head(of.causal, first, second)
        query, queries, keys = query_tile(
            of.causal, tile, tiles.queries,
            Rows(of.layout, sequence, 0, of.seqlen_q), Rows(of.layout, sequence, 0, of.seqlen_k),
        )  # fmt: skip
        mask = Mask(of.causal, of.windowed, queries.length, keys.length, window)
        origin = origin_of(head, scale)
        if mask.sees_keys(query, tiles.queries, tiles.keys):
            fwd.forward_block(
                q, k, v, origin, out, lse, queries, keys, mask, query, head, head // of.groups,
                scale, of.dims, tiles,
            )  # fmt: skip
        else:
            fwd.blank_block(origin, out, lse, queries, query, head, of.dims[1], tiles)


@tilelang.jit(pass_configs=PASS_CONFIGS)
def forward(
    layout, dtype, groups, head_dim, head_dim_v, causal, windowed, tiles: Tiles | None = None
):
    """Build the forward kernel: q, k, v to out and lse."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=windowed).forward
    batch, heads, kv_heads = T.dynamic("batch, heads, kv_heads")
    seqlen_q, seqlen_k = T.dynamic("seqlen_q, seqlen_k")
    dims = head_dim, head_dim_v
    of = _Static(layout, groups, dims, causal, windowed, tiles, batch, heads, seqlen_q, seqlen_k)

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
        _forward(q, k, v, nothing_seen, out, lse, scale, window, of)

    return dense_forward


@tilelang.jit(pass_configs=PASS_CONFIGS)
def forward_with_sink(
    layout, dtype, groups, head_dim, head_dim_v, causal, windowed, sink_dtype, tiles=None
):
    """Build the forward kernel whose heads have sinks: q, k, v and sink to out and lse."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=windowed).forward
    batch, heads, kv_heads = T.dynamic("batch, heads, kv_heads")
    seqlen_q, seqlen_k = T.dynamic("seqlen_q, seqlen_k")
    dims = head_dim, head_dim_v
    of = _Static(layout, groups, dims, causal, windowed, tiles, batch, heads, seqlen_q, seqlen_k)

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
        _forward(q, k, v, partial(sink_seen, sink), out, lse, scale, window, of)

    return dense_sink_forward


@tilelang.jit(pass_configs=PASS_CONFIGS)
def prepare(layout, dtype, head_dim_v, rows, threads):
    """Build the backward pre-pass: out, do and lse to padded rows of lse and delta."""
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
    """Build strategy `atomic`: dq, dk and dv added up in float32 tensors that start as zeros."""
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
            if mask.seen_by_queries(key, tiles.keys, tiles.queries):
                bwd.key_block(
                    q, k, v, do, row_lse, row_delta, gradients, queries, keys, mask, key,
                    head, head // groups, scale, (head_dim, head_dim_v), tiles,
                )  # fmt: skip

    return dense_atomic_gradients


@tilelang.jit(pass_configs=PASS_CONFIGS)
def key_gradients(
    layout, dtype, groups, head_dim, head_dim_v, causal, windowed, strategy, tiles=None
):
    """Build the key blocks of `split`, or of `grouped`, which write dk and dv.

    `split`: one float32 part for each query head of a group, [groups, ...]; `grouped`: a single
    part, [1, ...], which is the gradient.
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
            if mask.seen_by_queries(key, tiles.keys, tiles.queries):
                bwd.key_block(
                    q, k, v, do, row_lse, row_delta, gradients, queries, keys, mask, key,
                    head, head // groups, scale, (head_dim, head_dim_v), tiles,
                )  # fmt: skip
            else:
                bwd.blank_key_block(
                    gradients, keys, key, head // groups, (head_dim, head_dim_v), tiles
                )

    return dense_key_gradients


@tilelang.jit(pass_configs=PASS_CONFIGS)
def query_gradients(layout, dtype, groups, head_dim, head_dim_v, causal, windowed, tiles=None):
    """Build dq of `split` and `grouped`: each tile of queries walks over its keys by itself."""
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
            if mask.sees_keys(query, tiles.queries, tiles.keys):
                bwd.query_block(
                    q, k, v, do, row_lse, row_delta, dq, queries, keys, mask, query, head,
                    head // groups, scale, (head_dim, head_dim_v), tiles,
                )  # fmt: skip
            else:
                bwd.blank_query_block(dq, queries, query, head, head_dim, tiles)

    return dense_query_gradients


@tilelang.jit(pass_configs=PASS_CONFIGS)
def reordered_gradients(layout, dtype, groups, head_dim, head_dim_v, causal, windowed, tiles=None):
    """Build strategy `reordered`: dk and dv [1, ...] stored, dq added up in an order of its own."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=windowed).key_block
    batch, heads, kv_heads = T.dynamic("batch, heads, kv_heads")
    seqlen_q, seqlen_k, padded_q, blocks = T.dynamic("seqlen_q, seqlen_k, padded_q, blocks")
    k_shape = matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim)
    v_shape = matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim_v)

    @T.prim_func
    def dense_reordered_gradients(
        q: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim), dtype),
        k: T.Tensor(k_shape, dtype),
        v: T.Tensor(v_shape, dtype),
        do: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim_v), dtype),
        row_lse: T.Tensor(statistic_shape(layout, batch, padded_q, heads), "float32"),
        row_delta: T.Tensor(statistic_shape(layout, batch, padded_q, heads), "float32"),
        dq_sum: T.Tensor(accumulator_shape(layout, batch, blocks, heads, head_dim), "float32"),
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
            gradients = bwd.KeyGradients(dk, dv, dq=dq_sum, reordered=True, part=0, heads=groups)
            if mask.seen_by_queries(key, tiles.keys, tiles.queries):
                bwd.key_block(
                    q, k, v, do, row_lse, row_delta, gradients, queries, keys, mask, key,
                    kv_head * groups, kv_head, scale, (head_dim, head_dim_v), tiles,
                )  # fmt: skip
            else:
                bwd.blank_key_block(gradients, keys, key, kv_head, (head_dim, head_dim_v), tiles)

    return dense_reordered_gradients


@tilelang.jit(pass_configs=PASS_CONFIGS)
def restore(layout, dtype, head_dim):
    """Build the post-pass of `reordered`: dq_sum to dq."""
    batch, heads, seqlen_q, blocks = T.dynamic("batch, heads, seqlen_q, blocks")

    @T.prim_func
    def dense_restore(
        dq_sum: T.Tensor(accumulator_shape(layout, batch, blocks, heads, head_dim), "float32"),
        dq: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim), dtype),
        scale: T.float32,
    ):
        with T.Kernel(T.ceildiv(seqlen_q, PADDING), heads, batch, threads=RESTORE_THREADS) as (
            tile,
            head,
            sequence,
        ):
            queries = Rows(layout, sequence, 0, seqlen_q)
            restore_block(dq_sum, dq, queries, head, tile * PADDING, scale, head_dim)

    return dense_restore
