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

from tlmatrix_kernels.gemm.operands import loaded_operands, sum_products
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
    operands = loaded_operands(dtype, (transpose_a, transpose_b), tiles, whole_rows=whole_rows)
    M, N, K = operands.M, operands.N, operands.K
    block_m, block_n, block_k = tiles.block_m, tiles.block_n, tiles.block_k

    @T.prim_func
    def gemm(
        A: T.Tensor(operands.a_shape, dtype),
        B: T.Tensor(operands.b_shape, dtype),
        C: T.Tensor([M, N], out_dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=tiles.threads) as (
            bn,
            bm,
        ):
            a_tile = T.alloc_shared(operands.a_tile, dtype)
            b_tile = T.alloc_shared(operands.b_tile, dtype)
            acc = T.alloc_fragment([block_m, block_n], "float32")
            T.use_swizzle(PANEL)

            if accumulate:
                T.copy(C[bm * block_m, bn * block_n], acc)
            else:
                T.clear(acc)
            sum_products(
                A, B, a_tile, b_tile, acc, bm * block_m, bn * block_n, 0, T.ceildiv(K, block_k),
                operands, tiles,
            )  # fmt: skip
            T.copy(acc, C[bm * block_m, bn * block_n])

    return gemm
