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

from tlmatrix_kernels.attention.rows import bind_block
from tlmatrix_kernels.attention.softmax import (
    LOG2_E,
    alloc_state,
    apply_mask,
    init_state,
    load_state,
    normalize,
    online_softmax,
    store_lse,
)
from tlmatrix_kernels.attention.tiles import padded
from tlmatrix_kernels.pipeline import keep_producer_together


@T.macro
def forward_block(
    q, k, v, initial_of, out, lse, scale, cfg, queries, keys, mask, query, head, kv_head
):
    """Compute out and lse of the tile of queries from `query`.

    `initial_of(head, scale)` is the initial softmax state, `cfg` a `launch.Config`; `queries` and
    `keys` are the `Rows` of the sequence. At least one tile of keys must be visible. If `out` is
    float32, a later kernel continues with other keys.
    """
    dtype = q.dtype
    initial = initial_of(head, scale)
    queries, keys, mask = bind_block(queries, keys, mask)
    (head_dim, head_dim_v), tiles = cfg.dims, cfg.tiles
    width, width_v = padded(head_dim), padded(head_dim_v)
    rows, columns = tiles.queries, tiles.keys

    q_shared = T.alloc_shared([rows, width], dtype)
    k_shared = T.alloc_shared([columns, width], dtype)
    v_shared = T.alloc_shared([columns, width_v], dtype)
    if out.dtype == dtype:
        out_shared = T.alloc_shared([rows, width_v], dtype)
    state = alloc_state(rows, columns, width_v, dtype)
    s, p, acc, m, l = state.s, state.p, state.acc, state.m, state.l

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
        keep_producer_together()
        T.copy(keys.tile(k, kv_head, row, columns, width), k_shared)
        T.clear(s)
        T.gemm(q_shared, k_shared, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
        apply_mask(s, mask.for_key_tile(key), query, key)
        online_softmax(state, scale_log2)
        for i, d in T.Parallel(rows, width_v):
            acc[i, d] *= state.decay[i]

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
def masked_block(initial_of, out, lse, scale, cfg, queries, query, head):
    """Write out = 0 and lse = -inf, or the sink, of queries with no visible key.

    These blocks must not run `forward_block`: TileLang waits for the asynchronous copy of q inside
    the key loop; without an iteration the block would overwrite the tile, or return, before the
    copy completes.
    """
    rows = T.alloc_var("int32", init=queries.length - query)  # see `apply_mask`
    for i, d in T.Parallel(cfg.tiles.queries, cfg.dims[1]):
        if i < rows:
            out[queries.index(head, query + i, d)] = 0
    for i in T.Parallel(cfg.tiles.queries):
        if i < rows:
            lse[queries.statistic(head, query + i)] = initial_of(head, scale).lse
