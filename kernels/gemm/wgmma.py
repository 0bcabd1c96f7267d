"""Warp-specialized matrix multiplication on Hopper (wgmma, sm_90a): `C = op(A) @ op(B)`.

Shapes and layout are those of `kernel`: A [M, K] or [K, M], B [K, N] or [N, K], C [M, N], all
row-major; float16 or bfloat16 inputs, float32 accumulation, rounded once to C. With `accumulate`
the old C is added.

A wgmma is issued by the 128 threads of a warp group, reads both operands from shared memory and
accumulates in the group's registers. It is asynchronous: the group waits for it before it releases
the stage. The kernel is persistent: a block computes one tile of C per wave, with three warp
groups.

==========  ============================  ====================================================
threads     warp role                     waits for
==========  ============================  ====================================================
0-127       consumer: multiplies and      `full[s]`: the data of stage s has arrived; the wgmma
            stores the upper half tile    of the previous step, before it releases its stage
128-255     consumer: the lower half      the same
256-383     producer: TMA loads of K      `empty[s]`: both consumers have released stage s
            steps, ahead into the next
            tile during the epilogue
==========  ============================  ====================================================

Waits for `empty` use the parity of the phase before the first: on a fresh barrier such a wait
passes, so all stages are initially free. The producer needs few registers and gives up the rest to
the consumers (`setmaxnreg`).

TMA copies boxes whose rows start at multiples of 16 bytes. Elements outside a tensor are loaded as
zeros, and are not stored.
"""

from dataclasses import dataclass

import tilelang
import tilelang.language as T

from tlmatrix_kernels.gemm.operands import op_tile, operands_of, row_multiple


@dataclass(frozen=True)
class WgmmaTiles:
    """Tile sizes in elements, and the number of pipeline stages."""

    half_m: int = 64
    """Rows per warp group: those of one wgmma. Two groups make a tile."""
    block_n: int = 128
    """64 float32 accumulators per thread; leaves shared memory for the tile of C."""
    block_k: int = 64
    """128 bytes of a 16-bit row: the widest swizzle of shared memory."""
    stages: int = 4
    """32 KiB each; with 64 KiB for a float32 tile of C, 192 of 227 KiB."""


WGMMA_TILES = WgmmaTiles()
WGMMA_WIDE = WgmmaTiles(block_n=256, stages=3)
"""128 accumulators per thread; 48 KiB per stage and 64 KiB for C in 16 bits, in all 208 KiB."""


def wgmma_tiles(size: str, out_dtype: str) -> WgmmaTiles:
    """The tiles for a size, "wide" or "narrow"; a float32 C leaves room for narrow ones only."""
    return WGMMA_WIDE if size == "wide" and out_dtype != "float32" else WGMMA_TILES


PANEL = 8
"""Height in tiles of the panels in which tiles are assigned, so that they share operands in L2."""
CONFIGS = {tilelang.PassConfigKey.TL_DISABLE_WARP_SPECIALIZED: True}
"""Warp specialization is written by hand."""
_PRODUCER = 256
"""The first thread of the producer."""
_PRODUCER_REGISTERS = 40
_CONSUMER_REGISTERS = 232


def _place(tile, rows, columns):
    """The row and column, in tiles, of the tile with a number; C has [rows, columns] tiles."""
    first = tile // (PANEL * columns) * PANEL
    height = T.max(T.min(PANEL, rows - first), 1)
    within = tile % (PANEL * columns)
    return first + within % height, within // height


