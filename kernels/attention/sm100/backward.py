"""The backward pass of one thread block on Blackwell (sm_100a): a tile of keys against its queries.

The algorithm is strategy `reordered` of `attention.backward`: with p = exp(scale * q k^T - lse)
recomputed and ds = p * (do v^T - delta),

    dv = p^T do        dk = scale * ds^T q        dq = scale * ds k

A block owns 128 keys of one query head. It accumulates dv and dk in tensor memory while it iterates
over tiles of 128 queries. It adds dq of each tile to the accumulator of `reordered`, in order
`tmem`, with float32 atomics of four elements; a post-pass scales, casts and restores the layout of
q. At the end it stores dk and dv, or adds them in float32 if the heads of a group share them.

All 256 threads copy tensor memory: a warp reads 32 of its 128 lanes, so the second warp group has
the same lanes as the first, and the other half of the columns.

All 512 columns (of 32 bits) of tensor memory are used:

==========  =======  ========================================================================
name        columns  holds
==========  =======  ========================================================================
scores      128      q k^T [queries, keys]; after p is computed, dq of the tile
products    128      do v^T [queries, keys]
dv, dk      128 each  accumulators over the tiles of queries, [keys, head_dim]
==========  =======  ========================================================================

There is no warp specialization. The five MMAs of a tile overlap with one another, with the
computation of p and ds, and with the loads of the next tile's q and do, which start when the last
MMA that reads the current ones is complete. Each MMA has its own mbarrier, which completes one
phase per tile.

p and ds are 16 bits wide in shared memory, [queries, keys]; the MMAs for dv and dk read them
transposed.
"""

import tilelang.language as T

from tlmatrix_kernels.attention.backward import load_statistic, store_key_gradient
from tlmatrix_kernels.attention.reordered import add_tile
from tlmatrix_kernels.attention.rows import bind_block
from tlmatrix_kernels.attention.sm100.forward import load
from tlmatrix_kernels.attention.softmax import LOG2_E
from tlmatrix_kernels.attention.tiles import padded


