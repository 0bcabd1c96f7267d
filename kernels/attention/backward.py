"""The backward pass of one block, in pieces that the two strategies put together.

With p = exp(scale * q k^T - lse) recomputed tile by tile, and

    delta = rowsum(out * do)                    the pre-pass, [queries] float32
    dp    = do v^T
    ds    = p * (dp - delta)

the gradients are (FlashAttention-2, Dao, 2023, algorithm 2)

    dv = p^T do        dk = scale * ds^T q        dq = scale * ds k

The scale multiplies the float32 sums at the end, so that the 16-bit ds is neither shrunk into
subnormals nor multiplied element by element.

A *key block* owns a tile of keys, accumulates their dk and dv, and walks over the tiles of
queries that see them. It works on transposed tiles, s^T and dp^T [keys, queries], because the
accumulators' rows are then keys and p^T and ds^T feed the tensor cores from registers. A *query
block* owns a tile of queries, accumulates their dq, and walks over tiles of keys.

==========  ================================================================================
strategy    what runs
==========  ================================================================================
`atomic`    key blocks alone: each adds its share of dq, and the heads of a group their dk
            and dv, with float32 atomics; then a cast. Fewest operations; the order of the
            additions, and so the last bits, differ from run to run.
`split`     key blocks keep dk and dv of each query head apart, in float32, summed over the
            group afterwards; query blocks compute dq. Two products more in seven, but every
            sum has one order: the same bits every time.
==========  ================================================================================

A masked pair, and a row beyond its sequence, is selected away in p and in dp, never multiplied
away: what was read there may be huge, and its product infinite. lse is -inf in a row that sees
no key; all pairs of such a row are masked.
"""

import tilelang.language as T

from tlmatrix_kernels.attention.rows import bound
from tlmatrix_kernels.attention.softmax import LOG2_E
from tlmatrix_kernels.attention.tiles import padded

__all__ = [
    "atomic_key_block",
    "blank_key_block",
    "blank_query_block",
    "delta_block",
    "query_block",
    "split_key_block",
]


@T.macro
def delta_block(out, do, delta, queries, query, head, rows, head_dim_v):
    """The pre-pass: delta = rowsum(out * do) of `rows` queries from `query`.

    In steps of 32 columns: the compiler finds a layout for a tile of threads and elements only
    where its width is a power of two.
    """
    step = 32
    product = T.alloc_fragment([rows, step], "float32")
    total = T.alloc_fragment([rows], "float32")
    T.clear(product)
    for part in T.serial(T.ceildiv(head_dim_v, step)):
        for i, d in T.Parallel(rows, step):
            here = queries.index(head, query + i, part * step + d)
            product[i, d] += T.cast(out[here], "float32") * T.cast(do[here], "float32")
    T.reduce_sum(product, total, dim=1)
    for i in T.Parallel(rows):
        if queries.holds(query + i):
            delta[queries.statistic(head, query + i)] = total[i]


@T.macro
def load_statistic(statistic, tile, queries, head, query):
    """Load lse or delta of a tile of queries into registers; 0 beyond the sequence.

    Element by element: the copy engine wants rows that start at multiples of 16 bytes, which a
    packed sequence does not promise. And into registers: by way of shared memory the compiler
    would give the load to as many extra warps as there are, and halve the registers of each.
    """
    for j in T.Parallel(tile.shape[0]):
        tile[j] = T.if_then_else(
            queries.holds(query + j), statistic[queries.statistic(head, query + j)], 0.0
        )


