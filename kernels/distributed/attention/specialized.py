"""The forward block with explicit warp specialization on Hopper (sm_90a), to compare.

The algorithm is that of `attention.forward`, which TileLang specializes itself: there one role
loads, and all others compute the tile of queries together. Here the roles are written by hand, and
each consumer has 64 rows of queries of its own, so that the softmax of one runs beside the products
of the other.

==========  ============================  ====================================================
threads     warp role                     waits for
==========  ============================  ====================================================
0-127       consumer: queries 0-63        `q_full`; `k_full[s]`, `v_full[s]`: the tile of
                                          stage s has arrived; its own wgmma, before it
                                          releases the stage
128-255     consumer: queries 64-127      the same
256-383     producer: TMA loads           `k_empty[s]`, `v_empty[s]`: both consumers have
                                          released stage s
==========  ============================  ====================================================

Waits for a free stage use the parity of the phase before the first, which passes on a fresh
barrier.
"""

import tilelang.language as T

from tlmatrix_kernels.attention.rows import bind_block
from tlmatrix_kernels.attention.softmax import (
    LOG2_E,
    alloc_state,
    apply_mask,
    init_state,
    normalize,
    online_softmax,
    store_lse,
)
from tlmatrix_kernels.attention.tiles import Tiles, padded

CONSUMER_ROWS = 64
"""Rows of queries of a consumer: those of one wgmma."""
_CONSUMERS = 2
_PRODUCER = 128 * _CONSUMERS
"""The first thread of the producer."""
_PRODUCER_REGISTERS = 40
_CONSUMER_REGISTERS = 232


def specialized_tiles(head_dim: int, head_dim_v: int) -> Tiles:
    """The tiles of a specialized block: at most 227 KiB of shared memory."""
    wide = max(padded(head_dim), padded(head_dim_v))
    keys, stages = (128, 2) if wide <= 128 else (64, 2) if wide <= 192 else (64, 1)
    return Tiles(
        queries=_CONSUMERS * CONSUMER_ROWS, keys=keys, stages=stages, threads=_PRODUCER + 128
    )


@T.macro
def _consume(shared, barriers, initial, out, lse, queries, mask, query, head, scale, plan, part):
    """The consumer `part`: out and lse of 64 queries from `query`."""
    q_shared, k_shared, v_shared = shared
    q_full, k_full, k_empty, v_full, v_empty = barriers
    first, count, columns, stages, width_v, head_dim_v = plan
    rows = CONSUMER_ROWS
    state = alloc_state(rows, columns, width_v, q_shared.dtype)
    s, p, acc, m, l = state.s, state.p, state.acc, state.m, state.l

    T.fill(acc, 0)
    init_state(m, l, initial)
    T.mbarrier_wait_parity(q_full, 0)
    for step in T.serial(count):
        stage = step % stages
        key = (first + step) * columns
        T.mbarrier_wait_parity(k_full[stage], step // stages % 2)
        T.wgmma_gemm(
            q_shared[part, :, :], k_shared[stage, :, :], s, transpose_B=True, clear_accum=True
        )
        T.wait_wgmma(0)
        T.mbarrier_arrive(k_empty[stage])
        apply_mask(s, mask.for_key_tile(key), query, key)
        online_softmax(state, scale * LOG2_E)
        for i, d in T.Parallel(rows, width_v):
            acc[i, d] *= state.decay[i]
        T.copy(s, p)
        T.mbarrier_wait_parity(v_full[stage], step // stages % 2)
        T.wgmma_gemm(p, v_shared[stage, :, :], acc)
        T.wait_wgmma(0)
        T.mbarrier_arrive(v_empty[stage])

    normalize(acc, l)
    for i, d in T.Parallel(rows, width_v):
        if T.And(queries.contains(query + i), d < head_dim_v):
            out[queries.index(head, query + i, d)] = acc[i, d]
    store_lse(lse, m, l, initial, queries, query, head, scale)


@T.macro
def specialized_block(
    q, k, v, initial_of, out, lse, scale, cfg, queries, keys, mask, query, head, kv_head
):
    """Compute out and lse of the tile of queries from `query`; as `forward.forward_block`.

    The initial state continues from no other keys. At least one tile of keys must be visible.
    """
    queries, keys, mask = bind_block(queries, keys, mask)
    initial = initial_of(head, scale)
    (head_dim, head_dim_v), tiles = cfg.dims, cfg.tiles
    width, width_v = padded(head_dim), padded(head_dim_v)
    rows, columns, stages = CONSUMER_ROWS, tiles.keys, tiles.stages

    q_shared = T.alloc_shared([_CONSUMERS, rows, width], q.dtype)
    k_shared = T.alloc_shared([stages, columns, width], q.dtype)
    v_shared = T.alloc_shared([stages, columns, width_v], q.dtype)
    q_full = T.alloc_barrier(128)
    k_full = T.alloc_barrier([128] * stages)
    v_full = T.alloc_barrier([128] * stages)
    k_empty = T.alloc_barrier([_PRODUCER] * stages)
    v_empty = T.alloc_barrier([_PRODUCER] * stages)

    thread = T.get_thread_binding()
    first, count = mask.key_tiles(query, tiles.queries, columns)
    shared = (q_shared, k_shared, v_shared)
    barriers = (q_full, k_full, k_empty, v_full, v_empty)
    plan = (first, count, columns, stages, width_v, head_dim_v)
    if thread >= _PRODUCER:
        T.dec_max_nreg(_PRODUCER_REGISTERS)
        for part in T.unroll(_CONSUMERS):
            T.tma_copy(
                queries.tile(q, head, query + part * rows, rows, width),
                q_shared[part, :, :],
                barrier=q_full,
            )
        T.mbarrier_arrive(q_full)
        for step in T.serial(count):
            stage = step % stages
            row = keys.load_row((first + step) * columns)
            T.mbarrier_wait_parity(k_empty[stage], (step // stages + 1) % 2)
            T.tma_copy(
                keys.tile(k, kv_head, row, columns, width),
                k_shared[stage, :, :],
                barrier=k_full[stage],
            )
            T.mbarrier_arrive(k_full[stage])
            T.mbarrier_wait_parity(v_empty[stage], (step // stages + 1) % 2)
            T.tma_copy(
                keys.tile(v, kv_head, row, columns, width_v),
                v_shared[stage, :, :],
                barrier=v_full[stage],
            )
            T.mbarrier_arrive(v_full[stage])
    elif thread >= 128:
        T.inc_max_nreg(_CONSUMER_REGISTERS)
        _consume(
            shared, barriers, initial, out, lse, queries, mask, query + rows, head, scale, plan, 1
        )
    else:
        T.inc_max_nreg(_CONSUMER_REGISTERS)
        _consume(shared, barriers, initial, out, lse, queries, mask, query, head, scale, plan, 0)
