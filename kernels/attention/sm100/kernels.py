"""The kernels of dense attention on Blackwell: signatures and grids, as in `attention.dense`."""

import tilelang
import tilelang.language as T

from tlmatrix_kernels.attention.backward import KeyGradients, zero_key_block
from tlmatrix_kernels.attention.dense import prepare, restore
from tlmatrix_kernels.attention.forward import masked_block
from tlmatrix_kernels.attention.masks import Mask, query_tile
from tlmatrix_kernels.attention.options import PASS_CONFIGS
from tlmatrix_kernels.attention.reordered import accumulator_shape
from tlmatrix_kernels.attention.rows import Rows, matrix_shape, statistic_shape
from tlmatrix_kernels.attention.sm100.backward import key_block
from tlmatrix_kernels.attention.sm100.forward import uniform_block, warp_specialized_block
from tlmatrix_kernels.attention.sm100.tiles import backward_tiles, sm100_tiles
from tlmatrix_kernels.attention.softmax import no_sink

__all__ = ["ORDER", "SHARED_KEYS", "forward", "prepare", "reordered_gradients", "restore"]

ORDER = "tmem"
"""The order of the dq accumulator (see `reordered`)."""
SHARED_KEYS = True
"""The blocks of the query heads of a group add to one dk and dv."""

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
def reordered_gradients(layout, dtype, groups, head_dim, head_dim_v, causal, windowed, tiles=None):
    """Build the backward kernel: adds dq_sum in its order, and stores dk and dv [1, ...].

    If query heads share kv heads it adds dk and dv, zero-initialized float32 tensors, instead.
    """
    tiles = tiles or backward_tiles(head_dim, head_dim_v)
    batch, heads, kv_heads = T.dynamic("batch, heads, kv_heads")
    seqlen_q, seqlen_k, padded_q, blocks = T.dynamic("seqlen_q, seqlen_k, padded_q, blocks")
    k_shape = matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim)
    v_shape = matrix_shape(layout, batch, seqlen_k, kv_heads, head_dim_v)
    sum_shape = accumulator_shape(ORDER, layout, batch, blocks, heads, head_dim)
    shared = SHARED_KEYS and groups > 1
    parts, part_dtype = ((), "float32") if shared else ((1,), dtype)

    @T.prim_func
    def sm100_reordered_gradients(
        q: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim), dtype),
        k: T.Tensor(k_shape, dtype),
        v: T.Tensor(v_shape, dtype),
        do: T.Tensor(matrix_shape(layout, batch, seqlen_q, heads, head_dim_v), dtype),
        row_lse: T.Tensor(statistic_shape(layout, batch, padded_q, heads), "float32"),
        row_delta: T.Tensor(statistic_shape(layout, batch, padded_q, heads), "float32"),
        dq_sum: T.Tensor(sum_shape, "float32"),
        dk: T.Tensor((*parts, *k_shape), part_dtype),
        dv: T.Tensor((*parts, *v_shape), part_dtype),
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
            part = None if shared else 0
            gradients = KeyGradients(dk, dv, dq=dq_sum, order=ORDER, part=part)
            if mask.any_query_visible(key, tiles.keys, tiles.queries):
                key_block(
                    q, k, v, do, row_lse, row_delta, gradients, queries, keys, mask, key, head,
                    head // groups, scale, (head_dim, head_dim_v), tiles,
                )  # fmt: skip
            elif not shared:
                zero_key_block(gradients, keys, key, head // groups, (head_dim, head_dim_v), tiles)

    return sm100_reordered_gradients
