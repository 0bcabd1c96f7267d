"""Matrix multiplication on Blackwell's tensor cores (tcgen05, sm_100a): `C = op(A) @ op(B)`.

Shapes and layout are those of `kernel`: A [M, K] or [K, M], B [K, N] or [N, K], C [M, N], all
row-major; float16 or bfloat16 in, float32 sums, rounded once into C. With `accumulate` the old
C is added to the sum.

A tcgen05 product is issued by one thread, reads both operands from shared memory and adds into
*tensor memory*, 128 lanes by 512 columns of 32 bits beside the registers. It runs on its own:
who needs its result, or the room of its operands, waits for a barrier at which the hardware
arrives when the product is complete. A tile of 128 x 128 sums takes 128 columns.

Two kernels:

`tcgen05_kernel`
    All threads of a block do the same: load a step of K, multiply, wait. The product of a step
    overlaps with the load of the next, nothing else.

`tcgen05_ws_kernel`
    Warp-specialised and persistent: a block takes tile after tile of C, and three roles work at
    once, each ahead of the next as far as its buffers allow.

    ==========  ============================  ================================================
    threads     role                          waits for
    ==========  ============================  ================================================
    0-31        loads steps of K by TMA       `empty[s]`: the product that read stage s is done
    32-63       issues products               `full[s]`: the bytes of stage s are there;
                                              `drained[t]`: accumulator t has been read
    128-255     stores tiles of C             `summed[t]`: the last product of tile t is done
    ==========  ============================  ================================================

    Threads 64-127 are idle: a warp reads only the 32 lanes of tensor memory that its number
    modulo 4 gives it, so four warps that start at a multiple of 128 threads read a tile.

    Barriers that guard a free buffer (`empty`, `drained`) are waited for with the parity of the
    phase *before* the first: a fresh barrier lets that wait pass, so every stage starts primed.

TMA copies boxes whose rows start at multiples of 16 bytes, and fills with zeros what lies outside
a tensor; zeros add nothing, and what lies outside C is not stored.
"""

from dataclasses import dataclass

import tilelang
import tilelang.language as T

from tlmatrix_kernels.gemm.boxes import NO_TMA, box, row_step, shapes, sizes

__all__ = [
    "RAGGED_TCGEN05_TILES",
    "TCGEN05_TILES",
    "Tcgen05Tiles",
    "tcgen05_kernel",
    "tcgen05_ws_kernel",
]


@dataclass(frozen=True)
class Tcgen05Tiles:
    """Tile edges in elements, and how many steps of K are in flight."""

    block_m: int = 128
    """The lanes of tensor memory."""
    block_n: int = 128
    """Two accumulators of 128 columns take half of tensor memory."""
    block_k: int = 64
    """128 bytes of a 16-bit row: the widest swizzle of shared memory."""
    stages: int = 4
    """32 KiB a stage; four cover the latency of a load, and leave room for a second block."""


TCGEN05_TILES = Tcgen05Tiles()
RAGGED_TCGEN05_TILES = Tcgen05Tiles(block_k=32)
"""For rows that TMA cannot load: threads load single elements, and with twice as many in a step
their addresses take 238 registers, or more than there are."""
CONFIGS = {tilelang.PassConfigKey.TL_DISABLE_WARP_SPECIALIZED: True}
"""Roles are written out. Those that the compiler makes by itself free a stage when its tcgen05
product is issued, not when it is complete: the next load would overwrite what it reads."""
PLAIN_THREADS = 256
"""64 sums of a tile each: with 128 the copies off TMA would spill their addresses."""
_EPILOGUE = 128
"""The first thread that stores."""
_ACCUMULATORS = 2
"""One fills while the other is stored."""


@T.macro
def _load(A, B, a_tiles, b_tiles, full, s, m, n, k, orientation, tiles, tma=True):
    """Fetch the tiles of op(A) and op(B) at m, n, k into stage s, and arrive at `full[s]`."""
    transpose_a, transpose_b = orientation
    block_m, block_n, block_k = tiles.block_m, tiles.block_n, tiles.block_k
    if tma:
        T.tma_copy(box(A, transpose_a, m, block_m, k, block_k), a_tiles[s, :, :], barrier=full[s])
        T.tma_copy(box(B, transpose_b, k, block_k, n, block_n), b_tiles[s, :, :], barrier=full[s])
    else:
        T.copy(box(A, transpose_a, m, block_m, k, block_k), a_tiles[s, :, :], annotations=NO_TMA)
        T.copy(box(B, transpose_b, k, block_k, n, block_n), b_tiles[s, :, :], annotations=NO_TMA)
    T.mbarrier_arrive(full[s])


