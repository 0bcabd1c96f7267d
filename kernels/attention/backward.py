"""The backward pass of one thread block, in parts that the strategies combine.

With p = exp(scale * q k^T - lse) recomputed tile by tile, and

    delta = rowsum(out * do)                    [queries] float32
    dp    = do v^T                              [queries, keys]
    ds    = p * (dp - delta)                    [queries, keys]

the gradients are (FlashAttention-2, Dao, 2023, algorithm 2)

    dv = p^T do        dk = scale * ds^T q        dq = scale * ds k

The scale multiplies the float32 accumulators at the end, so that the 16-bit ds does not become
subnormal and no elementwise product is needed.

The *pre-pass* computes delta, and writes it and lse * log2(e) to padded rows (see `rows`). A
*key block* owns a tile of keys, accumulates their dk and dv, and iterates over the tiles of queries
that attend to them. It uses transposed tiles s^T and dp^T [keys, queries]: the rows of its
accumulators are keys, and p^T and ds^T are MMA operands in registers. A *query block* owns a tile
of queries, accumulates their dq, and iterates over tiles of keys.

============= ===============================================================================
strategy      kernels
============= ===============================================================================
`atomic`      One key block per query head. It adds its part of dq, and the heads of a group add
              dk and dv, with float32 atomics; a post-pass casts. 5 GEMMs, the fewest; the order
              of the additions, and so the last bits, vary from run to run.
`split`       One key block per query head stores float32 dk and dv, which a post-pass sums over
              the group; query blocks compute dq. 7 GEMMs, bitwise reproducible.
`grouped`     One key block per kv head iterates over the query heads of the group and stores
              dk and dv once; query blocks compute dq. Like `split` without the post-pass, but
              with fewer, longer blocks: faster for large problems only.
`reordered`   Key blocks as in `grouped`, so dk and dv are reproducible. They add dq with float32
              atomics of four elements to an accumulator in register order (see `reordered`); a
              post-pass restores the layout of q. 5 GEMMs; the last bits of dq vary.
`specialized` Like `reordered` with explicit warp roles, one of which adds whole tiles of dq by TMA
              (see the module). For sm_90a; the fastest there.
============= ===============================================================================

On Hopper, TMA stores dk and dv in 16 bits, through shared memory; where a tile crosses the end of a
packed sequence, threads store its rows.

p and dp of masked pairs, and of rows past the end of the sequence, are set to 0 by select and not
by multiplication: what such a row reads may be huge, and its product infinite. lse is -inf in a row
with no visible key; all pairs of such a row are masked.
"""

from dataclasses import dataclass, replace

import tilelang.language as T

from tlmatrix_kernels.attention.reordered import add_tile
from tlmatrix_kernels.attention.rows import bind_block
from tlmatrix_kernels.attention.softmax import LOG2_E
from tlmatrix_kernels.attention.tiles import padded
from tlmatrix_kernels.pipeline import keep_producer_together


@T.macro
def prepare_block(out, do, lse, row_lse, row_delta, queries, query, head, rows, head_dim_v):
    """The pre-pass of `rows` queries from `query`; padded rows past the sequence become 0.

    Sums columns in steps of 32: TileLang only infers a layout for a fragment [rows, width] if the
    width is a power of two.
    """
    step = 32
    product = T.alloc_fragment([rows, step], "float32")
    total = T.alloc_fragment([rows], "float32")
    T.clear(product)
    for part in T.serial(T.ceildiv(head_dim_v, step)):
        for i, d in T.Parallel(rows, step):
            if T.And(queries.contains(query + i), part * step + d < head_dim_v):
                here = queries.index(head, query + i, part * step + d)
                product[i, d] += T.cast(out[here], "float32") * T.cast(do[here], "float32")
    T.reduce_sum(product, total, dim=1)
    for i in T.Parallel(rows):
        row_delta[queries.padded_statistic(head, query + i)] = T.if_then_else(
            queries.contains(query + i), total[i], 0.0
        )
    for i in T.Parallel(rows):
        row_lse[queries.padded_statistic(head, query + i)] = T.if_then_else(
            queries.contains(query + i), lse[queries.statistic(head, query + i)] * LOG2_E, 0.0
        )


