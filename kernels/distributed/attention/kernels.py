"""The kernels of one step of sequence-parallel attention: runs of queries against ranges of keys.

Rows are packed (layout thd, see `tlmatrix_kernels.attention.rows`), for dense batches too: q, out
and do are [total_q, heads, dim], k and v [total_k, kv_heads, dim] the keys of one step, lse and
delta [heads, total_q]. The table `ranges`, [count, 6] int32, has one row for the blocks of one run,
the longest first:

======  =========================================================================================
column  meaning
======  =========================================================================================
0       the first row of the queries
1       the number of queries
2       the first of their padded rows (backward)
3       the first row of the keys
4       the number of keys; 0 if the run attends to none in this launch
5       offset: query i of the run attends to the keys j <= i + offset (if `causal`)
======  =========================================================================================

(Everything that a block needs is in one row at constant columns: nested table lookups would double
the compile time.)

The algorithm of one block is in `tlmatrix_kernels.attention.forward` and `backward`. Forward
launches of the steps run in order over the same rows: all but the last store out in float32, and
all but the first continue from it. The backward adds to zero-initialized float32 sums: at most two
blocks add to a key, those of the two runs of its sequence, so the result does not depend on their
order.
"""

from dataclasses import dataclass, replace

import tilelang
import tilelang.language as T

from tlmatrix_kernels.attention import backward as bwd
from tlmatrix_kernels.attention import forward as fwd
from tlmatrix_kernels.attention.masks import Mask, block_order, tile_and_head
from tlmatrix_kernels.attention.options import PASS_CONFIGS, SPECIALIZED_CONFIGS
from tlmatrix_kernels.attention.rows import Rows
from tlmatrix_kernels.attention.softmax import InitialState
from tlmatrix_kernels.attention.tiles import Tiles, tiles_for
from tlmatrix_kernels.distributed.attention.specialized import specialized_block, specialized_tiles

COLUMNS = 6


@dataclass(frozen=True)
class RangeMask(Mask):
    """The mask of a run and a range of keys, with an explicit diagonal offset."""

    diagonal_offset: object = 0

    @property
    def offset(self):
        """The key position aligned with query 0, relative to the start of the range."""
        return self.diagonal_offset


@dataclass(frozen=True)
class _Config:
    """Compile-time configuration of a kernel, and its symbolic sizes."""

    groups: int
    dims: tuple[int, int]
    causal: bool
    tiles: Tiles
    heads: object
    count: object
    block: object = fwd.forward_block


@dataclass(frozen=True)
class Run(Rows):
    """The rows of one run of queries, with an explicit first padded row."""

    first_padded: object = 0

    @property
    def padded(self):
        """The first padded row of the run."""
        return self.first_padded


def _rows(ranges, entry, total_q, total_k):
    """The queries and the keys of one table row."""
    queries = Run(
        "thd", 0, ranges[entry, 0], ranges[entry, 1], total_q, first_padded=ranges[entry, 2]
    )
    return queries, Rows("thd", 0, ranges[entry, 3], ranges[entry, 4], total_k)


def _mask(causal, queries, keys, ranges, entry):
    return RangeMask(causal, False, queries.length, keys.length, 0, ranges[entry, 5])


@T.macro
def _bound(mask):
    """The same mask, with its offset bound to a kernel variable: see `rows.bind_rows`."""
    offset = mask.diagonal_offset
    return replace(mask, diagonal_offset=offset)


def query_tile(causal, tile, rows, queries):
    """The first row of a tile, and the queries that its block uses: see `masks.query_tile`."""
    if not causal:
        return tile * rows, queries
    queries = queries.without_last(tile * rows)
    return T.max(queries.length - rows, 0), queries


@T.macro
def unchanged_rows(before, out, lse, queries, query, head, head_dim_v, rows):
    """Copy the previous out and lse of a tile with no visible key in this launch, or 0 and -inf."""
    for i, d in T.Parallel(rows, head_dim_v):
        if queries.contains(query + i):
            here = queries.index(head, query + i, d)
            out[here] = 0 if before is None else before[0][here]
    for i in T.Parallel(rows):
        if queries.contains(query + i):
            row = queries.statistic(head, query + i)
            lse[row] = -T.infinity("float32") if before is None else before[1][row]


