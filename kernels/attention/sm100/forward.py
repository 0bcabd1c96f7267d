"""The forward pass of one thread block on Blackwell (sm_100a): FlashAttention-2 with tcgen05.

The algorithm is that of `attention.forward`, with the online softmax of `attention.softmax`; the
operands live elsewhere. A tcgen05 MMA is issued by one thread, is asynchronous, and accumulates in
*tensor memory* (128 lanes by 512 columns of 32 bits). Its B operand is in shared memory, its A
operand in shared or in tensor memory.

=========  ==========================================  ==========================================
variant    the weights p, an operand of the 2nd MMA    overlap
=========  ==========================================  ==========================================
`ss`       in shared memory                            the load of the next k with the softmax, of
                                                       the next v with the first MMA
`ts`       in tensor memory, which leaves shared       the same
           memory for two blocks
`wasp`     in tensor memory                            loads, both MMAs and softmax, in warps
                                                       specialized for each
=========  ==========================================  ==========================================

Tensor memory, in columns of 32 bits, for head dimensions of 128 and 128 keys:

==========  ==========  =======  ==========================================================
name        `ss`, `ts`  `wasp`   holds
==========  ==========  =======  ==========================================================
scores      128         2 * 128  q k^T of a tile of keys (in `wasp` of two)
weights     64 (`ts`)   64       p, 16 bits wide
sums        128         128      accumulator of p v
==========  ==========  =======  ==========================================================

Warp roles of `wasp`, and what each waits for. Stage s is step % 2. Waits for a free buffer use the
parity of the phase before the first, which passes on a fresh barrier: all stages are initially
free.

==========  ==================  ==============================================================
threads     warp role           waits for
==========  ==================  ==============================================================
0-127       softmax             `scored[s]`: the scores of this step are complete;
                                `summed[s]` of the previous step: its p has been read, and the
                                accumulator may be rescaled
128-159     TMA loads           `scored[s]`, `summed[s]` of two steps before: the MMA that read
                                stage s of k, of v, is complete
160-191     issues MMAs         `k_full[s]`, `v_full[s]`, `q_full`: the data has arrived;
                                `weighed`: p of the step is in tensor memory and the
                                accumulator is rescaled
==========  ==================  ==============================================================

The MMA warp issues q k^T of the next step before it waits for p of this one, so the tensor cores
work during the softmax. `weighed` also tells it that the scores may be overwritten two steps later:
they are read before p is computed.
"""

import tilelang.language as T

from tlmatrix_kernels.attention.rows import bind_block
from tlmatrix_kernels.attention.softmax import (
    LOG2_E,
    alloc_state,
    apply_mask,
    init_state,
    no_sink,
    normalize,
    online_softmax,
    store_lse,
)
from tlmatrix_kernels.attention.tiles import padded

PRODUCER = 128
"""The first thread of the TMA warp."""
MMA_ISSUER = 160
"""The first thread of the MMA warp."""


@T.macro
def load(tile, shared, full):
    """Load a tile by TMA; all calling threads arrive at `full`, which also counts its bytes."""
    T.tma_copy(tile, shared, barrier=full)
    T.mbarrier_arrive(full)