@T.macro
def _store(C, acc, c_tile, m, n, accumulate, tiles, options):
    """Write a tile of sums, with what C held if `accumulate`.

    By way of shared memory, because a thread has a whole row of the tile in its registers.
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
    """Build the kernel whose threads all do the same; `tma`: the rows of A, B and C allow it."""
    orientation = (transpose_a, transpose_b)
    steps = (row_step(dtype), row_step(dtype), row_step(out_dtype)) if tma else ()
    M, N, K = sizes(orientation, *steps)
    block_m, block_n, block_k = tiles.block_m, tiles.block_n, tiles.block_k
    a_shape, b_shape = shapes(orientation, M, N, K)
    a_box, b_box = shapes(orientation, block_m, block_n, block_k)
    options = {} if tma else NO_TMA

    @T.prim_func
    def gemm_tcgen05(
        A: T.Tensor(a_shape, dtype), B: T.Tensor(b_shape, dtype), C: T.Tensor([M, N], out_dtype)
    ):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=PLAIN_THREADS) as (
            bn,
            bm,
        ):
            a_tiles = T.alloc_shared((2, *a_box), dtype)
            b_tiles = T.alloc_shared((2, *b_box), dtype)
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
                if step + 1 < steps:  # the product that read the other stage is complete
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
            _store(C, acc, c_tile, bm * block_m, bn * block_n, accumulate, tiles, options)

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
    """Build the warp-specialised kernel; it is called with (A, B, C, blocks).

    It loads by TMA always, and stores so with `tma_store`, where the rows of C allow it.
    """
    orientation = (transpose_a, transpose_b)
    step_c = row_step(out_dtype) if tma_store else 1
    M, N, K = sizes(orientation, row_step(dtype), row_step(dtype), step_c)
    block_m, block_n, block_k, stages = tiles.block_m, tiles.block_n, tiles.block_k, tiles.stages
    a_shape, b_shape = shapes(orientation, M, N, K)
    a_box, b_box = shapes(orientation, block_m, block_n, block_k)
    options = {} if tma_store else NO_TMA

    @T.prim_func
    def gemm_tcgen05_ws(
        A: T.Tensor(a_shape, dtype),
        B: T.Tensor(b_shape, dtype),
        C: T.Tensor([M, N], out_dtype),
        blocks: T.int32,
    ):
        with T.Kernel(blocks, threads=256) as block:
            a_tiles = T.alloc_shared((stages, *a_box), dtype)
            b_tiles = T.alloc_shared((stages, *b_box), dtype)
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
            turns = T.ceildiv(T.ceildiv(M, block_m) * columns - block, blocks)

            T.assume(columns > 0)
            T.assume(blocks > 0)
            if thread < 32:
                for turn in T.serial(turns):
                    tile = block + turn * blocks
                    for step in T.serial(steps):
                        count = turn * steps + step
                        s = count % stages
                        T.mbarrier_wait_parity(empty[s], (count // stages + 1) % 2)
                        _load(
                            A, B, a_tiles, b_tiles, full, s, tile // columns * block_m,
                            tile % columns * block_n, step * block_k, orientation, tiles,
                        )  # fmt: skip
            elif thread < 64:
                for turn in T.serial(turns):
                    t = turn % _ACCUMULATORS
                    T.mbarrier_wait_parity(drained[t], (turn // _ACCUMULATORS + 1) % 2)
                    for step in T.serial(steps):
                        count = turn * steps + step
                        s = count % stages
                        T.mbarrier_wait_parity(full[s], (count // stages) % 2)
                        T.tcgen05_gemm(
                            a_tiles[s, :, :], b_tiles[s, :, :], sums[t, :, :],
                            transpose_a, transpose_b, mbar=empty[s], clear_accum=step == 0,
                        )  # fmt: skip
                    T.tcgen05_mma_arrive(summed[t])
            elif thread >= _EPILOGUE:
                for turn in T.serial(turns):
                    tile = block + turn * blocks
                    t = turn % _ACCUMULATORS
                    T.mbarrier_wait_parity(summed[t], (turn // _ACCUMULATORS) % 2)
                    T.copy(sums[t, :, :], acc)
                    T.mbarrier_arrive(drained[t])
                    _store(
                        C, acc, c_tile, tile // columns * block_m, tile % columns * block_n,
                        accumulate, tiles, options,
                    )  # fmt: skip
            # The first warp frees tensor memory at its end: not before it has been read.
            T.sync_threads()

    return gemm_tcgen05_ws
