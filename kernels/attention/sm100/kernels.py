"""The kernels of dense attention on Blackwell: signatures and grids, as in `attention.dense`."""

import tilelang
import tilelang.language as T

from tlmatrix_kernels.attention.dense import prepare
from tlmatrix_kernels.attention.forward import masked_block
from tlmatrix_kernels.attention.masks import Mask, query_tile
from tlmatrix_kernels.attention.options import PASS_CONFIGS
from tlmatrix_kernels.attention.rows import Rows, matrix_shape, statistic_shape
from tlmatrix_kernels.attention.sm100.backward import key_block
from tlmatrix_kernels.attention.sm100.forward import uniform_block, warp_specialized_block
from tlmatrix_kernels.attention.sm100.tiles import backward_tiles, sm100_tiles
from tlmatrix_kernels.attention.softmax import no_sink

__all__ = ["atomic_gradients", "forward", "prepare"]

# Warp specialization is written by hand: TileLang's automatic one releases a stage when the tcgen05
# MMA is issued, not when it is complete, so the next load would overwrite its operands.
SM100_CONFIGS = PASS_CONFIGS | {tilelang.PassConfigKey.TL_DISABLE_WARP_SPECIALIZED: True}


@tilelang.jit(pass_configs=SM100_CONFIGS)
def forward(variant, layout, dtype, groups, head_dim, head_dim_v, causal, windowed, tiles=None):
    """Build one variant of the forward kernel: q, k, v to out and lse."""
    tiles = tiles or sm100_tiles(variant, head_dim, head_dim_v, causal=causal, windowed=windowed)
    batch, heads, kv_heads = T.dynamic("batch, heads, kv_heads")
    seqlen_q, seqlen_k = T.dynamic("seqlen_q, seqlen_k")

    @T.prim_func
    def sm100_forward(
        q: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim), dtype),
        k: T.Tensor(matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim), dtype),
        v: T.Tensor(matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim_v), dtype),
        out: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim_v), dtype),
        lse: T.Tensor(statistic_shape(layout, batch, seqlen_q, heads), "float32"),
        scale: T.float32,
        window: T.int32,
    ):
        with T.Kernel(T.ceildiv(seqlen_q, tiles.queries), heads, batch, threads=tiles.threads) as (
            tile,
            head,
            sequence,
        ):
            query, queries, keys = query_tile(
                causal, tile, tiles.queries,
                Rows(layout, sequence, 0, seqlen_q), Rows(layout, sequence, 0, seqlen_k),
            )  # fmt: skip
            mask = Mask(causal, windowed, queries.length, keys.length, window)
            if mask.any_key_visible(query, tiles.queries, tiles.keys):
                if variant == "wasp":
                    warp_specialized_block(
                        q, k, v, out, lse, queries, keys, mask, query, head, head // groups,
                        scale, (head_dim, head_dim_v), tiles,
                    )  # fmt: skip
                else:
                    uniform_block(
                        q, k, v, out, lse, queries, keys, mask, query, head, head // groups,
                        scale, (head_dim, head_dim_v), tiles, variant == "ts",
                    )  # fmt: skip
            else:
                masked_block(
                    no_sink(head, scale), out, lse, queries, query, head, head_dim_v, tiles
                )

    return sm100_forward


@tilelang.jit(pass_configs=SM100_CONFIGS)
def atomic_gradients(layout, dtype, groups, head_dim, head_dim_v, causal, windowed, tiles=None):
    """Build the backward kernel: adds dq, dk and dv to zero-initialized float32 tensors."""
    tiles = tiles or backward_tiles(head_dim, head_dim_v)
    batch, heads, kv_heads = T.dynamic("batch, heads, kv_heads")
    seqlen_q, seqlen_k, padded_q = T.dynamic("seqlen_q, seqlen_k, padded_q")

    @T.prim_func
    def sm100_atomic_gradients(
        q: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim), dtype),
        k: T.Tensor(matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim), dtype),
        v: T.Tensor(matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim_v), dtype),
        do: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim_v), dtype),
        row_lse: T.Tensor(statistic_shape(layout, batch, padded_q, heads), "float32"),
        row_delta: T.Tensor(statistic_shape(layout, batch, padded_q, heads), "float32"),
        dq_sum: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim), "float32"),
        dk_sum: T.Tensor(matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim), "float32"),
        dv_sum: T.Tensor(matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim_v), "float32"),
        scale: T.float32,
        window: T.int32,
    ):
        with T.Kernel(T.ceildiv(seqlen_k, tiles.keys), heads, batch, threads=tiles.threads) as (
            tile,
            head,
            sequence,
        ):
            queries = Rows(layout, sequence, 0, seqlen_q)
            keys = Rows(layout, sequence, 0, seqlen_k)
            mask = Mask(causal, windowed, seqlen_q, seqlen_k, window)
            key = tile * tiles.keys
            if mask.any_query_visible(key, tiles.keys, tiles.queries):
                key_block(
                    q, k, v, do, row_lse, row_delta, dq_sum, dk_sum, dv_sum, queries, keys, mask,
                    key, head, groups, scale, (head_dim, head_dim_v), tiles,
                )  # fmt: skip

    return sm100_atomic_gradients