@T.macro
def _forward(q, k, v, ranges, before, out, lse, longest_run, scale, cfg):
    """The launch of a forward kernel; `before` is the previous (out, lse), or None."""
    tiles = cfg.tiles
    tile_count = T.ceildiv(longest_run, tiles.queries)
    with T.Kernel(
        *block_order(cfg.causal, tile_count, cfg.heads), cfg.count, threads=tiles.threads
    ) as (first, second, entry):
        tile, head = tile_and_head(cfg.causal, first, second)
        queries, keys = _rows(ranges, entry, q.shape[0], k.shape[0])
        query, queries = query_tile(cfg.causal, tile, tiles.queries, queries)
        mask = _mask(cfg.causal, queries, keys, ranges, entry)
        nothing = -T.infinity("float32")
        initial = InitialState(m=nothing, l=0, lse=nothing, before=before)
        if mask.any_key_visible(query, tiles.queries, tiles.keys):
            mask = _bound(mask)
            cfg.block(
                q, k, v, initial, out, lse, queries, keys, mask, query, head, head // cfg.groups,
                scale, cfg.dims, tiles,
            )  # fmt: skip
        else:
            unchanged_rows(before, out, lse, queries, query, head, cfg.dims[1], tiles.queries)


@tilelang.jit(pass_configs=PASS_CONFIGS)
def forward(dtype, out_dtype, groups, head_dim, head_dim_v, causal, tiles=None):
    """Build the kernel of the first launch: q, k and v to out and lse."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=False).forward
    total_q, total_k, count = T.dynamic("total_q, total_k, count")
    heads, kv_heads = T.dynamic("heads, kv_heads")
    cfg = _Config(groups, (head_dim, head_dim_v), causal, tiles, heads, count)

    @T.prim_func
    def sequence_forward(
        q: T.Tensor((total_q, heads, head_dim), dtype),
        k: T.Tensor((total_k, kv_heads, head_dim), dtype),
        v: T.Tensor((total_k, kv_heads, head_dim_v), dtype),
        ranges: T.Tensor((count, COLUMNS), "int32"),
        out: T.Tensor((total_q, heads, head_dim_v), out_dtype),
        lse: T.Tensor((heads, total_q), "float32"),
        longest_run: T.int32,
        scale: T.float32,
    ):
        _forward(q, k, v, ranges, None, out, lse, longest_run, scale, cfg)

    return sequence_forward


@tilelang.jit(pass_configs=SPECIALIZED_CONFIGS)
def forward_specialized(dtype, out_dtype, groups, head_dim, head_dim_v, causal):
    """Build the kernel of the first launch with explicit warp specialization, for sm_90a."""
    tiles = specialized_tiles(head_dim, head_dim_v)
    total_q, total_k, count = T.dynamic("total_q, total_k, count")
    heads, kv_heads = T.dynamic("heads, kv_heads")
    dims = head_dim, head_dim_v
    cfg = _Config(groups, dims, causal, tiles, heads, count, specialized_block)

    @T.prim_func
    def sequence_forward_specialized(
        q: T.Tensor((total_q, heads, head_dim), dtype),
        k: T.Tensor((total_k, kv_heads, head_dim), dtype),
        v: T.Tensor((total_k, kv_heads, head_dim_v), dtype),
        ranges: T.Tensor((count, COLUMNS), "int32"),
        out: T.Tensor((total_q, heads, head_dim_v), out_dtype),
        lse: T.Tensor((heads, total_q), "float32"),
        longest_run: T.int32,
        scale: T.float32,
    ):
        _forward(q, k, v, ranges, None, out, lse, longest_run, scale, cfg)

    return sequence_forward_specialized


@tilelang.jit(pass_configs=PASS_CONFIGS)
def forward_continued(dtype, out_dtype, groups, head_dim, head_dim_v, causal, tiles=None):
    """Build the kernel of later launches: q, k, v and the previous out and lse to out and lse."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=False).forward
    total_q, total_k, count = T.dynamic("total_q, total_k, count")
    heads, kv_heads = T.dynamic("heads, kv_heads")
    cfg = _Config(groups, (head_dim, head_dim_v), causal, tiles, heads, count)

    @T.prim_func
    def sequence_forward_again(
        q: T.Tensor((total_q, heads, head_dim), dtype),
        k: T.Tensor((total_k, kv_heads, head_dim), dtype),
        v: T.Tensor((total_k, kv_heads, head_dim_v), dtype),
        ranges: T.Tensor((count, COLUMNS), "int32"),
        out_before: T.Tensor((total_q, heads, head_dim_v), "float32"),
        lse_before: T.Tensor((heads, total_q), "float32"),
        out: T.Tensor((total_q, heads, head_dim_v), out_dtype),
        lse: T.Tensor((heads, total_q), "float32"),
        longest_run: T.int32,
        scale: T.float32,
    ):
        _forward(q, k, v, ranges, (out_before, lse_before), out, lse, longest_run, scale, cfg)

    return sequence_forward_again


