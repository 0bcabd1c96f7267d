"""The forward pass of one block: attention of a tile of queries, softmax online.

The algorithm of FlashAttention-2 (Dao, 2023, https://arxiv.org/abs/2307.08691), algorithm 1. A
block owns one tile of ``queries`` query rows of one head of one sequence, keeps it in shared
memory, and walks over the tiles of keys that the mask lets it see. In registers (fragments,
float32):

========  ======================  ===========================================================
s         [queries, keys]         scores q k^T, then the weights p = exp(scale * s - shift)
m         [queries]               running maximum of the unscaled scores a row has seen
l         [queries]               running sum of the row's weights
acc       [queries, head_dim_v]   running sum of weights times values
========  ======================  ===========================================================

At the end out = acc / l and lse = scale * m + ln(l), the logarithm of the row's softmax
denominator (natural, float32), which the backward pass needs and nothing else.

How m and l grow with each tile, and what becomes of a row that sees no key, is in `softmax`.
"""

import tilelang.language as T

from tlmatrix_kernels.attention.rows import bound
from tlmatrix_kernels.attention.softmax import (
    LOG2_E,
    absorb,
    hide,
    resume,
    start,
    store_lse,
    weigh,
)
from tlmatrix_kernels.attention.tiles import padded

__all__ = ["blank_block", "forward_block"]


@T.macro
def forward_block(
    q, k, v, origin, out, lse, queries, keys, mask, query, head, kv_head, scale, dims, tiles
):
    """Attention of the queries from `query` on: writes their rows of out and lse.

    `origin` is how the rows start, `queries` and `keys` are the `Rows` of the sequence, `dims` is
    (head_dim, head_dim_v). There must be at least one tile of keys to see. Where `out` is float32
    another kernel goes on from it, with other keys.
    """
    dtype = q.dtype
    queries, keys = bound(queries), bound(keys)
    mask = mask.over(queries.length, keys.length)
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
    if origin.before is None:
        T.fill(acc, 0)
        start(m, l, origin)
    else:
        resume(acc, m, l, origin.before, queries, query, head, scale, head_dim_v)

    first, count = mask.key_tiles(query, rows, columns)
    for step in T.Pipelined(count, num_stages=tiles.stages):
        key = (first + step) * columns
        place = keys.place(key)
        T.copy(keys.tile(k, kv_head, place, columns, width), k_shared)
        T.clear(s)
        T.gemm(q_shared, k_shared, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
        hide(s, mask.at(key), query, key)
        absorb(s, m, m_before, shift, decay, added, l, scale_log2)
        for i, d in T.Parallel(rows, width_v):
            acc[i, d] *= decay[i]

        T.copy(s, p)
        T.copy(keys.tile(v, kv_head, place, columns, width_v), v_shared)
        T.gemm(p, v_shared, acc, policy=T.GemmWarpPolicy.FullRow)

    weigh(acc, l)
    if out.dtype == dtype:
        T.copy(acc, out_shared)
        if queries.fits(query, rows):
            T.copy(out_shared, queries.tile(out, head, query, rows, width_v))
        else:
            for i, d in T.Parallel(rows, head_dim_v):
                if queries.holds(query + i):
                    out[queries.index(head, query + i, d)] = out_shared[i, d]
    elif queries.fits(query, rows):  # (in shared memory there is no room for float32)
        T.copy(acc, queries.tile(out, head, query, rows, width_v))
    else:
        for i, d in T.Parallel(rows, width_v):
            if T.And(queries.holds(query + i), d < head_dim_v):
                out[queries.index(head, query + i, d)] = acc[i, d]
    store_lse(lse, m, l, origin, queries, query, head, scale)


@T.macro
def blank_block(origin, out, lse, queries, query, head, head_dim_v, tiles):
    """The result of queries that see no key at all: out 0, lse -inf or their sink.

    Such a block must not enter `forward_block`: with nothing to wait for q in a loop that never
    runs, it would store over, or return before, the copy that is still on its way.
    """
    for i, d in T.Parallel(tiles.queries, head_dim_v):
        if queries.holds(query + i):
            out[queries.index(head, query + i, d)] = 0
    for i in T.Parallel(tiles.queries):
        if queries.holds(query + i):
            lse[queries.statistic(head, query + i)] = origin.lse
