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

from dataclasses import dataclass
from typing import Any

import tilelang
import tilelang.language as T

from tlmatrix_kernels.distributed import signals
from tlmatrix_kernels.distributed.swizzle import ordered_tile
from tlmatrix_kernels.gemm.operands import NO_TMA, op_shapes, op_tile, row_multiple, symbolic_mnk
from tlmatrix_kernels.gemm.tiles import Tiles, gemm_tiles
from tlmatrix_kernels.target import capability


@dataclass(frozen=True)
class _Config:
    """Compile-time configuration of a kernel; M, N and K are symbolic."""

    tiles: Tiles
    transpose_b: bool
    M: Any
    N: Any
    K: Any
    a_shape: Any
    b_shape: Any
    a_tile_shape: Any
    b_tile_shape: Any
    options: Any


def _config(dtype, transpose_b, whole_rows, size):
    orientation = (False, transpose_b)
    tiles = gemm_tiles(capability(), size, whole_rows=whole_rows)
    M, N, K = symbolic_mnk(orientation, *([row_multiple(dtype)] * 2 if whole_rows else []))
    return _Config(
        tiles, transpose_b, M, N, K,
        *op_shapes(orientation, M, N, K),
        *op_shapes(orientation, tiles.block_m, tiles.block_n, tiles.block_k),
        {} if whole_rows else NO_TMA,
    )  # fmt: skip


def _begin(rows, world, rank):
    """The first row of `rank`, like `partition.row_range` for expressions."""
    return rank * (rows // world) + T.min(rank, rows % world)


def _ordered(tile, first, panel, cfg):
    """The tile row and tile column of block `tile`, as expressions."""
    tiles_m, tiles_n = T.ceildiv(cfg.M, cfg.tiles.block_m), T.ceildiv(cfg.N, cfg.tiles.block_n)
    return ordered_tile(tile, tiles_m, tiles_n, first, panel, T.min)


@T.macro
def _sum_tile(A, B, a_tile, b_tile, acc, m, n, cfg):
    """Accumulate the tile of A @ op(B) at [m, n] into `acc`."""
    tiles, turned = cfg.tiles, cfg.transpose_b
    T.clear(acc)
    for step in T.Pipelined(T.ceildiv(cfg.K, tiles.block_k), num_stages=tiles.num_stages):
        k = step * tiles.block_k
        T.copy(
            op_tile(A, False, m, tiles.block_m, k, tiles.block_k), a_tile, annotations=cfg.options
        )
        T.copy(
            op_tile(B, turned, k, tiles.block_k, n, tiles.block_n), b_tile, annotations=cfg.options
        )
        T.gemm(a_tile, b_tile, acc, transpose_B=turned)


@tilelang.jit
def gemm_on_arrival(
    dtype: str, out_dtype: str, transpose_b: bool, whole_rows: bool, size: str = "wide"
):
    """Build the kernel, called with (A, B, C, ready, epoch, first, panel)."""
    cfg = _config(dtype, transpose_b, whole_rows, size)
    M, N, world = cfg.M, cfg.N, T.dynamic("world")
    block_m, block_n = cfg.tiles.block_m, cfg.tiles.block_n

    @T.prim_func
    def gemm_arrival(
        A: T.Tensor(cfg.a_shape, dtype),
        B: T.Tensor(cfg.b_shape, dtype),
        C: T.Tensor([M, N], out_dtype),
        ready: T.Tensor([world], "int32"),
        epoch: T.int32,
        first: T.int32,
        panel: T.int32,
    ):
        with T.Kernel(
            T.ceildiv(N, block_n) * T.ceildiv(M, block_m), threads=cfg.tiles.threads
        ) as tile:
            T.annotate_restrict_buffers(A)
            T.import_source(signals.source(cfg.tiles.threads))
            a_tile = T.alloc_shared(cfg.a_tile_shape, dtype)
            b_tile = T.alloc_shared(cfg.b_tile_shape, dtype)
            acc = T.alloc_fragment([block_m, block_n], "float32")
            T.assume(panel > 0)
            T.assume(first >= 0)
            T.assume(world > 0)
            at_m, at_n = _ordered(tile, first, panel, cfg)
            # Variables, or TileLang would repeat the divisions at each use.
            bm = T.alloc_var("int32", init=at_m)
            bn = T.alloc_var("int32", init=at_n)
            m, n = bm * block_m, bn * block_n
            for owner in T.serial(world):
                begin, end = _begin(M, world, owner), _begin(M, world, owner + 1)
                if begin < m + block_m and end > m and begin < end:
                    signals.wait(ready, owner, epoch)
            _sum_tile(A, B, a_tile, b_tile, acc, m, n, cfg)
            T.copy(acc, C[bm * block_m, bn * block_n])

    return gemm_arrival


@tilelang.jit
def gemm_signalling(
    dtype: str, out_dtype: str, transpose_b: bool, whole_rows: bool, size: str = "wide"
):
    """Build the kernel, called with (A, B, C, done, made, first, panel, rank, base, step)."""
    cfg = _config(dtype, transpose_b, whole_rows, size)
    M, N = cfg.M, cfg.N
    world, segments = T.dynamic("world"), T.dynamic("segments")
    block_m, block_n = cfg.tiles.block_m, cfg.tiles.block_n

    @T.prim_func
    def gemm_signals(
        A: T.Tensor(cfg.a_shape, dtype),
        B: T.Tensor(cfg.b_shape, dtype),
        C: T.Tensor([M, N], out_dtype),
        done: T.Tensor([world], "int32"),
        made: T.Tensor([segments], "int32"),
        first: T.int32,
        panel: T.int32,
        rank: T.int32,
        base: T.int32,
        step: T.int32,
    ):
        with T.Kernel(
            T.ceildiv(N, block_n) * T.ceildiv(M, block_m), threads=cfg.tiles.threads
        ) as tile:
            T.import_source(signals.source(cfg.tiles.threads))
            a_tile = T.alloc_shared(cfg.a_tile_shape, dtype)
            b_tile = T.alloc_shared(cfg.b_tile_shape, dtype)
            acc = T.alloc_fragment([block_m, block_n], "float32")
            T.assume(panel > 0)
            T.assume(first >= 0)
            T.assume(world > 0)
            T.assume(step > 0)
            at_m, at_n = _ordered(tile, first, panel, cfg)
            # Variables, or TileLang would repeat the divisions at each use.
            bm = T.alloc_var("int32", init=at_m)
            bn = T.alloc_var("int32", init=at_n)
            m, n = bm * block_m, bn * block_n
            _sum_tile(A, B, a_tile, b_tile, acc, m, n, cfg)
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