@T.macro
def _consume(
    C, a_tiles, b_tiles, c_tiles, full, empty, work, half, orientation, accumulate, tiles, options
):
    """The consumer role: one half of every tile of the block.

    `work` is (block, blocks, waves, steps, rows, columns), the last two the tiles of C.
    """
    transpose_a, transpose_b = orientation
    block, blocks, waves, steps, rows, columns = work
    half_m, block_n, stages = tiles.half_m, tiles.block_n, tiles.stages
    acc = T.alloc_fragment([half_m, block_n], "float32")
    for wave in T.serial(waves):
        row, column = _place(block + wave * blocks, rows, columns)
        m = (row * 2 + half) * half_m
        n = column * block_n
        T.clear(acc)
        for step in T.serial(steps):
            count = wave * steps + step
            s = count % stages
            T.mbarrier_wait_parity(full[s], count // stages % 2)
            T.wgmma_gemm(a_tiles[s, half, :, :], b_tiles[s, :, :], acc, transpose_a, transpose_b)
            if step > 0:
                T.wait_wgmma(1)
                T.mbarrier_arrive(empty[(count - 1) % stages])
        T.wait_wgmma(0)
        T.mbarrier_arrive(empty[(wave * steps + steps - 1) % stages])
        if accumulate:
            for i, j in T.Parallel(half_m, block_n):
                acc[i, j] += T.cast(C[m + i, n + j], "float32")
        T.copy(acc, c_tiles[half, :, :])
        T.copy(c_tiles[half, :, :], C[m : m + half_m, n : n + block_n], annotations=options)


@tilelang.jit(pass_configs=CONFIGS)
def wgmma_ws_kernel(
    dtype: str,
    out_dtype: str,
    transpose_a: bool,
    transpose_b: bool,
    accumulate: bool,
    tma_store: bool,
    tiles: WgmmaTiles = WGMMA_TILES,
):
    """Build the kernel, called with (A, B, C, blocks).

    It always loads by TMA; with `tma_store` (rows of C are 16-byte multiples) it also stores by
    TMA.
    """
    orientation = (transpose_a, transpose_b)
    step_c = row_multiple(out_dtype) if tma_store else 1
    half_m, block_n, block_k, stages = tiles.half_m, tiles.block_n, tiles.block_k, tiles.stages
    steps = row_multiple(dtype), row_multiple(dtype), step_c
    operands = operands_of(orientation, (half_m, block_n, block_k), steps, tma=tma_store)
    M, N, K = operands.M, operands.N, operands.K

    @T.prim_func
    def gemm_wgmma_ws(
        A: T.Tensor(operands.a_shape, dtype),
        B: T.Tensor(operands.b_shape, dtype),
        C: T.Tensor([M, N], out_dtype),
        blocks: T.int32,
    ):
        with T.Kernel(blocks, threads=384) as block:
            a_tiles = T.alloc_shared((stages, 2, *operands.a_tile), dtype)
            b_tiles = T.alloc_shared((stages, *operands.b_tile), dtype)
            c_tiles = T.alloc_shared((2, half_m, block_n), out_dtype)
            full = T.alloc_barrier([128] * stages)
            empty = T.alloc_barrier([256] * stages)

            thread = T.get_thread_binding()
            steps = T.ceildiv(K, block_k)
            rows = T.ceildiv(M, 2 * half_m)
            columns = T.ceildiv(N, block_n)
            waves = T.ceildiv(rows * columns - block, blocks)
            T.assume(columns > 0)
            T.assume(blocks > 0)
            work = (block, blocks, waves, steps, rows, columns)
            if thread >= _PRODUCER:
                T.dec_max_nreg(_PRODUCER_REGISTERS)
                for wave in T.serial(waves):
                    row, column = _place(block + wave * blocks, rows, columns)
                    m = row * 2 * half_m
                    n = column * block_n
                    for step in T.serial(steps):
                        count = wave * steps + step
                        s = count % stages
                        k = step * block_k
                        T.mbarrier_wait_parity(empty[s], (count // stages + 1) % 2)
                        for half in T.unroll(2):
                            T.tma_copy(
                                op_tile(A, transpose_a, m + half * half_m, half_m, k, block_k),
                                a_tiles[s, half, :, :],
                                barrier=full[s],
                            )
                        T.tma_copy(
                            op_tile(B, transpose_b, k, block_k, n, block_n),
                            b_tiles[s, :, :],
                            barrier=full[s],
                        )
                        T.mbarrier_arrive(full[s])
            elif thread >= 128:
                T.inc_max_nreg(_CONSUMER_REGISTERS)
                _consume(
                    C, a_tiles, b_tiles, c_tiles, full, empty, work, 1,
                    orientation, accumulate, tiles, operands.copied,
                )  # fmt: skip
            else:
                T.inc_max_nreg(_CONSUMER_REGISTERS)
                _consume(
                    C, a_tiles, b_tiles, c_tiles, full, empty, work, 0,
                    orientation, accumulate, tiles, operands.copied,
                )  # fmt: skip

    return gemm_wgmma_ws