@tilelang.jit(pass_configs=PASS_CONFIGS)
def key_sums(dtype, groups, head_dim, head_dim_v, causal, tiles=None):
    """Build the key blocks of one launch, which add to dk and dv of the keys of the step.

    A block iterates over all query heads of its kv head, like those of strategy `grouped`.
    """
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=False).key_block
    total_q, padded_q, total_k = T.dynamic("total_q, padded_q, total_k")
    count, heads, kv_heads = T.dynamic("count, heads, kv_heads")
    k_shape, v_shape = (total_k, kv_heads, head_dim), (total_k, kv_heads, head_dim_v)

    @T.prim_func
    def sequence_key_sums(
        q: T.Tensor((total_q, heads, head_dim), dtype),
        k: T.Tensor(k_shape, dtype),
        v: T.Tensor(v_shape, dtype),
        do: T.Tensor((total_q, heads, head_dim_v), dtype),
        row_lse: T.Tensor((heads, padded_q), "float32"),
        row_delta: T.Tensor((heads, padded_q), "float32"),
        ranges: T.Tensor((count, COLUMNS), "int32"),
        dk_sum: T.Tensor(k_shape, "float32"),
        dv_sum: T.Tensor(v_shape, "float32"),
        longest_range: T.int32,
        scale: T.float32,
    ):
        tile_count = T.ceildiv(longest_range, tiles.keys)
        with T.Kernel(*block_order(causal, tile_count, kv_heads), count, threads=tiles.threads) as (
            first,
            second,
            entry,
        ):
            tile, kv_head = tile_and_head(causal, first, second)
            key = tile * tiles.keys
            queries, keys = _rows(ranges, entry, total_q, total_k)
            mask = _mask(causal, queries, keys, ranges, entry)
            gradients = bwd.KeyGradients(dk_sum, dv_sum, heads=groups)
            if mask.any_query_visible(key, tiles.keys, tiles.queries):
                mask = _bound(mask)
                bwd.key_block(
                    q, k, v, do, row_lse, row_delta, gradients, queries, keys, mask, key,
                    kv_head * groups, kv_head, scale, (head_dim, head_dim_v), tiles,
                )  # fmt: skip

    return sequence_key_sums


@tilelang.jit(pass_configs=PASS_CONFIGS)
def query_sums(dtype, groups, head_dim, head_dim_v, causal, tiles=None):
    """Build the query blocks of one launch, which add to dq."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=False).query_block
    total_q, padded_q, total_k = T.dynamic("total_q, padded_q, total_k")
    count, heads, kv_heads = T.dynamic("count, heads, kv_heads")

    @T.prim_func
    def sequence_query_sums(
        q: T.Tensor((total_q, heads, head_dim), dtype),
        k: T.Tensor((total_k, kv_heads, head_dim), dtype),
        v: T.Tensor((total_k, kv_heads, head_dim_v), dtype),
        do: T.Tensor((total_q, heads, head_dim_v), dtype),
        row_lse: T.Tensor((heads, padded_q), "float32"),
        row_delta: T.Tensor((heads, padded_q), "float32"),
        ranges: T.Tensor((count, COLUMNS), "int32"),
        dq_sum: T.Tensor((total_q, heads, head_dim), "float32"),
        longest_run: T.int32,
        scale: T.float32,
    ):
        tile_count = T.ceildiv(longest_run, tiles.queries)
        with T.Kernel(*block_order(causal, tile_count, heads), count, threads=tiles.threads) as (
            first,
            second,
            entry,
        ):
            tile, head = tile_and_head(causal, first, second)
            queries, keys = _rows(ranges, entry, total_q, total_k)
            query, queries = query_tile(causal, tile, tiles.queries, queries)
            mask = _mask(causal, queries, keys, ranges, entry)
            if mask.any_key_visible(query, tiles.queries, tiles.keys):
                mask = _bound(mask)
                bwd.query_block(
                    q, k, v, do, row_lse, row_delta, dq_sum, queries, keys, mask, query, head,
                    head // groups, scale, (head_dim, head_dim_v), tiles,
                )  # fmt: skip

    return sequence_query_sums
