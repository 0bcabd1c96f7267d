"""One thread block of a decode kernel: one query against one split of the keys of a sequence.

All query heads of a kv head attend to the same keys, so they are the rows of one tile and each key
is loaded once for all of them. Otherwise it is the forward pass of `attention.forward` (online
softmax, see `attention.softmax`) over the keys of the split. Fragments:

========  ======================  ===========================================================
s         [rows, keys]            scores q k^T, then the weights p
m, l      [rows]                  running maximum and sum of a head
acc       [rows, head_dim_v]      running sum of weights times values
========  ======================  ===========================================================

The block writes out = acc / l and lse of its split: the result if there is one split, else a part
for `combine` (Dao, Haziza, Massa and Sizov, Flash-Decoding, 2023,
https://crfm.stanford.edu/2023/10/12/flashdecoding.html).
"""

import tilelang.language as T

from tlmatrix_kernels.attention.decode.keys import (
    Span,
    copy_pages,
    load,
    load_page_indices,
    pages_per_tile,
    spans_pages,
)
from tlmatrix_kernels.attention.softmax import (
    LOG2_E,
    alloc_state,
    init_state,
    no_sink,
    normalize,
    online_softmax,
)
from tlmatrix_kernels.attention.tiles import padded
from tlmatrix_kernels.pipeline import keep_producer_together


@T.macro
def _softmax_step(state, key, span, scale):
    """Mask a tile of scores, replace it by weights, and update m, l and acc."""
    s, acc = state.s, state.acc
    if span.needs_mask(key):
        for i, j in T.Parallel(*s.shape):
            s[i, j] = T.if_then_else(span.visible(key + j), s[i, j], -T.infinity("float32"))
    online_softmax(state, scale * LOG2_E)
    for i, d in T.Parallel(*acc.shape):
        acc[i, d] *= state.decay[i]
    T.copy(s, state.p)


@T.macro
def _pipelined_loop(q_shared, k, v, keys, span, kv_head, first, count, scale, state, tiles):
    """Iterate over the tiles from `first`, with TileLang's software pipeline."""
    dtype, columns = q_shared.dtype, tiles.keys
    k_shared = T.alloc_shared([columns, q_shared.shape[1]], dtype)
    v_shared = T.alloc_shared([columns, state.acc.shape[1]], dtype)
    s, p, acc = state.s, state.p, state.acc
    for step in T.Pipelined(count, num_stages=tiles.stages):
        keep_producer_together()
        key = (first + step) * columns
        load(keys, k, k_shared, kv_head, key)
        T.clear(s)
        T.gemm(q_shared, k_shared, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
        _softmax_step(state, key, span, scale)
        load(keys, v, v_shared, kv_head, key)
        if span.needs_mask(key):
            for j, d in T.Parallel(*v_shared.shape):
                v_shared[j, d] = T.if_then_else(
                    span.visible(key + j), v_shared[j, d], T.cast(0, dtype)
                )
        T.gemm(p, v_shared, acc, policy=T.GemmWarpPolicy.FullRow)


@T.macro
def _paged_loop(q_shared, k, v, keys, span, kv_head, first, count, scale, state, tiles):
    """Iterate over tiles that span several pages, loaded `stages` - 1 tiles ahead by all threads.

    `cp.async.wait_group` counts the groups committed since, so empty groups are committed if there
    is no tile left to load.
    """
    dtype, columns, stages = q_shared.dtype, tiles.keys, tiles.stages
    k_shared = T.alloc_shared([stages, columns, q_shared.shape[1]], dtype)
    v_shared = T.alloc_shared([stages, columns, state.acc.shape[1]], dtype)
    pages = pages_per_tile(keys, columns)
    entries = T.alloc_local([pages], "int32")
    s, p, acc = state.s, state.p, state.acc
    load_page_indices(keys, entries, first, columns, span)
    for step in T.serial(1 - stages, count):
        # The page indices of a tile are loaded one iteration before its copies start.
        ahead = step + (stages - 1)
        if ahead < count:
            copy_pages(keys, entries, k, k_shared, T.truncmod(ahead, stages), kv_head)
            copy_pages(keys, entries, v, v_shared, T.truncmod(ahead, stages), kv_head)
            load_page_indices(keys, entries, first + ahead + 1, columns, span)
        else:
            for _ in T.unroll(2 * pages):
                T.ptx_commit_group()
        if step >= 0:
            key = (first + step) * columns
            stage = T.truncmod(step, stages)
            T.ptx_wait_group((stages - 1) * 2 * pages)
            T.sync_threads()
            T.clear(s)
            T.gemm(
                q_shared, k_shared[stage, :, :], s,
                transpose_B=True, policy=T.GemmWarpPolicy.FullRow,
            )  # fmt: skip
            _softmax_step(state, key, span, scale)
            if span.needs_mask(key):
                for j, d in T.Parallel(columns, acc.shape[1]):
                    v_shared[stage, j, d] = T.if_then_else(
                        span.visible(key + j), v_shared[stage, j, d], T.cast(0, dtype)
                    )
            T.gemm(p, v_shared[stage, :, :], acc, policy=T.GemmWarpPolicy.FullRow)
            # The next copy overwrites this stage.
            T.sync_threads()


@T.macro
def decode_block(
    q, k, v, out, lse, keys, span, split, splits, kv_head, head, heads, scale, dims, tiles
):
    """Attention of `heads` query heads from `head` to the keys of split `split` of `splits`.

    `keys` is their memory layout and `span` the visible range. The split must have at least one
    tile.
    """
    dtype = q.dtype
    sequence = keys.sequence
    # A kernel variable inside the condition that there is work: see `attention.rows.bind_rows`.
    length = span.length
    span = Span(length, span.window, span.columns)
    head_dim, head_dim_v = dims
    width, width_v = padded(head_dim), padded(head_dim_v)
    rows, columns = tiles.rows, tiles.keys

    q_shared = T.alloc_shared([rows, width], dtype)
    state = alloc_state(rows, columns, width_v, dtype)
    acc, m, l = state.acc, state.m, state.l

    # Rows past the group are other heads or zeros; they are computed but not stored.
    T.copy(q[sequence, head : head + rows, 0:width], q_shared)
    T.fill(acc, 0)
    init_state(m, l, no_sink(head, scale))

    first = T.alloc_var("int32")
    count = T.alloc_var("int32")
    first = span.tile_range(split, splits)[0]
    count = span.tile_range(split, splits)[1]
    if spans_pages(keys, columns):
        _paged_loop(q_shared, k, v, keys, span, kv_head, first, count, scale, state, tiles)
    else:
        _pipelined_loop(q_shared, k, v, keys, span, kv_head, first, count, scale, state, tiles)

    normalize(acc, l)
    for i, d in T.Parallel(rows, width_v):
        if T.And(i < heads, d < head_dim_v):
            out[split, sequence, head + i, d] = acc[i, d]
    for i in T.Parallel(rows):
        if i < heads:
            lse[split, sequence, head + i] = T.if_then_else(
                l[i] == 0.0, -T.infinity("float32"), m[i] * scale + T.log(l[i])
            )


@T.macro
def empty_split(out, lse, sequence, split, head, heads, dims, tiles):
    """Write out = 0 and lse = -inf of a split without keys."""
    for i, d in T.Parallel(tiles.rows, padded(dims[1])):
        if T.And(i < heads, d < dims[1]):
            out[split, sequence, head + i, d] = 0
    for i in T.Parallel(tiles.rows):
        if i < heads:
            lse[split, sequence, head + i] = -T.infinity("float32")
