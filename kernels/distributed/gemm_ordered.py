"""GEMM kernels that wait for rows of A to arrive, or signal the rows of C that are complete.

Shapes and layout are those of `tlmatrix_kernels.gemm.kernel`, and so is the loop over K:

    A [M, K]                          float16 or bfloat16
    B [K, N], or [N, K] transposed    the dtype of A
    C [M, N]                          out_dtype

The M rows are partitioned over `world` ranks (`partition.row_range`); a tile may have rows of
several. Tiles are computed in the order of `swizzle.ordered_tile`. M, N, K and world are symbolic.

`gemm_on_arrival`
    A tile waits until `ready[r] >= epoch` for every owner r of its rows.

`gemm_signalling`
    After storing a tile, the block adds the number of its elements that rank r owns to `done[r]`,
    for every other owner r, with release at system scope. A reader that acquires the total over its
    rows, on any GPU, sees them complete; the total does not depend on the tile size. Elements of
    `rank` itself are added to `made[i]`, where i is the segment of its rows (see `segments`).

In TileLang 0.1.15 for sm_90a they compile to the loops of `gemm_kernel`, with 128 TMA producer
threads and 256 consumer threads (test_assembly.py). All threads wait before the warp roles split;
the consumers add to the flags (see `signals`). The cost per tile is the load of a flag that is
nearly always set, and one atomic.
"""

import tilelang
import tilelang.language as T

from tlmatrix_kernels.distributed import signals
from tlmatrix_kernels.distributed.swizzle import ordered_tile
from tlmatrix_kernels.gemm.operands import loaded_operands, sum_products
from tlmatrix_kernels.gemm.tiles import gemm_tiles
from tlmatrix_kernels.target import capability


def _sizes(dtype, transpose_b, whole_rows, size):
    """The tiles and operands of a kernel."""
    tiles = gemm_tiles(capability(), size, whole_rows=whole_rows)
    return tiles, loaded_operands(dtype, (False, transpose_b), tiles, whole_rows=whole_rows)


def _begin(rows, world, rank):
    """The first row of `rank`, like `partition.row_range` for expressions."""
    return rank * (rows // world) + T.min(rank, rows % world)


def _ordered(tile, first, panel, operands, tiles):
    """The tile row and tile column of block `tile`, as expressions."""
    tiles_m, tiles_n = T.ceildiv(operands.M, tiles.block_m), T.ceildiv(operands.N, tiles.block_n)
    return ordered_tile(tile, tiles_m, tiles_n, first, panel, T.min)


@tilelang.jit
def gemm_on_arrival(
    dtype: str, out_dtype: str, transpose_b: bool, whole_rows: bool, size: str = "wide"
):
    """Build the kernel, called with (A, B, C, ready, epoch, first, panel)."""
    tiles, operands = _sizes(dtype, transpose_b, whole_rows, size)
    M, N, K, world = operands.M, operands.N, operands.K, T.dynamic("world")
    block_m, block_n = tiles.block_m, tiles.block_n

    @T.prim_func
    def gemm_arrival(
        A: T.Tensor(operands.a_shape, dtype),
        B: T.Tensor(operands.b_shape, dtype),
        C: T.Tensor([M, N], out_dtype),
        ready: T.Tensor([world], "int32"),
        epoch: T.int32,
        first: T.int32,
        panel: T.int32,
    ):
        with T.Kernel(T.ceildiv(N, block_n) * T.ceildiv(M, block_m), threads=tiles.threads) as tile:
            T.annotate_restrict_buffers(A)
            T.import_source(signals.source(tiles.threads))
            a_tile = T.alloc_shared(operands.a_tile, dtype)
            b_tile = T.alloc_shared(operands.b_tile, dtype)
            acc = T.alloc_fragment([block_m, block_n], "float32")
            T.assume(panel > 0)
            T.assume(first >= 0)
            T.assume(world > 0)
            at_m, at_n = _ordered(tile, first, panel, operands, tiles)
            # Variables, or TileLang would repeat the divisions at each use.
            bm = T.alloc_var("int32", init=at_m)
            bn = T.alloc_var("int32", init=at_n)
            m, n = bm * block_m, bn * block_n
            for owner in T.serial(world):
                begin, end = _begin(M, world, owner), _begin(M, world, owner + 1)
                if begin < m + block_m and end > m and begin < end:
                    signals.wait(ready, owner, epoch)
            T.clear(acc)
            sum_products(
                A, B, a_tile, b_tile, acc, m, n, 0, T.ceildiv(K, tiles.block_k), operands, tiles
            )
            T.copy(acc, C[bm * block_m, bn * block_n])

    return gemm_arrival


@tilelang.jit
def gemm_signalling(
    dtype: str, out_dtype: str, transpose_b: bool, whole_rows: bool, size: str = "wide"
):
    """Build the kernel, called with (A, B, C, done, made, first, panel, rank, base, step)."""
    tiles, operands = _sizes(dtype, transpose_b, whole_rows, size)
    M, N, K = operands.M, operands.N, operands.K
    world, segments = T.dynamic("world"), T.dynamic("segments")
    block_m, block_n = tiles.block_m, tiles.block_n

    @T.prim_func
    def gemm_signals(
        A: T.Tensor(operands.a_shape, dtype),
        B: T.Tensor(operands.b_shape, dtype),
        C: T.Tensor([M, N], out_dtype),
        done: T.Tensor([world], "int32"),
        made: T.Tensor([segments], "int32"),
        first: T.int32,
        panel: T.int32,
        rank: T.int32,
        base: T.int32,
        step: T.int32,
    ):
        with T.Kernel(T.ceildiv(N, block_n) * T.ceildiv(M, block_m), threads=tiles.threads) as tile:
            T.import_source(signals.source(tiles.threads))
            a_tile = T.alloc_shared(operands.a_tile, dtype)
            b_tile = T.alloc_shared(operands.b_tile, dtype)
            acc = T.alloc_fragment([block_m, block_n], "float32")
            T.assume(panel > 0)
            T.assume(first >= 0)
            T.assume(world > 0)
            T.assume(step > 0)
            at_m, at_n = _ordered(tile, first, panel, operands, tiles)
            # Variables, or TileLang would repeat the divisions at each use.
            bm = T.alloc_var("int32", init=at_m)
            bn = T.alloc_var("int32", init=at_n)
            m, n = bm * block_m, bn * block_n
            T.clear(acc)
            sum_products(
                A, B, a_tile, b_tile, acc, m, n, 0, T.ceildiv(K, tiles.block_k), operands, tiles
            )
            T.copy(acc, C[bm * block_m, bn * block_n])
            for owner in T.serial(world):
                begin, end = _begin(M, world, owner), _begin(M, world, owner + 1)
                rows = T.min(end, m + block_m) - T.max(begin, m)
                if rows > 0:
                    if owner == rank:
                        signals.add(made, (m - base) // step, rows * T.min(N - n, block_n))
                    else:
                        signals.add(done, owner, rows * T.min(N - n, block_n))

    return gemm_signals
