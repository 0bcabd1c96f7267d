"""The backward pass of a tile of keys with explicit warp roles, for Hopper (sm_90a).

The algorithm is that of `backward.key_block` for the query heads of a group, where TileLang divides
the warps: one role loads, all others compute, and they wait while a tile of dq is added to global
memory. Here a warp of its own adds dq, as in FlashAttention-3 (Shah et al., 2024,
https://arxiv.org/abs/2407.08608), and products run beside the elementwise operations.

==========  ============================  ====================================================
threads     warp role                     waits for
==========  ============================  ====================================================
0-255       consumers: two warp groups    `kv_full`; `q_full[s]`, `do_full[s]`: the tiles of
                                          stage s have arrived; `EXCHANGE`: the other group
                                          has written its ds; `dq_empty`: the reducer has read
                                          the tile of dq before
256-287     producer: TMA loads           `q_empty[s]`, `do_empty[s]`: the consumers have
                                          released stage s
288-319     reducer: adds dq by TMA       `dq_full`: the consumers have written a tile
==========  ============================  ====================================================

The head dimensions decide how the consumers divide a tile (`specialized_tiles`):

====================  ==============  ==========================================================
head_dim, head_dim_v  queries x keys  division
====================  ==============  ==========================================================
both up to 64         128 x 128       A group has half of the keys. The scores of the second 64
                                      queries are multiplied beside the elementwise operations of
                                      the first, whose products run beside those of the second.
sum up to 256         64 x 128        A group has half of the keys; p and ds stay in registers.
more                  64 x 64         `staged`: dk and dv of more keys do not fit in registers. A
                                      group has half of the columns of each product; p and ds pass
                                      through shared memory.
====================  ==============  ==========================================================

Waits for a free stage use the parity of the phase before the first, which passes on a fresh
barrier. TileLang inserts no barriers here (`SYNCHRONIZED_CONFIGS`): it would stop both groups four
times in a step. One barrier is enough, as ds and p have two tiles: a group that writes ds of step n
has passed the barrier of step n - 1, before which the other waited for its products of step n - 2.

dq is in the order of registers (see `reordered`): what a warp writes to shared memory at once is
contiguous, and a tile is one box of the copy engine.
"""

import tilelang.language as T
from tilelang.layout import make_linear_layout

from tlmatrix_kernels.attention.backward import mask_pairs, write_keys
from tlmatrix_kernels.attention.reordered import ELEMENTS, LANES, ORDERS, block_index
from tlmatrix_kernels.attention.rows import bind_block
from tlmatrix_kernels.attention.softmax import LOG2_E
from tlmatrix_kernels.attention.tiles import PRODUCER_REGISTERS, Tiles, padded

ORDER = "mma"
LINE = 256
"""Columns of the dq accumulator: the most that a box of the copy engine has."""
EXCHANGE = 1
"""The named barrier of the consumers."""
_CONSUMERS = 256
_REDUCER = _CONSUMERS + 32
_REDUCER_END = _REDUCER + 32
_CONSUMER_REGISTERS = 240

_PART = 64
"""Queries whose scores a group has in registers at once."""
_SHARED_MEMORY = 226 * 1024


def specialized_tiles(head_dim, head_dim_v):
    """The tiles for these head dimensions.

    Registers of a consumer: keys * (head_dim + head_dim_v) / 256 for dk and dv, and for each part
    of 64 queries keys / 4 for s, dp, and p and ds together. Shared memory in bytes: 2 (head_dim +
    head_dim_v) (keys + stages * queries), 4 queries * head_dim for dq, and ds and p.
    """
    width, width_v = padded(head_dim), padded(head_dim_v)
    both = width + width_v
    if both <= 256:
        queries = 2 * _PART if max(width, width_v) <= 64 else _PART
        return Tiles(queries=queries, keys=128, stages=2, threads=_CONSUMERS + 128)
    two = 2 * both * 3 * _PART + 4 * _PART * width + 2 * 2 * 2 * _PART * _PART
    stages = 2 if two <= _SHARED_MEMORY else 1
    return Tiles(queries=_PART, keys=64, stages=stages, threads=_CONSUMERS + 128, staged=True)


