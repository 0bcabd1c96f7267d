"""Tiled matrix multiplication, `C = op(A) @ op(B)` or `C += op(A) @ op(B)`.

Shapes and layout, all row-major:

    A [M, K], or [K, M] when transpose_a      float16 or bfloat16
    B [K, N], or [N, K] when transpose_b      the dtype of A
    C [M, N]                                  out_dtype

One block computes one `block_m x block_n` tile of C. It iterates over K in steps of `block_k`,
loading the next tiles of A and B while the tensor cores work on the current ones, and accumulates
in a float32 fragment, so that the result is rounded once.

M, N and K are symbolic: one compiled kernel serves every shape. Partial tiles read zeros outside A
and B, and are not stored outside C; `T.copy` guards both.

There are two variants: with `whole_rows` for A and B whose rows are multiples of 16 bytes (8
elements), loaded by TMA or `cp.async`; and one for rows of any length (see `operands`).
"""

import tilelang
import tilelang.language as T

from tlmatrix_kernels.gemm.operands import NO_TMA, op_shapes, op_tile, row_multiple, symbolic_mnk
from tlmatrix_kernels.gemm.tiles import Tiles, gemm_tiles
from tlmatrix_kernels.target import capability

PANEL = 8
"""Width in tiles of the panels in which blocks traverse C, so that they share operands in L2."""


@tilelang.jit
def gemm_kernel(
    dtype: str,
    out_dtype: str,
    transpose_a: bool,
    transpose_b: bool,
    accumulate: bool,
    whole_rows: bool,
    size: str = "narrow",
    tiles: Tiles | None = None,
):
    """Build the kernel of one dtype and orientation; with `accumulate` it adds to C.

    `size` selects the tiles for the target (see `tiles`) if `tiles` is None.
    """
    tiles = tiles or gemm_tiles(capability(), size, whole_rows=whole_rows)
    orientation = (transpose_a, transpose_b)
    M, N, K = symbolic_mnk(orientation, *([row_multiple(dtype)] * 2 if whole_rows else []))
    block_m, block_n, block_k = tiles.block_m, tiles.block_n, tiles.block_k
    a_shape, b_shape = op_shapes(orientation, M, N, K)
    a_tile_shape, b_tile_shape = op_shapes(orientation, block_m, block_n, block_k)
    options = {} if whole_rows else NO_TMA

    @T.prim_func
    def gemm(
        A: T.Tensor(a_shape, dtype), B: T.Tensor(b_shape, dtype), C: T.Tensor([M, N], out_dtype)
    ):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=tiles.threads) as (
            bn,
            bm,
        ):
            a_tile = T.alloc_shared(a_tile_shape, dtype)
            b_tile = T.alloc_shared(b_tile_shape, dtype)
            acc = T.alloc_fragment([block_m, block_n], "float32")
            T.use_swizzle(PANEL)

            if accumulate:
                T.copy(C[bm * block_m, bn * block_n], acc)
            else:
                T.clear(acc)
            for bk in T.Pipelined(T.ceildiv(K, block_k), num_stages=tiles.num_stages):
                T.copy(
                    op_tile(A, transpose_a, bm * block_m, block_m, bk * block_k, block_k),
                    a_tile,
                    annotations=options,
                )
                T.copy(
                    op_tile(B, transpose_b, bk * block_k, block_k, bn * block_n, block_n),
                    b_tile,
                    annotations=options,
                )
                T.gemm(a_tile, b_tile, acc, transpose_A=transpose_a, transpose_B=transpose_b)
            T.copy(acc, C[bm * block_m, bn * block_n])

    return gemm
