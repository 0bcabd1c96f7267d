"""Warp-specialised matrix multiplication on Hopper (wgmma, sm_90a): `C = op(A) @ op(B)`.

Shapes and layout are those of `kernel`: A [M, K] or [K, M], B [K, N] or [N, K], C [M, N], all
row-major; float16 or bfloat16 in, float32 sums, rounded once into C. With `accumulate` the old
C is added to the sum.

A wgmma product is issued by the 128 threads of a warp group, reads both operands from shared
memory and adds into the group's registers, on its own: the group waits for it before it gives the
operands' room back. The kernel is persistent: a block takes tile after tile of C, and three warp
groups work at once.

==========  ============================  ====================================================
threads     role                          waits for
==========  ============================  ====================================================
0-127       multiplies and stores the     `full[s]`: the bytes of stage s are there; the product
            upper half of the tile        of the step before, after which its stage is empty
128-255     the same, the lower half      the same
256-383     loads steps of K by TMA,      `empty[s]`: both groups are done with stage s
            also of the next tile while
            this one is stored
==========  ============================  ====================================================

`empty` is waited for with the parity of the phase before the first: a fresh barrier lets that wait
pass, so every stage starts primed. The loading group needs few registers and gives the others
its share.

TMA copies boxes whose rows start at multiples of 16 bytes, and fills with zeros what lies outside
a tensor; zeros add nothing, and what lies outside C is not stored.
"""

from dataclasses import dataclass

import tilelang
import tilelang.language as T

from tlmatrix_kernels.gemm.boxes import NO_TMA, box, row_step, shapes, sizes

__all__ = ["WGMMA_TILES", "WgmmaTiles", "wgmma_ws_kernel"]


@dataclass(frozen=True)
class WgmmaTiles:
    """Tile edges in elements, and how many steps of K are in flight."""

    half_m: int = 64
    """Rows of a warp group: what one wgmma has. Two groups make a tile."""
    block_n: int = 128
    """64 float32 sums a thread, which leaves room in shared memory for the tile to be stored."""
    block_k: int = 64
    """128 bytes of a 16-bit row: the widest swizzle of shared memory."""
    stages: int = 4
    """32 KiB each; with 64 KiB for a float32 tile of C, 192 of 227."""


WGMMA_TILES = WgmmaTiles()
CONFIGS = {tilelang.PassConfigKey.TL_DISABLE_WARP_SPECIALIZED: True}
"""Roles are written out."""
_LOADS = 256
"""The first thread of the group that loads."""
_LOAD_REGISTERS = 40
_PRODUCT_REGISTERS = 232


@T.macro
def _multiply(
    C, a_tiles, b_tiles, c_tiles, full, empty, work, half, orientation, accumulate, tiles, options
):
    """The role of one multiplying group: its half of every tile of the block."""
    transpose_a, transpose_b = orientation
    block, blocks, turns, steps, columns = work
    half_m, block_n, stages = tiles.half_m, tiles.block_n, tiles.stages
    acc = T.alloc_fragment([half_m, block_n], "float32")
    for turn in T.serial(turns):
        tile = block + turn * blocks
        m = (tile // columns * 2 + half) * half_m
        n = tile % columns * block_n
        T.clear(acc)
        for step in T.serial(steps):
            count = turn * steps + step
            s = count % stages
            T.mbarrier_wait_parity(full[s], count // stages % 2)
            T.wgmma_gemm(a_tiles[s, half, :, :], b_tiles[s, :, :], acc, transpose_a, transpose_b)
            if step > 0:
                T.wait_wgmma(1)
                T.mbarrier_arrive(empty[(count - 1) % stages])
        T.wait_wgmma(0)
        T.mbarrier_arrive(empty[(turn * steps + steps - 1) % stages])
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
    """Build the kernel; it is called with (A, B, C, blocks).

    It loads by TMA always, and stores so with `tma_store`, where the rows of C allow it.
    """
    orientation = (transpose_a, transpose_b)
    step_c = row_step(out_dtype) if tma_store else 1
    M, N, K = sizes(orientation, row_step(dtype), row_step(dtype), step_c)
    half_m, block_n, block_k, stages = tiles.half_m, tiles.block_n, tiles.block_k, tiles.stages
    a_shape, b_shape = shapes(orientation, M, N, K)
    a_box, b_box = shapes(orientation, half_m, block_n, block_k)
    options = {} if tma_store else NO_TMA

    @T.prim_func
    def gemm_wgmma_ws(
        A: T.Tensor(a_shape, dtype),
        B: T.Tensor(b_shape, dtype),
        C: T.Tensor([M, N], out_dtype),
        blocks: T.int32,
    ):
        with T.Kernel(blocks, threads=384) as block:
            a_tiles = T.alloc_shared((stages, 2, *a_box), dtype)
            b_tiles = T.alloc_shared((stages, *b_box), dtype)
            c_tiles = T.alloc_shared((2, half_m, block_n), out_dtype)
            full = T.alloc_barrier([128] * stages)
            empty = T.alloc_barrier([256] * stages)

            thread = T.get_thread_binding()
            steps = T.ceildiv(K, block_k)
            columns = T.ceildiv(N, block_n)
            turns = T.ceildiv(T.ceildiv(M, 2 * half_m) * columns - block, blocks)
            T.assume(columns > 0)
            T.assume(blocks > 0)
            work = (block, blocks, turns, steps, columns)
            if thread >= _LOADS:
                T.dec_max_nreg(_LOAD_REGISTERS)
                for turn in T.serial(turns):
                    tile = block + turn * blocks
                    for step in T.serial(steps):
                        count = turn * steps + step
                        s = count % stages
                        m = tile // columns * 2 * half_m
                        n = tile % columns * block_n
                        k = step * block_k
                        T.mbarrier_wait_parity(empty[s], (count // stages + 1) % 2)
                        for half in T.unroll(2):
                            T.tma_copy(
                                box(A, transpose_a, m + half * half_m, half_m, k, block_k),
                                a_tiles[s, half, :, :],
                                barrier=full[s],
                            )
                        T.tma_copy(
                            box(B, transpose_b, k, block_k, n, block_n),
                            b_tiles[s, :, :],
                            barrier=full[s],
                        )
                        T.mbarrier_arrive(full[s])
            elif thread >= 128:
                T.inc_max_nreg(_PRODUCT_REGISTERS)
                _multiply(
                    C, a_tiles, b_tiles, c_tiles, full, empty, work, 1,
                    orientation, accumulate, tiles, options,
                )  # fmt: skip
            else:
                T.inc_max_nreg(_PRODUCT_REGISTERS)
                _multiply(
                    C, a_tiles, b_tiles, c_tiles, full, empty, work, 0,
                    orientation, accumulate, tiles, options,
                )  # fmt: skip

    return gemm_wgmma_ws
