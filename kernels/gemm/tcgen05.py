"""Matrix multiplication on Blackwell's tensor cores (tcgen05, sm_100a): `C = op(A) @ op(B)`.

Shapes and layout are those of `kernel`: A [M, K] or [K, M], B [K, N] or [N, K], C [M, N], all
row-major; float16 or bfloat16 inputs, float32 accumulation, rounded once to C. With `accumulate`
the old C is added.

A tcgen05 MMA is issued by one thread, reads both operands from shared memory and accumulates in
*tensor memory* (128 lanes by 512 columns of 32 bits). It is asynchronous: before reading its result
or overwriting its operands, wait for the mbarrier at which the hardware arrives on completion. An
accumulator of 128 x 128 takes 128 columns.

Two kernels:

`tcgen05_kernel`
    No warp specialization: all threads load a K step, one issues the MMA, all wait. The MMA of a
    step overlaps with the load of the next step only.

`tcgen05_ws_kernel`
    Warp-specialized and persistent: a block computes one tile of C per wave, with three warp roles
    that run ahead of each other as far as the buffers allow.

    ==========  ============================  ================================================
    threads     warp role                     waits for
    ==========  ============================  ================================================
    0-31        TMA loads of K steps          `empty[s]`: the MMA that read stage s is complete
    32-63       issues MMAs                   `full[s]`: the data of stage s has arrived;
                                              `drained[t]`: accumulator t has been read
    128-255     epilogue: stores tiles of C   `summed[t]`: the last MMA into accumulator t is
                                              complete
    ==========  ============================  ================================================

    Threads 64-127 idle: a warp can read only the 32 lanes of tensor memory given by its index
    modulo 4, so the epilogue is four warps starting at a multiple of 128 threads.

    Waits for a free buffer (`empty`, `drained`) use the parity of the phase *before* the first: on
    a fresh barrier such a wait passes, so all buffers are initially free.

TMA copies boxes whose rows start at multiples of 16 bytes. Elements outside a tensor are loaded as
zeros, and are not stored.
"""

from dataclasses import dataclass

import tilelang
import tilelang.language as T

from tlmatrix_kernels.gemm.operands import NO_TMA, op_tile, operands_of, row_multiple


@dataclass(frozen=True)
class Tcgen05Tiles:
    """Tile sizes in elements, and the number of pipeline stages."""

    block_m: int = 128
    """The lanes of tensor memory."""
    block_n: int = 128
    """Two accumulators of 128 columns take half of tensor memory."""
    block_k: int = 64
    """128 bytes of a 16-bit row: the widest swizzle of shared memory."""
    stages: int = 4
    """32 KiB each; four hide the load latency and leave room for a second block."""


TCGEN05_TILES = Tcgen05Tiles()
RAGGED_TCGEN05_TILES = Tcgen05Tiles(block_k=32)
"""For rows that TMA cannot load: threads load single elements, and with a `block_k` of 64 the
addresses would take more registers than there are.
"""
CONFIGS = {tilelang.PassConfigKey.TL_DISABLE_WARP_SPECIALIZED: True}
"""Warp specialization is written by hand: TileLang's automatic one releases a stage when the
tcgen05 MMA is issued, not when it is complete, so the next load would overwrite its operands.
"""
PLAIN_THREADS = 256
"""64 accumulator elements each: with 128 threads, copies without TMA spill their addresses."""
_EPILOGUE = 128
"""The first thread of the epilogue."""
_ACCUMULATORS = 2
"""Double buffering: one accumulates while the epilogue reads the other."""


