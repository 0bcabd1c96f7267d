"""Tiled matrix multiplication, `C = op(A) @ op(B)` or `C += op(A) @ op(B)`.

Shapes and layout, all row-major:

    A [M, K], or [K, M] when transpose_a      float16 or bfloat16
    B [K, N], or [N, K] when transpose_b      the dtype of A
    C [M, N]                                  out_dtype

One block makes one `block_m x block_n` tile of C. It walks K in steps of `block_k`, with the
next tiles of A and B in flight while the tensor cores work on the current ones, and keeps the
sum in a float32 fragment until the end, so that the result is rounded once.

M, N and K are symbolic: one compiled kernel serves every shape. Tiles at the edge read zeros
outside A and B, which add nothing, and what they hold outside C is not stored: `T.copy` guards
both.

Two kernels come of it: with `whole_rows` for A and B with rows of multiples of 8 elements (16
bytes), which the copy engine or `cp.async` loads, and one for rows of any length (`boxes`).
"""

import tilelang
import tilelang.language as T

from tlmatrix_kernels.gemm.boxes import NO_TMA, box, row_step, shapes, sizes
from tlmatrix_kernels.gemm.tiles import Tiles, gemm_tiles
from tlmatrix_kernels.target import capability

__all__ = ["PANEL", "gemm_kernel"]

PANEL = 8
"""Tiles wide that blocks walk through together: what they read then stays in the L2 cache."""


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
    """The kernel of one dtype and orientation; it writes C, and with `accumulate` reads it too.

    `size` picks the tiles for the target (see `tiles`), where they are not given.
    """
    tiles = tiles or gemm_tiles(capability(), size, whole_rows=whole_rows)
    orientation = (transpose_a, transpose_b)
    M, N, K = sizes(orientation, *([row_step(dtype)] * 2 if whole_rows else []))
    block_m, block_n, block_k = tiles.block_m, tiles.block_n, tiles.block_k
    a_shape, b_shape = shapes(orientation, M, N, K)
    a_box, b_box = shapes(orientation, block_m, block_n, block_k)
    options = {} if whole_rows else NO_TMA

    @T.prim_func
    def gemm(
        A: T.Tensor(a_shape, dtype), B: T.Tensor(b_shape, dtype), C: T.Tensor([M, N], out_dtype)
    ):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=tiles.threads) as (
            bn,
            bm,
        ):
            a_tile = T.alloc_shared(a_box, dtype)
            b_tile = T.alloc_shared(b_box, dtype)
            acc = T.alloc_fragment([block_m, block_n], "float32")
            T.use_swizzle(PANEL)

            if accumulate:
                T.copy(C[bm * block_m, bn * block_n], acc)
            else:
                T.clear(acc)
            for bk in T.Pipelined(T.ceildiv(K, block_k), num_stages=tiles.num_stages):
                T.copy(
                    box(A, transpose_a, bm * block_m, block_m, bk * block_k, block_k),
                    a_tile,
                    annotations=options,
                )
                T.copy(
                    box(B, transpose_b, bk * block_k, block_k, bn * block_n, block_n),
                    b_tile,
                    annotations=options,
                )
                T.gemm(a_tile, b_tile, acc, transpose_A=transpose_a, transpose_B=transpose_b)
            T.copy(acc, C[bm * block_m, bn * block_n])

    return gemm