@dataclass(frozen=True)
class KeyGradients:
    """The outputs of a key block.

    dk and dv are [parts, ...], of which the block writes index `part`; `heads` query heads
    contribute, and ``blocks`` blocks have all heads. With `parts` 0 dk and dv are float32
    accumulators with the shapes of k and v. `dq`, if not None, is a float32 accumulator with the
    shape of q, or in the order `order` of `reordered`. Accumulators must be zero-initialized.
    """

    dk: object
    dv: object
    blocks: object
    heads: int = 1
    parts: int = 0
    dq: object = None
    order: str | None = None
    part: object = None

    def of_head(self, head):
        """The same for the block of the query heads from `head` on."""
        return replace(self, part=head % self.parts if self.parts else None)


@T.macro
def store_key_gradient(gradients, target, index, value):
    """Store or add one element of dk or dv; `index` is that of a k-like tensor."""
    if gradients.part is None:
        T.atomic_add(target[index], value)
    else:
        target[gradients.part, *index] = value


@T.macro
def write_keys(gradients, target, tile, tile_shared, keys, head, key, factor, head_dim):
    """Store or add `factor` times a fragment [keys, width] of dk or dv; whole tiles by TMA."""
    columns, width = tile.shape
    if tile_shared is None:
        for i, d in T.Parallel(columns, width):
            if T.And(keys.contains(key + i), d < head_dim):
                here = keys.index(head, key + i, d)
                store_key_gradient(gradients, target, here, tile[i, d] * factor)
    else:
        for i, d in T.Parallel(columns, width):
            tile[i, d] *= factor
        T.copy(tile, tile_shared)
        if keys.can_store_tile(key, columns):
            T.copy(tile_shared, keys.tile(target, head, key, columns, width, gradients.part))
        else:
            for i, d in T.Parallel(columns, head_dim):
                if keys.contains(key + i):
                    here = keys.index(head, key + i, d)
                    store_key_gradient(gradients, target, here, tile_shared[i, d])


@T.macro
def add_queries(dq_sum, tile, tile_shared, queries, head, query, head_dim, scale):
    """Add scale * dq [rows, width], a fragment, to `dq_sum`; full tiles by TMA reduction."""
    rows, width = tile.shape
    for i, d in T.Parallel(rows, width):
        tile[i, d] *= scale
    if tile_shared is not None and queries.can_store_tile(query, rows):
        T.copy(tile, tile_shared)
        T.atomic_add(queries.tile(dq_sum, head, query, rows, width), tile_shared, use_tma=True)
    else:
        for i, d in T.Parallel(rows, width):
            if T.And(queries.contains(query + i), d < head_dim):
                T.atomic_add(dq_sum[queries.index(head, query + i, d)], tile[i, d])


def pair_visible(mask, query, key, i, j, transposed):
    """Whether the pair (i, j) of a tile [queries, keys], or of its transpose, is visible."""
    return mask.visible(query + j, key + i) if transposed else mask.visible(query + i, key + j)


@T.macro
def mask_pairs(s, dp, mask, query, key, rows, columns, transposed):
    """Set p (in `s`) and dp of masked pairs to 0, in tiles as those of `compute_p_dp`."""
    if mask.needs_mask(query, rows, key, columns):
        first_query = T.alloc_var("int32", init=query)  # see `apply_mask`
        first_key = T.alloc_var("int32", init=key)
        for i, j in T.Parallel(*s.shape):
            visible = pair_visible(mask, first_query, first_key, i, j, transposed)
            s[i, j] = T.Select(visible, s[i, j], 0.0)
            dp[i, j] = T.Select(visible, dp[i, j], 0.0)


