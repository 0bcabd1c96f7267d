"""The kernels of dense attention on Blackwell: signatures and grids, as in `attention.kernels`."""

from functools import partial

import tilelang
import tilelang.language as T

from tlmatrix_kernels.attention.backward import KeyGradients, zero_key_block
from tlmatrix_kernels.attention.forward import masked_block
from tlmatrix_kernels.attention.kernels import prepare, restore
from tlmatrix_kernels.attention.launch import Config, key_blocks, query_blocks
from tlmatrix_kernels.attention.options import SPECIALIZED_CONFIGS
from tlmatrix_kernels.attention.reordered import block_shape
from tlmatrix_kernels.attention.rows import Batch
from tlmatrix_kernels.attention.sm100.backward import key_block
from tlmatrix_kernels.attention.sm100.forward import uniform_block, warp_specialized_block
from tlmatrix_kernels.attention.sm100.tiles import backward_tiles, sm100_tiles
from tlmatrix_kernels.attention.softmax import no_sink

__all__ = ["ORDER", "SHARED_KEYS", "forward", "key_gradients", "prepare", "restore"]

ORDER = "tmem"
"""The order of the dq accumulator (see `reordered`)."""
SHARED_KEYS = True
"""The blocks of the query heads of a group add to one dk and dv."""

# TileLang's automatic warp specialization releases a stage when the tcgen05 MMA is issued, not when
# it is complete, so the next load would overwrite its operands: hence `SPECIALIZED_CONFIGS`.


@tilelang.jit(pass_configs=SPECIALIZED_CONFIGS)
def forward(variant, layout, dtype, groups, head_dim, head_dim_v, causal, windowed, tiles=None):
    """Build one variant of the forward kernel: q, k, v to out and lse."""
    tiles = tiles or sm100_tiles(variant, head_dim, head_dim_v, causal=causal, windowed=windowed)
    cfg = Config(groups, (head_dim, head_dim_v), causal, windowed, tiles, ordered=False)
    batch = Batch(layout)

    @T.prim_func
    def sm100_forward(
        q: batch.like_q(head_dim, dtype),
        k: batch.like_k(head_dim, dtype),
        v: batch.like_k(head_dim_v, dtype),
        out: batch.like_q(head_dim_v, dtype),
        lse: batch.statistic(),
        scale: T.float32,
        window: T.int32,
    ):
        block = partial(uniform_block, q, k, v, out, lse, scale, cfg, variant == "ts")
        if variant == "wasp":
            block = partial(warp_specialized_block, q, k, v, out, lse, scale, cfg)
        masked = partial(masked_block, no_sink, out, lse, scale, cfg)
        query_blocks(batch.sequences(), window, cfg, block, masked)

    return sm100_forward


@tilelang.jit(pass_configs=SPECIALIZED_CONFIGS)
def key_gradients(
    layout, dtype, groups, head_dim, head_dim_v, causal, windowed, strategy="reordered", tiles=None
):
    """Build the backward kernel: adds dq_sum in its order, and stores dk and dv [1, ...].

    The only `strategy` is "reordered". If query heads share kv heads it adds dk and dv,
    zero-initialized float32 tensors, instead.
    """
    assert strategy == "reordered", strategy
    tiles = tiles or backward_tiles(head_dim, head_dim_v)
    cfg = Config(groups, (head_dim, head_dim_v), causal, windowed, tiles, ordered=False)
    batch = Batch(layout)
    shared = SHARED_KEYS and groups > 1
    parts, part_dtype = ((), "float32") if shared else ((1,), dtype)

    @T.prim_func
    def sm100_reordered_gradients(
        q: batch.like_q(head_dim, dtype),
        k: batch.like_k(head_dim, dtype),
        v: batch.like_k(head_dim_v, dtype),
        do: batch.like_q(head_dim_v, dtype),
        row_lse: batch.padded_statistic(),
        row_delta: batch.padded_statistic(),
        dq_sum: batch.blocks(block_shape(ORDER, head_dim)),
        dk: batch.like_k(head_dim, part_dtype, *parts),
        dv: batch.like_k(head_dim_v, part_dtype, *parts),
        scale: T.float32,
        window: T.int32,
    ):
        key_blocks(
            batch.sequences(), window, cfg,
            KeyGradients(dk, dv, batch.heads, parts=len(parts), dq=dq_sum, order=ORDER),
            partial(key_block, q, k, v, do, row_lse, row_delta, scale, cfg),
            partial(zero_key_block, cfg),
        )  # fmt: skip

    return sm100_reordered_gradients