@T.macro
def rescale(sums, acc, decay):
    """Multiply the rows of the accumulator in tensor memory by decay, through registers."""
    rows, width = acc.shape
    for part in T.unroll(sums.shape[1] // width):
        T.copy(sums[:, part * width : (part + 1) * width], acc)
        for i, d in T.Parallel(rows, width):
            acc[i, d] *= decay[i]
        T.copy(acc, sums[:, part * width : (part + 1) * width])


@T.macro
def store_out(out, out_shared, sums, acc, l, queries, query, head, head_dim_v):
    """Write sums / l of the rows in the sequence, through shared memory."""
    rows, width = acc.shape
    for part in T.unroll(sums.shape[1] // width):
        T.copy(sums[:, part * width : (part + 1) * width], acc)
        normalize(acc, l)
        T.copy(acc, out_shared[:, part * width : (part + 1) * width])
    for i, d in T.Parallel(rows, head_dim_v):
        if queries.contains(query + i):
            out[queries.index(head, query + i, d)] = out_shared[i, d]


@T.macro
def uniform_block(
    q, k, v, out, lse, scale, cfg, p_in_tmem, queries, keys, mask, query, head, kv_head
):
    """Variants `ss` and `ts` (`p_in_tmem`), without warp specialization.

    Computes out and lse of the tile of queries from `query`. At least one tile of keys must be
    visible.
    """
    dtype = q.dtype
    queries, keys, mask = bind_block(queries, keys, mask)
    (head_dim, head_dim_v), tiles = cfg.dims, cfg.tiles
    width, width_v = padded(head_dim), padded(head_dim_v)
    rows, columns = tiles.queries, tiles.keys

    q_shared = T.alloc_shared([rows, width], dtype)
    k_shared = T.alloc_shared([columns, width], dtype)
    v_shared = T.alloc_shared([columns, width_v], dtype)
    out_shared = T.alloc_shared([rows, width_v], dtype)
    scores = T.alloc_tmem([rows, columns], "float32")
    sums = T.alloc_tmem([rows, width_v], "float32")
    alloc_weights = T.alloc_tmem if p_in_tmem else T.alloc_shared
    weights = alloc_weights([rows, columns], dtype)
    q_full = T.alloc_barrier(tiles.threads)
    k_full = T.alloc_barrier(tiles.threads)
    v_full = T.alloc_barrier(tiles.threads)
    scored = T.alloc_barrier(1)
    summed = T.alloc_barrier(1)
    state = alloc_state(rows, columns, tiles.part, dtype)
    s, p, acc, m, l = state.s, state.p, state.acc, state.m, state.l

    first, count = mask.key_tiles(query, rows, columns)
    load(queries.tile(q, head, query, rows, width), q_shared, q_full)
    load(keys.tile(k, kv_head, first * columns, columns, width), k_shared, k_full)
    load(keys.tile(v, kv_head, first * columns, columns, width_v), v_shared, v_full)
    init_state(m, l, no_sink(head, scale))
    T.mbarrier_wait_parity(q_full, 0)
    for step in T.serial(count):
        key = (first + step) * columns
        T.mbarrier_wait_parity(k_full, step % 2)
        T.tcgen05_gemm(q_shared, k_shared, scores, transpose_B=True, mbar=scored, clear_accum=True)
        T.mbarrier_wait_parity(scored, step % 2)
        if step + 1 < count:  # k has been read
            load(keys.tile(k, kv_head, key + columns, columns, width), k_shared, k_full)
        T.copy(scores, s)
        apply_mask(s, mask, query, key)
        online_softmax(state, scale * LOG2_E)
        T.copy(s, p)
        T.copy(p, weights)
        if step > 0:
            rescale(sums, acc, state.decay)
        T.mbarrier_wait_parity(v_full, step % 2)
        T.tcgen05_gemm(weights, v_shared, sums, mbar=summed, clear_accum=step == 0)
        T.mbarrier_wait_parity(summed, step % 2)
        if step + 1 < count:  # v and p have been read
            load(keys.tile(v, kv_head, key + columns, columns, width_v), v_shared, v_full)

    store_out(out, out_shared, sums, acc, l, queries, query, head, head_dim_v)
    store_lse(lse, m, l, no_sink(head, scale), queries, query, head, scale)


@T.macro
def warp_specialized_block(
    q, k, v, out, lse, scale, cfg, queries, keys, mask, query, head, kv_head
):
    """Variant `wasp`, warp-specialized; see the module.

    Computes out and lse of the tile of queries from `query`. At least one tile of keys must be
    visible.
    """
    dtype = q.dtype
    queries, keys, mask = bind_block(queries, keys, mask)
    (head_dim, head_dim_v), tiles = cfg.dims, cfg.tiles
    width, width_v = padded(head_dim), padded(head_dim_v)
    rows, columns, stages = tiles.queries, tiles.keys, tiles.stages

    q_shared = T.alloc_shared([rows, width], dtype)
    k_shared = T.alloc_shared([stages, columns, width], dtype)
    v_shared = T.alloc_shared([stages, columns, width_v], dtype)
    out_shared = T.alloc_shared([rows, width_v], dtype)
    scores = T.alloc_tmem([stages, rows, columns], "float32")
    sums = T.alloc_tmem([rows, width_v], "float32")
    weights = T.alloc_tmem([rows, columns], dtype)
    q_full = T.alloc_barrier(32)
    k_full = T.alloc_barrier([32] * stages)
    v_full = T.alloc_barrier([32] * stages)
    scored = T.alloc_barrier([1] * stages)
    weighed = T.alloc_barrier(128)
    summed = T.alloc_barrier([1] * stages)
    state = alloc_state(rows, columns, tiles.part, dtype)
    s, p, acc, m, l = state.s, state.p, state.acc, state.m, state.l

    first, count = mask.key_tiles(query, rows, columns)
    thread = T.get_thread_binding()
    if thread < PRODUCER:
        init_state(m, l, no_sink(head, scale))
        for step in T.serial(count):
            stage = step % stages
            T.mbarrier_wait_parity(scored[stage], step // stages % 2)
            T.copy(scores[stage, :, :], s)
            apply_mask(s, mask, query, (first + step) * columns)
            online_softmax(state, scale * LOG2_E)
            T.copy(s, p)
            if step > 0:
                T.mbarrier_wait_parity(summed[(step - 1) % stages], (step - 1) // stages % 2)
                rescale(sums, acc, state.decay)
            T.copy(p, weights)
            T.mbarrier_arrive(weighed)
        T.mbarrier_wait_parity(summed[(count - 1) % stages], (count - 1) // stages % 2)
        store_out(out, out_shared, sums, acc, l, queries, query, head, head_dim_v)
        store_lse(lse, m, l, no_sink(head, scale), queries, query, head, scale)
    elif thread < MMA_ISSUER:
        load(queries.tile(q, head, query, rows, width), q_shared, q_full)
        for step in T.serial(count):
            stage = step % stages
            key = (first + step) * columns
            T.mbarrier_wait_parity(scored[stage], (step // stages + 1) % 2)
            T.tma_copy(
                keys.tile(k, kv_head, key, columns, width),
                k_shared[stage, :, :],
                barrier=k_full[stage],
            )
            T.mbarrier_arrive(k_full[stage])
            T.mbarrier_wait_parity(summed[stage], (step // stages + 1) % 2)
            T.tma_copy(
                keys.tile(v, kv_head, key, columns, width_v),
                v_shared[stage, :, :],
                barrier=v_full[stage],
            )
            T.mbarrier_arrive(v_full[stage])
    else:
        T.mbarrier_wait_parity(q_full, 0)
        for step in T.serial(count + 1):
            if step < count:
                stage = step % stages
                T.mbarrier_wait_parity(k_full[stage], step // stages % 2)
                T.tcgen05_gemm(
                    q_shared,
                    k_shared[stage, :, :],
                    scores[stage, :, :],
                    transpose_B=True,
                    mbar=scored[stage],
                    clear_accum=True,
                )
            if step > 0:
                before = (step - 1) % stages
                T.mbarrier_wait_parity(v_full[before], (step - 1) // stages % 2)
                T.mbarrier_wait_parity(weighed, (step - 1) % 2)
                T.tcgen05_gemm(
                    weights,
                    v_shared[before, :, :],
                    sums,
                    mbar=summed[before],
                    clear_accum=step == 1,
                )
