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
from tlmatrix_kernels.parameters import absent, named


@tilelang.jit(pass_configs=PASS_CONFIGS)
def decode(dtype, out_dtype, groups, head_dim, head_dim_v, windowed, page_size=None, tiles=None):
    """Build the kernel for a contiguous cache, or for pages of `page_size` keys.

    `page_size` must divide the keys of a tile, or be a multiple.
    """
    tiles = tiles or tiles_for(head_dim, head_dim_v, page_size, windowed=windowed)
    batch, heads, kv_heads, splits = T.dynamic("batch, heads, kv_heads, splits")
    if page_size is None:
        stored = batch, T.dynamic("max_seqlen"), kv_heads
    else:
        stored = T.dynamic("pages"), page_size, kv_heads
        max_pages = T.dynamic("max_pages")
    dims = head_dim, head_dim_v
    head_tiles = -(-groups // tiles.rows)

    @T.prim_func
    @named("cache_decode" if page_size is None else "paged_decode")
    def decode(
        q: T.Tensor((batch, heads, head_dim), dtype),
        k: T.Tensor((*stored, head_dim), dtype),
        v: T.Tensor((*stored, head_dim_v), dtype),
        block_table: absent if page_size is None else T.Tensor((batch, max_pages), "int32"),
        seqlens_k: T.Tensor((batch,), "int32"),
        out: T.Tensor((splits, batch, heads, head_dim_v), out_dtype),
        lse: T.Tensor((splits, batch, heads), "float32"),
        scale: T.float32,
        window: T.int32,
    ):
        with T.Kernel(splits, kv_heads * head_tiles, batch, threads=tiles.threads) as (
            split,
            tile,
            sequence,
        ):
            T.annotate_min_blocks_per_sm(tiles.blocks)
            span = Span(seqlens_k[sequence], window if windowed else None, tiles.keys)
            cached = page_size is None
            keys = Cached(sequence) if cached else Paged(block_table, sequence, page_size)
            kv_head = T.truncdiv(tile, head_tiles)
            inner = T.truncmod(tile, head_tiles) * tiles.rows
            head = kv_head * groups + inner
            count = T.min(groups - inner, tiles.rows)
            if span.tile_range(split, splits)[1] > 0:
                decode_block(
                    q, k, v, out, lse, keys, span, split, splits, kv_head, head, count, scale,
                    dims, tiles,
                )  # fmt: skip
            else:
                empty_split(out, lse, sequence, split, head, count, dims, tiles)

    return decode