@T.macro
def add_queries(gradients, sums, acc, wide, queries, head, query):
    """Add `wide` columns of an accumulator in tensor memory to dq, unscaled."""
    _, width = acc.shape
    for part in T.unroll(wide // width):
        T.copy(sums[:, part * width : (part + 1) * width], acc)
        add_tile(gradients.dq, acc, gradients.order, queries, head, query, part * width)


@T.macro
def write_keys(gradients, target, sums, acc, keys, head, key, factor, head_dim):
    """Store or add `factor` times an accumulator [keys, head_dim] in tensor memory."""
    count, width = acc.shape
    for part in T.unroll(sums.shape[1] // width):
        T.copy(sums[:, part * width : (part + 1) * width], acc)
        for i, d in T.Parallel(count, width):
            if T.And(keys.contains(key + i), part * width + d < head_dim):
                here = keys.index(head, key + i, part * width + d)
                store_key_gradient(gradients, target, here, acc[i, d] * factor)


@T.macro
def key_block(
    q, k, v, do, row_lse, row_delta, scale, cfg,
    gradients, queries, keys, mask, key, head, kv_head,
):  # fmt: skip
    """Write dk and dv of the tile of keys from `key`, for one query head, and add its dq.

    At least one tile of queries must attend to the keys.
    """
    dtype = q.dtype
    queries, keys, mask = bind_block(queries, keys, mask)
    (head_dim, head_dim_v), tiles = cfg.dims, cfg.tiles
    width, width_v = padded(head_dim), padded(head_dim_v)
    rows, columns = tiles.queries, tiles.keys
    shared_columns = max(columns, width)

    q_shared = T.alloc_shared([rows, width], dtype)
    do_shared = T.alloc_shared([rows, width_v], dtype)
    k_shared = T.alloc_shared([columns, width], dtype)
    v_shared = T.alloc_shared([columns, width_v], dtype)
    p_shared = T.alloc_shared([rows, columns], dtype)
    ds_shared = T.alloc_shared([rows, columns], dtype)
    scores = T.alloc_tmem([rows, shared_columns], "float32")
    products = T.alloc_tmem([rows, columns], "float32")
    dv = T.alloc_tmem([columns, width_v], "float32")
    dk = T.alloc_tmem([columns, width], "float32")
    kv_full = T.alloc_barrier(tiles.threads)
    q_full = T.alloc_barrier(tiles.threads)
    do_full = T.alloc_barrier(tiles.threads)
    scored = T.alloc_barrier(1)
    multiplied = T.alloc_barrier(1)
    dv_summed = T.alloc_barrier(1)
    dk_summed = T.alloc_barrier(1)
    dq_made = T.alloc_barrier(1)
    s = T.alloc_fragment([rows, columns], "float32")
    dp = T.alloc_fragment([rows, columns], "float32")
    acc = T.alloc_fragment([rows, tiles.part], "float32")
    lse_tile = T.alloc_fragment([rows], "float32")
    delta_tile = T.alloc_fragment([rows], "float32")

    first, count = mask.query_tiles(key, columns, rows)
    T.tma_copy(keys.tile(k, kv_head, key, columns, width), k_shared, barrier=kv_full)
    load(keys.tile(v, kv_head, key, columns, width_v), v_shared, kv_full)
    load(queries.tile(q, head, first * rows, rows, width), q_shared, q_full)
    load(queries.tile(do, head, first * rows, rows, width_v), do_shared, do_full)
    T.mbarrier_wait_parity(kv_full, 0)
    for step in T.serial(count):
        # A variable, as in `apply_mask`: fewer registers than the expression in every index.
        query = T.alloc_var("int32", init=(first + step) * rows)
        phase = step % 2
        T.mbarrier_wait_parity(q_full, phase)
        T.tcgen05_gemm(
            q_shared, k_shared, scores[:, 0:columns], transpose_B=True, mbar=scored,
            clear_accum=True,
        )  # fmt: skip
        T.mbarrier_wait_parity(do_full, phase)
        T.tcgen05_gemm(
            do_shared, v_shared, products, transpose_B=True, mbar=multiplied, clear_accum=True
        )
        load_statistic(row_lse, lse_tile, queries, head, query)
        load_statistic(row_delta, delta_tile, queries, head, query)

        T.mbarrier_wait_parity(scored, phase)
        T.copy(scores[:, 0:columns], s)
        for i, j in T.Parallel(rows, columns):
            s[i, j] = T.exp2(s[i, j] * (scale * LOG2_E) - lse_tile[i])
        if mask.needs_mask(query, rows, key, columns):
            for i, j in T.Parallel(rows, columns):
                s[i, j] = T.if_then_else(mask.visible(query + i, key + j), s[i, j], 0.0)
        T.copy(s, p_shared)
        T.tcgen05_gemm(
            p_shared, do_shared, dv, transpose_A=True, mbar=dv_summed, clear_accum=step == 0
        )

        T.mbarrier_wait_parity(multiplied, phase)
        T.copy(products, dp)
        for i, j in T.Parallel(rows, columns):
            dp[i, j] = s[i, j] * (dp[i, j] - delta_tile[i])
        T.copy(dp, ds_shared)
        T.tcgen05_gemm(
            ds_shared, q_shared, dk, transpose_A=True, mbar=dk_summed, clear_accum=step == 0
        )
        T.tcgen05_gemm(ds_shared, k_shared, scores[:, 0:width], mbar=dq_made, clear_accum=True)

        T.mbarrier_wait_parity(dv_summed, phase)
        if step + 1 < count:
            load(queries.tile(do, head, query + rows, rows, width_v), do_shared, do_full)
        T.mbarrier_wait_parity(dk_summed, phase)
        if step + 1 < count:
            load(queries.tile(q, head, query + rows, rows, width), q_shared, q_full)
        T.mbarrier_wait_parity(dq_made, phase)
        add_queries(gradients, scores, acc, width, queries, head, query)

    write_keys(gradients, gradients.dk, dk, acc, keys, kv_head, key, scale, head_dim)
    write_keys(gradients, gradients.dv, dv, acc, keys, kv_head, key, 1.0, head_dim_v)
    # The first warp deallocates tensor memory when it ends; all warps must have read it.
    T.sync_threads()