def line_shape(head_dim):
    """The shape of a row block of the dq accumulator."""
    return (ORDERS[ORDER].rows * padded(head_dim) // LINE, LINE)


@T.macro
def _write_tile(shared, tile):
    """Write a fragment [rows, width] of dq to [row blocks, *line_shape] in shared memory."""
    order = ORDERS[ORDER]
    rows, width = tile.shape
    for i, d in T.Parallel(rows, width):
        lane, element = order.position(i % order.rows, d % order.columns)
        place = (d // order.columns * LANES + lane) * ELEMENTS + element
        shared[i // order.rows, place // LINE, place % LINE] = tile[i, d]


@T.macro
def _load(tile, statistic, shared, statistic_shared, full, stage):
    """Load a tile and a statistic of its rows by TMA, which arrive at `full` of the stage."""
    T.tma_copy(tile, shared[stage, :, :], barrier=full[stage])
    T.tma_copy(statistic, statistic_shared[stage, :], barrier=full[stage])
    T.mbarrier_arrive(full[stage])


@T.macro
def _exponentiate(s, dp, lse, stage, row, mask, query, key, scale, in_flight):
    """Wait for scores and dp, the oldest of `in_flight` + 1 products, and compute p (in `s`).

    Both are of the queries from `row` of a stage, and 0 for masked pairs.
    """
    columns, rows = s.shape
    T.wait_wgmma(in_flight)
    for i, j in T.Parallel(columns, rows):
        s[i, j] = T.exp2(s[i, j] * (scale * LOG2_E) - lse[stage, row + j])
    T.wait_wgmma(in_flight - 1)
    mask_pairs(s, dp, mask, query + row, key, rows, columns, transposed=True)


@T.macro
def _multiply_scores(k, v, q, do, s, dp, q_full, do_full, stage, phase, row, policy):
    """Begin s = k q^T and dp = v do^T of the queries from `row` of a stage, once it is loaded."""
    end = row + s.shape[1]
    if row == 0:
        T.mbarrier_wait_parity(q_full[stage], phase)
    T.wgmma_gemm(k, q[stage, row:end, :], s, transpose_B=True, policy=policy, clear_accum=True)
    if row == 0:
        T.mbarrier_wait_parity(do_full[stage], phase)
    T.wgmma_gemm(v, do[stage, row:end, :], dp, transpose_B=True, policy=policy, clear_accum=True)


@T.macro
def _add_keys(s, dp, p, ds, q, do, delta, stage, row, ds_shared, step, dk, dv):
    """Begin dv += p do and dk += ds q with p and ds in registers, and store ds."""
    columns, rows = s.shape
    end = row + rows
    T.copy(s, p)
    T.wgmma_gemm(p, do[stage, row:end, :], dv, policy=T.GemmWarpPolicy.FullRow)
    for i, j in T.Parallel(columns, rows):
        ds[i, j] = s[i, j] * (dp[i, j] - delta[stage, row + j])
    T.wgmma_gemm(ds, q[stage, row:end, :], dk, policy=T.GemmWarpPolicy.FullRow)
    T.copy(ds, ds_shared[step % 2, :, row:end])


@T.macro
def specialized_key_block(
    q, k, v, do, row_lse, row_delta, scale, cfg,
    gradients, queries, keys, mask, key, head, kv_head,
):  # fmt: skip
    """Compute dk and dv of the tile of keys from `key`, and add dq; as `backward.key_block`.

    `gradients` has all query heads of a group, one part, and dq with row blocks of `line_shape`.
    """
    queries, keys, mask = bind_block(queries, keys, mask)
    (head_dim, head_dim_v), tiles = cfg.dims, cfg.tiles
    width, width_v = padded(head_dim), padded(head_dim_v)
    rows, columns, stages = tiles.queries, tiles.keys, tiles.stages
    parts = rows // _PART
    by_row, by_column = T.GemmWarpPolicy.FullRow, T.GemmWarpPolicy.FullCol
    divided = by_column if tiles.staged else by_row
    dtype = q.dtype

    k_shared = T.alloc_shared([columns, width], dtype)
    v_shared = T.alloc_shared([columns, width_v], dtype)
    q_shared = T.alloc_shared([stages, rows, width], dtype)
    do_shared = T.alloc_shared([stages, rows, width_v], dtype)
    lse_shared = T.alloc_shared([stages, rows], "float32")
    delta_shared = T.alloc_shared([stages, rows], "float32")
    ds_shared = T.alloc_shared([2, columns, rows], dtype)
    if tiles.staged:
        p_shared = T.alloc_shared([2, columns, rows], dtype)
    blocks, lines = rows // ORDERS[ORDER].rows, line_shape(head_dim)[0]
    dq_shared = T.alloc_shared([blocks, lines, LINE], "float32")
    T.annotate_layout({dq_shared: make_linear_layout(dq_shared)})
    kv_full = T.alloc_barrier(32)
    q_full = T.alloc_barrier([32] * stages)
    do_full = T.alloc_barrier([32] * stages)
    q_empty = T.alloc_barrier([_CONSUMERS] * stages)
    do_empty = T.alloc_barrier([_CONSUMERS] * stages)
    dq_full = T.alloc_barrier(_CONSUMERS)
    dq_empty = T.alloc_barrier(32)

    thread = T.get_thread_binding()
    first, count = mask.query_tiles(key, columns, rows)
    total = count * gradients.heads
    if thread < _CONSUMERS:
        T.inc_max_nreg(_CONSUMER_REGISTERS)
        part = [columns, _PART]
        s = T.alloc_fragment(part, "float32")
        dp = T.alloc_fragment(part, "float32")
        if not tiles.staged:
            p = T.alloc_fragment(part, dtype)
            ds = T.alloc_fragment(part, dtype)
        if parts == 2:
            s_next = T.alloc_fragment(part, "float32")
            dp_next = T.alloc_fragment(part, "float32")
            p_next = T.alloc_fragment(part, dtype)
            ds_next = T.alloc_fragment(part, dtype)
        dk = T.alloc_fragment([columns, width], "float32")
        dv = T.alloc_fragment([columns, width_v], "float32")
        dq = T.alloc_fragment([rows, width], "float32")
        T.clear(dk)
        T.clear(dv)
        T.mbarrier_wait_parity(kv_full, 0)
        for step in T.serial(total):
            stage = step % stages
            phase = step // stages % 2
            query = (first + T.truncmod(step, count)) * rows
            _multiply_scores(
                k_shared, v_shared, q_shared, do_shared, s, dp,
                q_full, do_full, stage, phase, 0, divided,
            )  # fmt: skip
            if parts == 2:
                _multiply_scores(
                    k_shared, v_shared, q_shared, do_shared, s_next, dp_next,
                    q_full, do_full, stage, phase, _PART, divided,
                )  # fmt: skip
            in_flight = 2 * parts - 1
            _exponentiate(s, dp, lse_shared, stage, 0, mask, query, key, scale, in_flight)
            if tiles.staged:
                T.copy(s, p_shared[step % 2, :, :])
                for i, j in T.Parallel(*part):
                    s[i, j] *= dp[i, j] - delta_shared[stage, j]
                T.copy(s, ds_shared[step % 2, :, :])
            else:
                _add_keys(
                    s, dp, p, ds, q_shared, do_shared, delta_shared, stage, 0,
                    ds_shared, step, dk, dv,
                )  # fmt: skip
            if parts == 2:
                _exponentiate(
                    s_next, dp_next, lse_shared, stage, _PART, mask, query, key, scale, in_flight
                )
                _add_keys(
                    s_next, dp_next, p_next, ds_next, q_shared, do_shared, delta_shared, stage,
                    _PART, ds_shared, step, dk, dv,
                )  # fmt: skip
            T.fence_proxy_async()
            T.sync_threads(EXCHANGE, _CONSUMERS)
            if tiles.staged:
                T.wgmma_gemm(p_shared[step % 2, :, :], do_shared[stage, :, :], dv, policy=divided)
                T.wgmma_gemm(ds_shared[step % 2, :, :], q_shared[stage, :, :], dk, policy=divided)
            T.wgmma_gemm(
                ds_shared[step % 2, :, :], k_shared, dq,
                transpose_A=True, policy=by_row if parts == 2 else by_column, clear_accum=True,
            )  # fmt: skip
            T.wait_wgmma(2)
            T.mbarrier_arrive(do_empty[stage])
            T.wait_wgmma(0)
            T.mbarrier_arrive(q_empty[stage])
            T.mbarrier_wait_parity(dq_empty, (step + 1) % 2)
            _write_tile(dq_shared, dq)
            T.fence_proxy_async()
            T.mbarrier_arrive(dq_full)
        write_keys(gradients, gradients.dk, dk, None, keys, kv_head, key, scale, head_dim)
        write_keys(gradients, gradients.dv, dv, None, keys, kv_head, key, 1.0, head_dim_v)
    else:
        T.dec_max_nreg(PRODUCER_REGISTERS)
        if thread < _REDUCER:
            T.tma_copy(keys.tile(k, kv_head, key, columns, width), k_shared, barrier=kv_full)
            T.tma_copy(keys.tile(v, kv_head, key, columns, width_v), v_shared, barrier=kv_full)
            T.mbarrier_arrive(kv_full)
            for step in T.serial(total):
                stage = step % stages
                free = (step // stages + 1) % 2
                query = (first + T.truncmod(step, count)) * rows
                here = head + T.truncdiv(step, count)
                lse = queries.padded_tile(row_lse, here, query, rows)
                delta = queries.padded_tile(row_delta, here, query, rows)
                T.mbarrier_wait_parity(q_empty[stage], free)
                q_tile = queries.tile(q, here, query, rows, width)
                _load(q_tile, lse, q_shared, lse_shared, q_full, stage)
                T.mbarrier_wait_parity(do_empty[stage], free)
                do_tile = queries.tile(do, here, query, rows, width_v)
                _load(do_tile, delta, do_shared, delta_shared, do_full, stage)
        elif thread < _REDUCER_END:
            for step in T.serial(total):
                query = (first + T.truncmod(step, count)) * rows
                here = head + T.truncdiv(step, count)
                first_block = block_index(ORDER, queries, here, query)
                tile = (*first_block[:-1], slice(first_block[-1], first_block[-1] + blocks))
                T.mbarrier_wait_parity(dq_full, step % 2)
                T.atomic_add(
                    gradients.dq[(*tile, slice(0, lines), slice(0, LINE))], dq_shared, use_tma=True
                )
                T.mbarrier_arrive(dq_empty)