@T.macro
def _load(A, B, a_tiles, b_tiles, full, s, m, n, k, orientation, tiles, tma=True):
    """Load the tiles of op(A) and op(B) at m, n, k into stage s, and arrive at `full[s]`."""
    transpose_a, transpose_b = orientation
    block_m, block_n, block_k = tiles.block_m, tiles.block_n, tiles.block_k
    if tma:
        T.tma_copy(
            op_tile(A, transpose_a, m, block_m, k, block_k), a_tiles[s, :, :], barrier=full[s]
        )
        T.tma_copy(
            op_tile(B, transpose_b, k, block_k, n, block_n), b_tiles[s, :, :], barrier=full[s]
        )
    else:
        T.copy(
            op_tile(A, transpose_a, m, block_m, k, block_k), a_tiles[s, :, :], annotations=NO_TMA
        )
        T.copy(
            op_tile(B, transpose_b, k, block_k, n, block_n), b_tiles[s, :, :], annotations=NO_TMA
        )
    T.mbarrier_arrive(full[s])


@T.macro
def _store(C, acc, c_tile, m, n, accumulate, tiles, options):
    """Store a tile of C, added to the old C if `accumulate`.

    Through shared memory, because each thread holds a whole row of the tile in registers.
    """
    if accumulate:
        for i, j in T.Parallel(tiles.block_m, tiles.block_n):
            acc[i, j] += T.cast(C[m + i, n + j], "float32")
    T.copy(acc, c_tile)
    T.copy(c_tile, C[m, n], annotations=options)


