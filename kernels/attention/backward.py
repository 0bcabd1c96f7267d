"""The backward pass of one block, in pieces that the strategies put together.

With p = exp(scale * q k^T - lse) recomputed tile by tile, and

    delta = rowsum(out * do)                    [queries] float32
    dp    = do v^T
    ds    = p * (dp - delta)

the gradients are (FlashAttention-2, Dao, 2023, algorithm 2)

    dv = p^T do        dk = scale * ds^T q        dq = scale * ds k

The scale multiplies the float32 sums at the end, so that the 16-bit ds is neither shrunk into
subnormals nor multiplied element by element.

The *pre-pass* computes delta, and writes it and lse * log2(e) to padded rows (see `rows`). A
*key block* owns a tile of keys, accumulates their dk and dv, and walks over the tiles of queries
that see them. It works on transposed tiles, s^T and dp^T [keys, queries], because the
accumulators' rows are then keys and p^T and ds^T feed the tensor cores from registers. A *query
block* owns a tile of queries, accumulates their dq, and walks over tiles of keys.

=========== ===============================================================================
strategy    what runs
=========== ===============================================================================
`atomic`    a key block for each query head: it adds its share of dq, and the heads of a group
            their dk and dv, with float32 atomics; then a cast. Fewest products (5); the order
            of the additions, and so the last bits, differ from run to run.
`split`     a key block for each query head keeps dk and dv apart, in float32, summed over the
            group afterwards; query blocks compute dq. Two products more, but every sum has
            one order: the same bits every time.
`grouped`   a key block for each kv head walks over all query heads of the group, one after the
            other, and stores dk and dv once; query blocks compute dq. As `split`, with nothing
            left to sum, but with fewer and longer blocks: for much work, not for little.
`reordered` key blocks as in `grouped`, so with one order of the sums dk and dv, which also add
            their share of dq, with float32 atomics of four elements each, to a sum in an order
            of its own (see `reordered`); then a pass that restores the order of q. 5 products;
            of dq the last bits differ from run to run.
=========== ===============================================================================

A masked pair, and a row beyond its sequence, is selected away in p and in dp, never multiplied
away: what was read there may be huge, and its product infinite. lse is -inf in a row that sees
no key; all pairs of such a row are masked.
"""

from dataclasses import dataclass

import tilelang.language as T

from tlmatrix_kernels.attention.reordered import add_tile
from tlmatrix_kernels.attention.rows import bound
from tlmatrix_kernels.attention.softmax import LOG2_E
from tlmatrix_kernels.attention.tiles import padded

__all__ = [
    "KeyGradients",
    "blank_key_block",
    "blank_query_block",
    "key_block",
    "load_statistic",
    "prepare_block",
    "query_block",
]


@T.macro
def prepare_block(out, do, lse, row_lse, row_delta, queries, query, head, rows, head_dim_v):
    """The pre-pass of `rows` queries from `query`: padded rows beyond the sequence become 0.

    The columns are added in steps of 32: the compiler finds a layout for a tile of threads and
    elements only where its width is a power of two.
    """
    step = 32
    product = T.alloc_fragment([rows, step], "float32")
    total = T.alloc_fragment([rows], "float32")
    T.clear(product)
    for part in T.serial(T.ceildiv(head_dim_v, step)):
        for i, d in T.Parallel(rows, step):
            if T.And(queries.holds(query + i), part * step + d < head_dim_v):
                here = queries.index(head, query + i, part * step + d)
                product[i, d] += T.cast(out[here], "float32") * T.cast(do[here], "float32")
    T.reduce_sum(product, total, dim=1)
    for i in T.Parallel(rows):
        row_delta[queries.padded_statistic(head, query + i)] = T.if_then_else(
            queries.holds(query + i), total[i], 0.0
        )
    for i in T.Parallel(rows):
        row_lse[queries.padded_statistic(head, query + i)] = T.if_then_else(
            queries.holds(query + i), lse[queries.statistic(head, query + i)] * LOG2_E, 0.0
        )


@dataclass(frozen=True)
class KeyGradients:
    """Where a key block's results go.

    dk and dv are [parts, ...], of which the block writes `part`, and `heads` query heads
    contribute to it; without a `part` they are float32 sums like k and v. `dq` is a float32 sum
    too, if there is one: like q, or `reordered`. All sums start as zeros.
    """

    dk: object
    dv: object
    dq: object = None
    reordered: bool = False
    part: object = None
    heads: int = 1