@T.macro
def compute_p_dp(a, b, a_v, b_v, s, dp, lse, mask, query, key, scale, tiles, transposed):
    """Compute p (in `s`) and dp, both 0 for masked pairs: s = a b^T and dp = a_v b_v^T.

    Tiles start at `query` and `key`, and are [queries, keys], or [keys, queries] if `transposed`.
    `lse` [queries] is in base 2.
    """
    rows, columns = tiles.queries, tiles.keys
    height, width = (columns, rows) if transposed else (rows, columns)
    T.gemm(a, b, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
    T.gemm(a_v, b_v, dp, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
    for i, j in T.Parallel(height, width):
        s[i, j] = T.exp2(s[i, j] * (scale * LOG2_E) - lse[j if transposed else i])
    mask_pairs(s, dp, mask, query, key, rows, columns, transposed)


@T.macro
def key_block(
    q, k, v, do, row_lse, row_delta, scale, cfg,
    gradients, queries, keys, mask, key, head, kv_head,
):  # fmt: skip
    """Compute dk and dv of the tile of keys from `key`, for query heads from `head` on.

    `gradients` holds the outputs and the number of heads. At least one tile of queries must attend
    to the keys.
    """
    queries, keys, mask = bind_block(queries, keys, mask)
    (head_dim, head_dim_v), tiles = cfg.dims, cfg.tiles
    width, width_v = padded(head_dim), padded(head_dim_v)
    rows, columns = tiles.queries, tiles.keys
    dtype = q.dtype

    k_shared = T.alloc_shared([columns, width], dtype)
    v_shared = T.alloc_shared([columns, width_v], dtype)
    q_shared = T.alloc_shared([rows, width], dtype)
    do_shared = T.alloc_shared([rows, width_v], dtype)
    lse_shared = T.alloc_shared([rows], "float32")
    delta_shared = T.alloc_shared([rows], "float32")
    s = T.alloc_fragment([columns, rows], "float32")
    dp = T.alloc_fragment([columns, rows], "float32")
    alloc_scores = T.alloc_shared if tiles.staged else T.alloc_fragment
    p = alloc_scores([columns, rows], dtype)
    ds = alloc_scores([columns, rows], dtype)
    dk = T.alloc_fragment([columns, width], "float32")
    dv = T.alloc_fragment([columns, width_v], "float32")
    tma_store = tiles.tma_store and gradients.part is not None and gradients.dk.dtype == dtype
    dk_shared = T.alloc_shared([columns, width], dtype) if tma_store else None
    dv_shared = T.alloc_shared([columns, width_v], dtype) if tma_store else None
    if gradients.dq is not None:
        dq = T.alloc_fragment([rows, width], "float32")
        tma_reduce = tiles.tma_reduce and gradients.order is None
        dq_shared = T.alloc_shared([rows, width], "float32") if tma_reduce else None
        ds_shared = ds if tiles.staged else T.alloc_shared([columns, rows], dtype)

    T.copy(keys.tile(k, kv_head, key, columns, width), k_shared)
    T.copy(keys.tile(v, kv_head, key, columns, width_v), v_shared)
    T.clear(dk)
    T.clear(dv)
    first, count = mask.query_tiles(key, columns, rows)
    for step in T.Pipelined(count * gradients.heads, num_stages=tiles.stages):
        keep_producer_together()
        # Truncated division: floor division in every index doubles the compile time.
        query = (first + (T.truncmod(step, count) if gradients.heads > 1 else step)) * rows
        here = head + (T.truncdiv(step, count) if gradients.heads > 1 else 0)
        T.copy(queries.tile(q, here, query, rows, width), q_shared)
        T.copy(queries.padded_tile(row_lse, here, query, rows), lse_shared)
        T.copy(queries.tile(do, here, query, rows, width_v), do_shared)
        T.copy(queries.padded_tile(row_delta, here, query, rows), delta_shared)

        # p^T and ds^T [keys, queries], in float32 (s, dp) and in 16 bits (p, ds)...
        compute_p_dp(
            k_shared, q_shared, v_shared, do_shared, s, dp, lse_shared,
            mask, query, key, scale, tiles, transposed=True,
        )  # fmt: skip
        T.copy(s, p)
        for i, j in T.Parallel(columns, rows):
            ds[i, j] = s[i, j] * (dp[i, j] - delta_shared[j])

        T.gemm(p, do_shared, dv, policy=T.GemmWarpPolicy.FullRow)
        T.gemm(ds, q_shared, dk, policy=T.GemmWarpPolicy.FullRow)
        if gradients.dq is not None:
            if not tiles.staged:
                T.copy(ds, ds_shared)
            T.gemm(ds_shared, k_shared, dq, transpose_A=True, clear_accum=True)
            if gradients.order is None:
                add_queries(gradients.dq, dq, dq_shared, queries, here, query, head_dim, scale)
            else:
                add_tile(gradients.dq, dq, gradients.order, queries, here, query)

    write_keys(gradients, gradients.dk, dk, dk_shared, keys, kv_head, key, scale, head_dim)
    write_keys(gradients, gradients.dv, dv, dv_shared, keys, kv_head, key, 1.0, head_dim_v)


@T.macro
def zero_key_block(cfg, gradients, keys, key, kv_head):
    """Write zero gradients of keys that no query attends to; `key_block` needs a query tile."""
    (head_dim, head_dim_v), columns = cfg.dims, cfg.tiles.keys
    for i, d in T.Parallel(columns, head_dim):
        if keys.contains(key + i):
            gradients.dk[gradients.part, *keys.index(kv_head, key + i, d)] = 0.0
    for i, d in T.Parallel(columns, head_dim_v):
        if keys.contains(key + i):
            gradients.dv[gradients.part, *keys.index(kv_head, key + i, d)] = 0.0


@T.macro
def load_statistic(statistic, tile, queries, head, query):
    """Load lse or delta of a tile of queries into a fragment; 0 past the end of the sequence.

    Directly from global memory: TileLang would assign a load through shared memory, needed only
    once, to a producer warp group.
    """
    for j in T.Parallel(tile.shape[0]):
        tile[j] = T.if_then_else(
            queries.contains(query + j), statistic[queries.padded_statistic(head, query + j)], 0.0
        )


def accumulated(dq_out, index, value, dtype):
    """The value to store in dq: added to the old one if dq is a float32 sum of several kernels."""
    return value if dq_out.dtype == dtype else dq_out[index] + value


@T.macro
def query_block(
    q, k, v, do, row_lse, row_delta, dq_out, scale, cfg,
    queries, keys, mask, query, head, kv_head,
):  # fmt: skip
    """Compute dq of the tile of queries from `query`; stored in the dtype of q or added in float32.

    At least one tile of keys must be visible.
    """
    queries, keys, mask = bind_block(queries, keys, mask)
    (head_dim, head_dim_v), tiles = cfg.dims, cfg.tiles
    width, width_v = padded(head_dim), padded(head_dim_v)
    rows, columns = tiles.queries, tiles.keys
    dtype = q.dtype

    q_shared = T.alloc_shared([rows, width], dtype)
    do_shared = T.alloc_shared([rows, width_v], dtype)
    k_shared = T.alloc_shared([columns, width], dtype)
    v_shared = T.alloc_shared([columns, width_v], dtype)
    lse_tile = T.alloc_fragment([rows], "float32")
    delta_tile = T.alloc_fragment([rows], "float32")
    s = T.alloc_fragment([rows, columns], "float32")
    dp = T.alloc_fragment([rows, columns], "float32")
    ds = T.alloc_fragment([rows, columns], dtype)
    dq = T.alloc_fragment([rows, width], "float32")

    T.copy(queries.tile(q, head, query, rows, width), q_shared)
    T.copy(queries.tile(do, head, query, rows, width_v), do_shared)
    load_statistic(row_lse, lse_tile, queries, head, query)
    load_statistic(row_delta, delta_tile, queries, head, query)
    T.clear(dq)
    first, count = mask.key_tiles(query, rows, columns)
    for step in T.Pipelined(count, num_stages=tiles.stages):
        keep_producer_together()
        key = (first + step) * columns
        T.copy(keys.tile(k, kv_head, key, columns, width), k_shared)
        T.copy(keys.tile(v, kv_head, key, columns, width_v), v_shared)
        compute_p_dp(
            q_shared, k_shared, do_shared, v_shared, s, dp, lse_tile,
            mask, query, key, scale, tiles, transposed=False,
        )  # fmt: skip
        for i, j in T.Parallel(rows, columns):
            ds[i, j] = s[i, j] * (dp[i, j] - delta_tile[i])
        T.gemm(ds, k_shared, dq, policy=T.GemmWarpPolicy.FullRow)

    for i, d in T.Parallel(rows, width):
        if T.And(queries.contains(query + i), d < head_dim):
            dq_out[queries.index(head, query + i, d)] = accumulated(
                dq_out, queries.index(head, query + i, d), dq[i, d] * scale, dtype
            )


@T.macro
def zero_query_block(dq_out, cfg, queries, query, head):
    """Write zero dq of queries with no visible key; `query_block` needs at least one tile."""
    for i, d in T.Parallel(cfg.tiles.queries, cfg.dims[0]):
        if queries.contains(query + i):
            dq_out[queries.index(head, query + i, d)] = 0