@tilelang.jit(pass_configs=CONFIGS)
def tcgen05_kernel(
    dtype: str,
    out_dtype: str,
    transpose_a: bool,
    transpose_b: bool,
    accumulate: bool,
    tma: bool,
    tiles: Tcgen05Tiles = TCGEN05_TILES,
):
    """Build the plain kernel; with `tma`, rows of A, B and C are 16-byte multiples."""
    orientation = (transpose_a, transpose_b)
    steps = (row_multiple(dtype), row_multiple(dtype), row_multiple(out_dtype)) if tma else ()
    block_m, block_n, block_k = tiles.block_m, tiles.block_n, tiles.block_k
    operands = operands_of(orientation, (block_m, block_n, block_k), steps, tma=tma)
    M, N, K = operands.M, operands.N, operands.K

    @T.prim_func
    def gemm_tcgen05(
        A: T.Tensor(operands.a_shape, dtype),
        B: T.Tensor(operands.b_shape, dtype),
        C: T.Tensor([M, N], out_dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=PLAIN_THREADS) as (
            bn,
            bm,
        ):
            a_tiles = T.alloc_shared((2, *operands.a_tile), dtype)
            b_tiles = T.alloc_shared((2, *operands.b_tile), dtype)
            sums = T.alloc_tmem([block_m, block_n], "float32")
            acc = T.alloc_fragment([block_m, block_n], "float32")
            c_tile = T.alloc_shared([block_m, block_n], out_dtype)
            full = T.alloc_barrier([PLAIN_THREADS] * 2)
            done = T.alloc_barrier(1)

            steps = T.ceildiv(K, block_k)
            _load(
                A, B, a_tiles, b_tiles, full, 0, bm * block_m, bn * block_n, 0,
                orientation, tiles, tma,
            )  # fmt: skip
            for step in T.serial(steps):
                s = step % 2
                if step + 1 < steps:  # the MMA that read the other stage is complete
                    _load(
                        A, B, a_tiles, b_tiles, full, 1 - s, bm * block_m, bn * block_n,
                        (step + 1) * block_k, orientation, tiles, tma,
                    )  # fmt: skip
                T.mbarrier_wait_parity(full[s], step // 2 % 2)
                T.tcgen05_gemm(
                    a_tiles[s, :, :], b_tiles[s, :, :], sums,
                    transpose_a, transpose_b, mbar=done, clear_accum=step == 0,
                )  # fmt: skip
                T.mbarrier_wait_parity(done, step % 2)
            T.copy(sums, acc)
            _store(C, acc, c_tile, bm * block_m, bn * block_n, accumulate, tiles, operands.copied)

    return gemm_tcgen05


@tilelang.jit(pass_configs=CONFIGS)
def tcgen05_ws_kernel(
    dtype: str,
    out_dtype: str,
    transpose_a: bool,
    transpose_b: bool,
    accumulate: bool,
    tma_store: bool,
    tiles: Tcgen05Tiles = TCGEN05_TILES,
):
    """Build the warp-specialized kernel, called with (A, B, C, blocks).

    It always loads by TMA; with `tma_store` (rows of C are 16-byte multiples) it also stores by
    TMA.
    """
    orientation = (transpose_a, transpose_b)
    step_c = row_multiple(out_dtype) if tma_store else 1
    block_m, block_n, block_k, stages = tiles.block_m, tiles.block_n, tiles.block_k, tiles.stages
    steps = row_multiple(dtype), row_multiple(dtype), step_c
    operands = operands_of(orientation, (block_m, block_n, block_k), steps, tma=tma_store)
    M, N, K = operands.M, operands.N, operands.K

    @T.prim_func
    def gemm_tcgen05_ws(
        A: T.Tensor(operands.a_shape, dtype),
        B: T.Tensor(operands.b_shape, dtype),
        C: T.Tensor([M, N], out_dtype),
        blocks: T.int32,
    ):
        with T.Kernel(blocks, threads=256) as block:
            a_tiles = T.alloc_shared((stages, *operands.a_tile), dtype)
            b_tiles = T.alloc_shared((stages, *operands.b_tile), dtype)
            sums = T.alloc_tmem([_ACCUMULATORS, block_m, block_n], "float32")
            acc = T.alloc_fragment([block_m, block_n], "float32")
            c_tile = T.alloc_shared([block_m, block_n], out_dtype)
            full = T.alloc_barrier([32] * stages)
            empty = T.alloc_barrier([1] * stages)
            summed = T.alloc_barrier([1] * _ACCUMULATORS)
            drained = T.alloc_barrier([128] * _ACCUMULATORS)

            thread = T.get_thread_binding()
            steps = T.ceildiv(K, block_k)
            columns = T.ceildiv(N, block_n)
            waves = T.ceildiv(T.ceildiv(M, block_m) * columns - block, blocks)

            T.assume(columns > 0)
            T.assume(blocks > 0)
            if thread < 32:
                for wave in T.serial(waves):
                    tile = block + wave * blocks
                    for step in T.serial(steps):
                        count = wave * steps + step
                        s = count % stages
                        T.mbarrier_wait_parity(empty[s], (count // stages + 1) % 2)
                        _load(
                            A, B, a_tiles, b_tiles, full, s, tile // columns * block_m,
                            tile % columns * block_n, step * block_k, orientation, tiles,
                        )  # fmt: skip
            elif thread < 64:
                for wave in T.serial(waves):
                    t = wave % _ACCUMULATORS
                    T.mbarrier_wait_parity(drained[t], (wave // _ACCUMULATORS + 1) % 2)
                    for step in T.serial(steps):
                        count = wave * steps + step
                        s = count % stages
                        T.mbarrier_wait_parity(full[s], (count // stages) % 2)
                        T.tcgen05_gemm(
                            a_tiles[s, :, :], b_tiles[s, :, :], sums[t, :, :],
                            transpose_a, transpose_b, mbar=empty[s], clear_accum=step == 0,
                        )  # fmt: skip
                    T.tcgen05_mma_arrive(summed[t])
            elif thread >= _EPILOGUE:
                for wave in T.serial(waves):
                    tile = block + wave * blocks
                    t = wave % _ACCUMULATORS
                    T.mbarrier_wait_parity(summed[t], (wave // _ACCUMULATORS) % 2)
                    T.copy(sums[t, :, :], acc)
                    T.mbarrier_arrive(drained[t])
                    _store(
                        C, acc, c_tile, tile // columns * block_m, tile % columns * block_n,
                        accumulate, tiles, operands.copied,
                    )  # fmt: skip
            # The first warp deallocates tensor memory when it ends; all warps must have read it.
            T.sync_threads()

    return gemm_tcgen05_ws
