"""The forward pass of one thread block: attention of a tile of queries with online softmax.

FlashAttention-2 (Dao, 2023, https://arxiv.org/abs/2307.08691), algorithm 1. A block owns a tile of
``queries`` query rows of one head of one sequence, keeps q in shared memory, and iterates over the
tiles of keys that the mask leaves visible. Fragments, in float32:

========  ======================  ===========================================================
s         [queries, keys]         scores q k^T, then the weights p = exp(scale * s - shift)
m         [queries]               running row maximum of the unscaled scores
l         [queries]               running row sum of the weights
acc       [queries, head_dim_v]   running sum of weights times values
========  ======================  ===========================================================

At the end out = acc / l and lse = scale * m + ln(l), the natural logarithm of the softmax
denominator of a row, in float32, which only the backward pass needs.

`softmax` has the update of m and l, and the treatment of rows with no visible key.
"""

import tilelang.language as T

from tlmatrix_kernels.attention.rows import bind_rows
from tlmatrix_kernels.attention.softmax import (
    LOG2_E,
    apply_mask,
    init_state,
    load_state,
    normalize,
    online_softmax,
    store_lse,
)
from tlmatrix_kernels.attention.tiles import padded


@T.macro
def forward_block(
    q, k, v, initial, out, lse, queries, keys, mask, query, head, kv_head, scale, dims, tiles
):
    """Compute out and lse of the tile of queries from `query`.

    `initial` is the initial softmax state, `queries` and `keys` are the `Rows` of the sequence,
    `dims` is (head_dim, head_dim_v). At least one tile of keys must be visible. If `out` is
    float32, a later kernel continues with other keys.
    """
    dtype = q.dtype
    queries, keys = bind_rows(queries), bind_rows(keys)
    mask = mask.with_lengths(queries.length, keys.length)
    head_dim, head_dim_v = dims
    width, width_v = padded(head_dim), padded(head_dim_v)
    rows, columns = tiles.queries, tiles.keys

    q_shared = T.alloc_shared([rows, width], dtype)
    k_shared = T.alloc_shared([columns, width], dtype)
    v_shared = T.alloc_shared([columns, width_v], dtype)
    if out.dtype == dtype:
        out_shared = T.alloc_shared([rows, width_v], dtype)
    s = T.alloc_fragment([rows, columns], "float32")
    p = T.alloc_fragment([rows, columns], dtype)
    acc = T.alloc_fragment([rows, width_v], "float32")
    m = T.alloc_fragment([rows], "float32")
    m_before = T.alloc_fragment([rows], "float32")
    shift = T.alloc_fragment([rows], "float32")
    decay = T.alloc_fragment([rows], "float32")
    added = T.alloc_fragment([rows], "float32")
    l = T.alloc_fragment([rows], "float32")

    scale_log2 = scale * LOG2_E
    T.copy(queries.tile(q, head, query, rows, width), q_shared)
    if initial.before is None:
        T.fill(acc, 0)
        init_state(m, l, initial)
    else:
        load_state(acc, m, l, initial.before, queries, query, head, scale, head_dim_v)

    first, count = mask.key_tiles(query, rows, columns)
    for step in T.Pipelined(count, num_stages=tiles.stages):
        key = (first + step) * columns
        row = keys.load_row(key)
        T.copy(keys.tile(k, kv_head, row, columns, width), k_shared)
        T.clear(s)
        T.gemm(q_shared, k_shared, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
        apply_mask(s, mask.for_key_tile(key), query, key)
        online_softmax(s, m, m_before, shift, decay, added, l, scale_log2)
        for i, d in T.Parallel(rows, width_v):
            acc[i, d] *= decay[i]

        T.copy(s, p)
        T.copy(keys.tile(v, kv_head, row, columns, width_v), v_shared)
        T.gemm(p, v_shared, acc, policy=T.GemmWarpPolicy.FullRow)

    normalize(acc, l)
    if out.dtype == dtype:
        T.copy(acc, out_shared)
        if queries.can_store_tile(query, rows):
            T.copy(out_shared, queries.tile(out, head, query, rows, width_v))
        else:
            for i, d in T.Parallel(rows, head_dim_v):
                if queries.contains(query + i):
                    out[queries.index(head, query + i, d)] = out_shared[i, d]
    elif queries.can_store_tile(query, rows):  # a float32 tile does not fit in shared memory
        T.copy(acc, queries.tile(out, head, query, rows, width_v))
    else:
        for i, d in T.Parallel(rows, width_v):
            if T.And(queries.contains(query + i), d < head_dim_v):
                out[queries.index(head, query + i, d)] = acc[i, d]
    store_lse(lse, m, l, initial, queries, query, head, scale)


@T.macro
def masked_block(initial, out, lse, queries, query, head, head_dim_v, tiles):
    """Write out = 0 and lse = -inf, or the sink, of queries with no visible key.

    These blocks must not run `forward_block`: TileLang waits for the asynchronous copy of q inside
    the key loop; without an iteration the block would overwrite the tile, or return, before the
    copy completes.
    """
    rows = T.alloc_var("int32", init=queries.length - query)  # see `apply_mask`
    for i, d in T.Parallel(tiles.queries, head_dim_v):
        if i < rows:
            out[queries.index(head, query + i, d)] = 0
    for i in T.Parallel(tiles.queries):
        if i < rows:
            lse[queries.statistic(head, query + i)] = initial.lse
