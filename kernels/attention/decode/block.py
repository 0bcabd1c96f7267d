"""What a block of a decode kernel computes: some keys of a sequence against one query position.

All query heads of a kv head attend to the same keys, so they are the rows of one tile, and each
key is read from memory once for all of them. The rest is the forward pass of `attention.forward`
(online softmax, see `attention.softmax`) over the block's share of the keys:

========  ======================  ===========================================================
s         [rows, keys]            scores q k^T, then the weights p
m, l      [rows]                  running maximum and sum of a head
acc       [rows, head_dim_v]      running sum of weights times values
========  ======================  ===========================================================

A block leaves out = acc / l and lse of its share: those of the whole where there is one share,
else a part for `combine` (Dao, Haziza, Massa and Sizov, Flash-Decoding, 2023,
https://crfm.stanford.edu/2023/10/12/flashdecoding.html).
"""

import tilelang.language as T

from tlmatrix_kernels.attention.decode.keys import Span, load
from tlmatrix_kernels.attention.softmax import LOG2_E, absorb, nothing_seen, start, weigh
from tlmatrix_kernels.attention.tiles import padded

__all__ = ["attend", "blank"]


@T.macro
def attend(q, k, v, out, lse, keys, span, split, splits, kv_head, head, heads, scale, dims, tiles):
    """Attention of the `heads` query heads from `head` on to the share `split` of `splits`.

    `keys` says where the keys lie and `span` which are seen. The share must have a tile.
    """
    dtype = q.dtype
    sequence = keys.sequence
    # Held in variables here, under the condition that there is work: see `attention.rows.bound`.
    length = span.length
    span = Span(length, span.window, span.columns)
    head_dim, head_dim_v = dims
    width, width_v = padded(head_dim), padded(head_dim_v)
    rows, columns = tiles.rows, tiles.keys

    q_shared = T.alloc_shared([rows, width], dtype)
    k_shared = T.alloc_shared([columns, width], dtype)
    v_shared = T.alloc_shared([columns, width_v], dtype)
    s = T.alloc_fragment([rows, columns], "float32")
    p = T.alloc_fragment([rows, columns], dtype)
    acc = T.alloc_fragment([rows, width_v], "float32")
    m = T.alloc_fragment([rows], "float32")
    m_before = T.alloc_fragment([rows], "float32")
    shift = T.alloc_fragment([rows], "float32")
    decay = T.alloc_fragment([rows], "float32")
    added = T.alloc_fragment([rows], "float32")
    l = T.alloc_fragment([rows], "float32")

    # Rows past the group are other heads, or zeros: they are computed and not stored.
    T.copy(q[sequence, head : head + rows, 0:width], q_shared)
    T.fill(acc, 0)
    start(m, l, nothing_seen(head, scale))

    first = T.alloc_var("int32")
    count = T.alloc_var("int32")
    first = span.share(split, splits)[0]
    count = span.share(split, splits)[1]
    for step in T.Pipelined(count, num_stages=tiles.stages):
        key = (first + step) * columns
        load(keys, k, k_shared, kv_head, key, span)
        T.clear(s)
        T.gemm(q_shared, k_shared, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
        if span.cuts(key):
            for i, j in T.Parallel(rows, columns):
                s[i, j] = T.if_then_else(span.sees(key + j), s[i, j], -T.infinity("float32"))
        absorb(s, m, m_before, shift, decay, added, l, scale * LOG2_E)
        for i, d in T.Parallel(rows, width_v):
            acc[i, d] *= decay[i]

        T.copy(s, p)
        load(keys, v, v_shared, kv_head, key, span)
        if span.cuts(key):
            for j, d in T.Parallel(columns, width_v):
                v_shared[j, d] = T.if_then_else(
                    span.sees(key + j), v_shared[j, d], T.cast(0, dtype)
                )
        T.gemm(p, v_shared, acc, policy=T.GemmWarpPolicy.FullRow)

    weigh(acc, l)
    for i, d in T.Parallel(rows, width_v):
        if T.And(i < heads, d < head_dim_v):
            out[split, sequence, head + i, d] = acc[i, d]
    for i in T.Parallel(rows):
        if i < heads:
            lse[split, sequence, head + i] = T.if_then_else(
                l[i] == 0.0, -T.infinity("float32"), m[i] * scale + T.log(l[i])
            )


@T.macro
def blank(out, lse, sequence, split, head, heads, dims, tiles):
    """What a share without keys leaves: out 0 and lse -inf."""
    for i, d in T.Parallel(tiles.rows, padded(dims[1])):
        if T.And(i < heads, d < dims[1]):
            out[split, sequence, head + i, d] = 0
    for i in T.Parallel(tiles.rows):
        if i < heads:
            lse[split, sequence, head + i] = -T.infinity("float32")