@T.macro
def key_tile_scores(
    k_shared, v_shared, q_shared, do_shared, lse, delta, mask, query, key, scale, s, dp, p, ds
):
    """p^T and ds^T [keys, queries] of one tile, in float32 (s, dp) and in 16 bits (p, ds)."""
    keys, queries = s.shape
    T.clear(s)
    T.gemm(k_shared, q_shared, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
    T.clear(dp)
    T.gemm(v_shared, do_shared, dp, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
    for i, j in T.Parallel(keys, queries):
        s[i, j] = T.exp2(s[i, j] * (scale * LOG2_E) - lse[j] * LOG2_E)
    if mask.cuts(query, queries, key, keys):
        for i, j in T.Parallel(keys, queries):
            s[i, j] = T.if_then_else(mask.sees(query + j, key + i), s[i, j], 0.0)
        for i, j in T.Parallel(keys, queries):
            dp[i, j] = T.if_then_else(mask.sees(query + j, key + i), dp[i, j], 0.0)
    T.copy(s, p)
    for i, j in T.Parallel(keys, queries):
        ds[i, j] = s[i, j] * (dp[i, j] - delta[j])


@T.macro
def split_key_block(
    q, k, v, do, lse, delta, dk_parts, dv_parts,
    queries, keys, mask, key, head, groups, scale, dims, tiles,
):  # fmt: skip
    """The share of one query head in dk and dv of the keys from `key`: [groups, *k.shape].

    There must be at least one tile of queries that sees them.
    """
    queries, keys = bound(queries), bound(keys)
    mask = mask.over(queries.length, keys.length)
    head_dim, head_dim_v = dims
    width, width_v = padded(head_dim), padded(head_dim_v)
    rows, columns = tiles.queries, tiles.keys
    dtype = q.dtype

    k_shared = T.alloc_shared([columns, width], dtype)
    v_shared = T.alloc_shared([columns, width_v], dtype)
    q_shared = T.alloc_shared([rows, width], dtype)
    do_shared = T.alloc_shared([rows, width_v], dtype)
    lse_tile = T.alloc_fragment([rows], "float32")
    delta_tile = T.alloc_fragment([rows], "float32")
    s = T.alloc_fragment([columns, rows], "float32")
    dp = T.alloc_fragment([columns, rows], "float32")
    alloc_scores = T.alloc_shared if tiles.staged else T.alloc_fragment
    p = alloc_scores([columns, rows], dtype)
    ds = alloc_scores([columns, rows], dtype)
    dk = T.alloc_fragment([columns, width], "float32")
    dv = T.alloc_fragment([columns, width_v], "float32")

    T.copy(keys.tile(k, head // groups, key, columns, width), k_shared)
    T.copy(keys.tile(v, head // groups, key, columns, width_v), v_shared)
    T.clear(dk)
    T.clear(dv)
    first, count = mask.query_tiles(key, columns, rows)
    for step in T.Pipelined(count, num_stages=tiles.stages):
        query = (first + step) * rows
        T.copy(queries.tile(q, head, query, rows, width), q_shared)
        T.copy(queries.tile(do, head, query, rows, width_v), do_shared)
        load_statistic(lse, lse_tile, queries, head, query)
        load_statistic(delta, delta_tile, queries, head, query)
        key_tile_scores(
            k_shared, v_shared, q_shared, do_shared, lse_tile, delta_tile,
            mask, query, key, scale, s, dp, p, ds,
        )  # fmt: skip
        T.gemm(p, do_shared, dv, policy=T.GemmWarpPolicy.FullRow)
        T.gemm(ds, q_shared, dk, policy=T.GemmWarpPolicy.FullRow)

    for i, d in T.Parallel(columns, width):
        if T.And(keys.holds(key + i), d < head_dim):
            dk_parts[head % groups, *keys.index(head // groups, key + i, d)] = dk[i, d] * scale
    for i, d in T.Parallel(columns, width_v):
        if T.And(keys.holds(key + i), d < head_dim_v):
            dv_parts[head % groups, *keys.index(head // groups, key + i, d)] = dv[i, d]


@T.macro
def blank_key_block(dk_parts, dv_parts, keys, key, head, groups, dims, tiles):
    """Keys that no query sees have gradient 0; `split_key_block` wants at least one tile."""
    head_dim, head_dim_v = dims
    for i, d in T.Parallel(tiles.keys, head_dim):
        if keys.holds(key + i):
            dk_parts[head % groups, *keys.index(head // groups, key + i, d)] = 0.0
    for i, d in T.Parallel(tiles.keys, head_dim_v):
        if keys.holds(key + i):
            dv_parts[head % groups, *keys.index(head // groups, key + i, d)] = 0.0


@T.macro
def atomic_key_block(
    q, k, v, do, lse, delta, dq_sum, dk_sum, dv_sum,
    queries, keys, mask, key, head, groups, scale, dims, tiles,
):  # fmt: skip
    """Add one query head's dk and dv of the keys from `key`, and what they give to dq.

    There must be at least one tile of queries that sees them.
    """
    queries, keys = bound(queries), bound(keys)
    mask = mask.over(queries.length, keys.length)
    head_dim, head_dim_v = dims
    width, width_v = padded(head_dim), padded(head_dim_v)
    rows, columns = tiles.queries, tiles.keys
    dtype = q.dtype

    k_shared = T.alloc_shared([columns, width], dtype)
    v_shared = T.alloc_shared([columns, width_v], dtype)
    q_shared = T.alloc_shared([rows, width], dtype)
    do_shared = T.alloc_shared([rows, width_v], dtype)
    lse_tile = T.alloc_fragment([rows], "float32")
    delta_tile = T.alloc_fragment([rows], "float32")
    s = T.alloc_fragment([columns, rows], "float32")
    dp = T.alloc_fragment([columns, rows], "float32")
    alloc_scores = T.alloc_shared if tiles.staged else T.alloc_fragment
    p = alloc_scores([columns, rows], dtype)
    ds = alloc_scores([columns, rows], dtype)
    dk = T.alloc_fragment([columns, width], "float32")
    dv = T.alloc_fragment([columns, width_v], "float32")
    dq = T.alloc_fragment([rows, width], "float32")
    ds_shared = ds if tiles.staged else T.alloc_shared([columns, rows], dtype)

    T.copy(keys.tile(k, head // groups, key, columns, width), k_shared)
    T.copy(keys.tile(v, head // groups, key, columns, width_v), v_shared)
    T.clear(dk)
    T.clear(dv)
    first, count = mask.query_tiles(key, columns, rows)
    for step in T.Pipelined(count, num_stages=tiles.stages):
        query = (first + step) * rows
        T.copy(queries.tile(q, head, query, rows, width), q_shared)
        T.copy(queries.tile(do, head, query, rows, width_v), do_shared)
        load_statistic(lse, lse_tile, queries, head, query)
        load_statistic(delta, delta_tile, queries, head, query)
        key_tile_scores(
            k_shared, v_shared, q_shared, do_shared, lse_tile, delta_tile,
            mask, query, key, scale, s, dp, p, ds,
        )  # fmt: skip
        T.gemm(p, do_shared, dv, policy=T.GemmWarpPolicy.FullRow)
        T.gemm(ds, q_shared, dk, policy=T.GemmWarpPolicy.FullRow)
        if not tiles.staged:
            T.copy(ds, ds_shared)
        T.clear(dq)
        T.gemm(ds_shared, k_shared, dq, transpose_A=True)
        for i, d in T.Parallel(rows, width):
            if T.And(queries.holds(query + i), d < head_dim):
                T.atomic_add(dq_sum[queries.index(head, query + i, d)], dq[i, d] * scale)

    for i, d in T.Parallel(columns, width):
        if T.And(keys.holds(key + i), d < head_dim):
            T.atomic_add(dk_sum[keys.index(head // groups, key + i, d)], dk[i, d] * scale)
    for i, d in T.Parallel(columns, width_v):
        if T.And(keys.holds(key + i), d < head_dim_v):
            T.atomic_add(dv_sum[keys.index(head // groups, key + i, d)], dv[i, d])


@T.macro
def query_block(
    q, k, v, do, lse, delta, dq_out,
    queries, keys, mask, query, head, kv_head, scale, dims, tiles,
):  # fmt: skip
    """Dq of the queries from `query` on, stored once, in the dtype of q.

    There must be at least one tile of keys to see.
    """
    queries, keys = bound(queries), bound(keys)
    mask = mask.over(queries.length, keys.length)
    head_dim, head_dim_v = dims
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
    load_statistic(lse, lse_tile, queries, head, query)
    load_statistic(delta, delta_tile, queries, head, query)
    T.clear(dq)
    first, count = mask.key_tiles(query, rows, columns)
    for step in T.Pipelined(count, num_stages=tiles.stages):
        key = (first + step) * columns
        T.copy(keys.tile(k, kv_head, key, columns, width), k_shared)
        T.copy(keys.tile(v, kv_head, key, columns, width_v), v_shared)
        T.clear(s)
        T.gemm(q_shared, k_shared, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
        T.clear(dp)
        T.gemm(do_shared, v_shared, dp, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
        for i, j in T.Parallel(rows, columns):
            s[i, j] = T.exp2(s[i, j] * (scale * LOG2_E) - lse_tile[i] * LOG2_E)
        if mask.cuts(query, rows, key, columns):
            for i, j in T.Parallel(rows, columns):
                s[i, j] = T.if_then_else(mask.sees(query + i, key + j), s[i, j], 0.0)
            for i, j in T.Parallel(rows, columns):
                dp[i, j] = T.if_then_else(mask.sees(query + i, key + j), dp[i, j], 0.0)
        for i, j in T.Parallel(rows, columns):
            ds[i, j] = s[i, j] * (dp[i, j] - delta_tile[i])
        T.gemm(ds, k_shared, dq, policy=T.GemmWarpPolicy.FullRow)

    for i, d in T.Parallel(rows, width):
        if T.And(queries.holds(query + i), d < head_dim):
            dq_out[queries.index(head, query + i, d)] = dq[i, d] * scale


@T.macro
def blank_query_block(dq_out, queries, query, head, head_dim, tiles):
    """Queries that see no key have gradient 0; `query_block` wants at least one tile."""
    for i, d in T.Parallel(tiles.queries, head_dim):
        if queries.holds(query + i):
            dq_out[queries.index(head, query + i, d)] = 0
