"""The decode kernels, for a contiguous and for a paged KV cache.

========================  ==================================================================
q                         [batch, heads, head_dim]
k, v, contiguous          [batch, max_seqlen, kv_heads, head_dim], and head_dim_v
k, v, paged               [pages, page_size, kv_heads, head_dim], and head_dim_v
block_table               [batch, max_pages] int32
seqlens_k                 [batch] int32
out, lse                  [splits, batch, heads, head_dim_v], [splits, batch, heads] float32
========================  ==================================================================

The grid is (splits, head tiles, sequences): a block processes one split of the keys of a sequence,
in whole tiles, for the query heads of one kv head; a group with more heads than a tile has rows
takes several blocks. Batch, lengths, pages, heads and splits are symbolic: one compiled kernel
serves all shapes. With one split out has the dtype of q and is the result; with more it is float32,
for `combine`. The algorithm of one block is in `block`.
"""

import tilelang
import tilelang.language as T

from tlmatrix_kernels.attention.decode.block import decode_block, empty_split
from tlmatrix_kernels.attention.decode.keys import Cached, Paged, Span
from tlmatrix_kernels.attention.decode.tiles import tiles_for
from tlmatrix_kernels.attention.options import PASS_CONFIGS


@T.macro
def _block(q, k, v, out, lse, keys, span, split, tile, groups, scale, dims, tiles):
    """One block; `tile` is the index of a tile of heads among those of all kv heads."""
    head_tiles = -(-groups // tiles.rows)
    kv_head = T.truncdiv(tile, head_tiles)
    inner = T.truncmod(tile, head_tiles) * tiles.rows
    head = kv_head * groups + inner
    heads = T.min(groups - inner, tiles.rows)
    splits = out.shape[0]
    if span.tile_range(split, splits)[1] > 0:
        decode_block(
            q, k, v, out, lse, keys, span, split, splits, kv_head, head, heads, scale, dims, tiles
        )
    else:
        empty_split(out, lse, keys.sequence, split, head, heads, dims, tiles)


@tilelang.jit(pass_configs=PASS_CONFIGS)
def cache_decode(dtype, out_dtype, groups, head_dim, head_dim_v, windowed, tiles=None):
    """Build the kernel for a contiguous cache."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=windowed)
    batch, max_seqlen, heads, kv_heads = T.dynamic("batch, max_seqlen, heads, kv_heads")
    splits = T.dynamic("splits")

    @T.prim_func
    def cache_decode(
        q: T.Tensor((batch, heads, head_dim), dtype),
        k: T.Tensor((batch, max_seqlen, kv_heads, head_dim), dtype),
        v: T.Tensor((batch, max_seqlen, kv_heads, head_dim_v), dtype),
        seqlens_k: T.Tensor((batch,), "int32"),
        out: T.Tensor((splits, batch, heads, head_dim_v), out_dtype),
        lse: T.Tensor((splits, batch, heads), "float32"),
        scale: T.float32,
        window: T.int32,
    ):
        head_tiles = kv_heads * (-(-groups // tiles.rows))
        with T.Kernel(splits, head_tiles, batch, threads=tiles.threads) as (split, tile, sequence):
            T.annotate_min_blocks_per_sm(tiles.blocks)
            span = Span(seqlens_k[sequence], window if windowed else None, tiles.keys)
            _block(
                q, k, v, out, lse, Cached(sequence), span, split, tile, groups, scale,
                (head_dim, head_dim_v), tiles,
            )  # fmt: skip

    return cache_decode


@tilelang.jit(pass_configs=PASS_CONFIGS)
def paged_decode(dtype, out_dtype, groups, head_dim, head_dim_v, windowed, page_size, tiles=None):
    """Build the kernel for pages; `page_size` must divide the keys of a tile, or be a multiple."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, page_size, windowed=windowed)
    batch, pages, max_pages, heads, kv_heads = T.dynamic("batch, pages, max_pages, heads, kv_heads")
    splits = T.dynamic("splits")

    @T.prim_func
    def paged_decode(
        q: T.Tensor((batch, heads, head_dim), dtype),
        k: T.Tensor((pages, page_size, kv_heads, head_dim), dtype),
        v: T.Tensor((pages, page_size, kv_heads, head_dim_v), dtype),
        block_table: T.Tensor((batch, max_pages), "int32"),
        seqlens_k: T.Tensor((batch,), "int32"),
        out: T.Tensor((splits, batch, heads, head_dim_v), out_dtype),
        lse: T.Tensor((splits, batch, heads), "float32"),
        scale: T.float32,
        window: T.int32,
    ):
        head_tiles = kv_heads * (-(-groups // tiles.rows))
        with T.Kernel(splits, head_tiles, batch, threads=tiles.threads) as (split, tile, sequence):
            T.annotate_min_blocks_per_sm(tiles.blocks)
            span = Span(seqlens_k[sequence], window if windowed else None, tiles.keys)
            keys = Paged(block_table, sequence, page_size)
            _block(
                q, k, v, out, lse, keys, span, split, tile, groups, scale,
                (head_dim, head_dim_v), tiles,
            )  # fmt: skip

    return paged_decode