@T.macro
def store_key_gradient(gradients, target, index, value):
    """One element of dk or dv; `index` is that of a k-like tensor."""
    if gradients.part is None:
        T.atomic_add(target[index], value)
    else:
        target[gradients.part, *index] = value


@T.macro
def add_queries(dq_sum, tile, tile_shared, queries, head, query, head_dim, scale):
    """Add a tile of dq, in registers, to a sum like q; whole ones by the copy engine."""
    rows, width = tile.shape
    for i, d in T.Parallel(rows, width):
        tile[i, d] *= scale
    if tile_shared is not None and queries.fits(query, rows):
        T.copy(tile, tile_shared)
        T.atomic_add(queries.tile(dq_sum, head, query, rows, width), tile_shared, use_tma=True)
    else:
        for i, d in T.Parallel(rows, width):
            if T.And(queries.holds(query + i), d < head_dim):
                T.atomic_add(dq_sum[queries.index(head, query + i, d)], tile[i, d])


def pair_seen(mask, query, key, i, j, transposed):
    """Whether the pair at i, j of a tile [queries, keys], or its transpose, is not masked."""
    return mask.sees(query + j, key + i) if transposed else mask.sees(query + i, key + j)


@T.macro
def weigh(a, b, a_v, b_v, s, dp, lse, mask, query, key, scale, tiles, transposed):
    """Tiles p (in `s`) and dp, 0 where a pair is masked: `a b^T` are scores, `a_v b_v^T` is dp.

    They are [queries, keys] from `query` and `key` on, or [keys, queries] when transposed; `lse`
    [queries] is in powers of two.
    """
    rows, columns = tiles.queries, tiles.keys
    height, width = (columns, rows) if transposed else (rows, columns)
    T.gemm(a, b, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
    T.gemm(a_v, b_v, dp, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
    for i, j in T.Parallel(height, width):
        s[i, j] = T.exp2(s[i, j] * (scale * LOG2_E) - lse[j if transposed else i])
    if mask.cuts(query, rows, key, columns):
        for i, j in T.Parallel(height, width):
            s[i, j] = T.if_then_else(pair_seen(mask, query, key, i, j, transposed), s[i, j], 0.0)
        for i, j in T.Parallel(height, width):
            dp[i, j] = T.if_then_else(pair_seen(mask, query, key, i, j, transposed), dp[i, j], 0.0)


@T.macro
def key_block(
    q, k, v, do, row_lse, row_delta, gradients,
    queries, keys, mask, key, head, kv_head, scale, dims, tiles,
):  # fmt: skip
    """Gradients dk and dv of the keys from `key`, from the query heads that begin at `head`.

    `gradients` says what becomes of them, and how many heads there are. There must be at least
    one tile of queries that sees the keys.
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
    lse_shared = T.alloc_shared([rows], "float32")
    delta_shared = T.alloc_shared([rows], "float32")
    s = T.alloc_fragment([columns, rows], "float32")
    dp = T.alloc_fragment([columns, rows], "float32")
    alloc_scores = T.alloc_shared if tiles.staged else T.alloc_fragment
    p = alloc_scores([columns, rows], dtype)
    ds = alloc_scores([columns, rows], dtype)
    dk = T.alloc_fragment([columns, width], "float32")
    dv = T.alloc_fragment([columns, width_v], "float32")
    if gradients.dq is not None:
        dq = T.alloc_fragment([rows, width], "float32")
        reduces = tiles.reduces and not gradients.reordered
        dq_shared = T.alloc_shared([rows, width], "float32") if reduces else None
        ds_shared = ds if tiles.staged else T.alloc_shared([columns, rows], dtype)

    T.copy(keys.tile(k, kv_head, key, columns, width), k_shared)
    T.copy(keys.tile(v, kv_head, key, columns, width_v), v_shared)
    T.clear(dk)
    T.clear(dv)
    first, count = mask.query_tiles(key, columns, rows)
    for step in T.Pipelined(count * gradients.heads, num_stages=tiles.stages):
        # (Truncating: with a floor in every index the compiler takes twice as long.)
        query = (first + (T.truncmod(step, count) if gradients.heads > 1 else step)) * rows
        here = head + (T.truncdiv(step, count) if gradients.heads > 1 else 0)
        T.copy(queries.tile(q, here, query, rows, width), q_shared)
        T.copy(queries.padded_tile(row_lse, here, query, rows), lse_shared)
        T.copy(queries.tile(do, here, query, rows, width_v), do_shared)
        T.copy(queries.padded_tile(row_delta, here, query, rows), delta_shared)

        # p^T and ds^T [keys, queries], in float32 (s, dp) and in 16 bits (p, ds)
        weigh(
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
            if gradients.reordered:
                add_tile(gradients.dq, dq, queries, here, query)
            else:
                add_queries(gradients.dq, dq, dq_shared, queries, here, query, head_dim, scale)

    for i, d in T.Parallel(columns, width):
        if T.And(keys.holds(key + i), d < head_dim):
            here = keys.index(kv_head, key + i, d)
            store_key_gradient(gradients, gradients.dk, here, dk[i, d] * scale)
    for i, d in T.Parallel(columns, width_v):
        if T.And(keys.holds(key + i), d < head_dim_v):
            here = keys.index(kv_head, key + i, d)
            store_key_gradient(gradients, gradients.dv, here, dv[i, d])


@T.macro
def blank_key_block(gradients, keys, key, kv_head, dims, tiles):
    """Keys that no query sees have gradient 0; `key_block` wants at least one tile."""
    head_dim, head_dim_v = dims
    for i, d in T.Parallel(tiles.keys, head_dim):
        if keys.holds(key + i):
            gradients.dk[gradients.part, *keys.index(kv_head, key + i, d)] = 0.0
    for i, d in T.Parallel(tiles.keys, head_dim_v):
        if keys.holds(key + i):
            gradients.dv[gradients.part, *keys.index(kv_head, key + i, d)] = 0.0


@T.macro
def load_statistic(statistic, tile, queries, head, query):
    """Load lse or delta of a tile of queries into registers; 0 beyond the sequence.

    By way of shared memory the compiler would give the load, which is done once, to extra warps.
    """
    for j in T.Parallel(tile.shape[0]):
        tile[j] = T.if_then_else(
            queries.holds(query + j), statistic[queries.padded_statistic(head, query + j)], 0.0
        )


def with_earlier(dq_out, index, value, dtype):
    """What is stored as an element of dq: a float32 sum of several kernels keeps what it has."""
    return value if dq_out.dtype == dtype else dq_out[index] + value


@T.macro
def query_block(
    q, k, v, do, row_lse, row_delta, dq_out,
    queries, keys, mask, query, head, kv_head, scale, dims, tiles,
):  # fmt: skip
    """Dq of the queries from `query` on, stored once, in the dtype of q; or added to float32.

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
    load_statistic(row_lse, lse_tile, queries, head, query)
    load_statistic(row_delta, delta_tile, queries, head, query)
    T.clear(dq)
    first, count = mask.key_tiles(query, rows, columns)
    for step in T.Pipelined(count, num_stages=tiles.stages):
        key = (first + step) * columns
        T.copy(keys.tile(k, kv_head, key, columns, width), k_shared)
        T.copy(keys.tile(v, kv_head, key, columns, width_v), v_shared)
        weigh(
            q_shared, k_shared, do_shared, v_shared, s, dp, lse_tile,
            mask, query, key, scale, tiles, transposed=False,
        )  # fmt: skip
        for i, j in T.Parallel(rows, columns):
            ds[i, j] = s[i, j] * (dp[i, j] - delta_tile[i])
        T.gemm(ds, k_shared, dq, policy=T.GemmWarpPolicy.FullRow)

    for i, d in T.Parallel(rows, width):
        if T.And(queries.holds(query + i), d < head_dim):
            dq_out[queries.index(head, query + i, d)] = with_earlier(
                dq_out, queries.index(head, query + i, d), dq[i, d] * scale, dtype
            )


@T.macro
def blank_query_block(dq_out, queries, query, head, head_dim, tiles):
    """Queries that see no key have gradient 0; `query_block` wants at least one tile."""
    for i, d in T.Parallel(tiles.queries, head_dim):
        if queries.holds(query + i):
            dq_out[queries.index(head, query + i, d)] = 0
