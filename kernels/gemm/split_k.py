"""Split-K matrix multiplication, for few output tiles and a long K: `C = op(A) @ op(B)`.

Shapes and layout are those of `kernel`, all row-major: A [M, K] or [K, M], B [K, N] or [N, K],
float16 or bfloat16; C [M, N]. With few tiles of C most multiprocessors would idle. Here each tile
of C has `splits` blocks, and each block sums one slice of K in float32. Two ways to add the slices:

`partial_sums_kernel`, then `combine_kernel`
    Each block writes its partial sums to a workspace P [splits, M, N] (float32), and a second
    kernel adds the slices in order. Bitwise reproducible.

`atomic_sums_kernel`
    Each block adds its partial sums by float32 atomics to S [M, N], which is initialized to zero
    (or to the addend). One kernel less and a smaller workspace, but the order of the additions, and
    so the last bits, vary from run to run.

Slice s covers the K steps from `s * steps` up to `(s + 1) * steps`, with `splits * steps` steps
covering K. All slices have the same number of steps, so the loop length is the same in all blocks.
Steps beyond K read zeros; an empty slice writes zeros, since the workspace is uninitialized.

M, N, K and splits are symbolic: one compiled kernel serves every shape. `T.copy` reads zeros
outside A and B, and stores nothing outside P. `whole_rows` as in `kernel`.
"""

import tilelang
import tilelang.language as T

from tlmatrix_kernels.gemm.operands import loaded_operands, sum_products
from tlmatrix_kernels.gemm.tiles import split_tiles
from tlmatrix_kernels.target import capability

COMBINED = 1024
"""Elements of C per block of `combine_kernel`: 8 per thread, two 16-byte loads per slice."""


@tilelang.jit
def partial_sums_kernel(
    dtype: str, transpose_a: bool, transpose_b: bool, whole_rows: bool, size: str
):
    """Build the kernel that writes the partial sums of every slice; called with (A, B, P)."""
    tiles = split_tiles(capability(), size, whole_rows=whole_rows)
    operands = loaded_operands(dtype, (transpose_a, transpose_b), tiles, whole_rows=whole_rows)
    M, N, K, splits = operands.M, operands.N, operands.K, T.dynamic("splits")
    block_m, block_n, block_k = tiles.block_m, tiles.block_n, tiles.block_k

    @T.prim_func
    def gemm_partial_sums(
        A: T.Tensor(operands.a_shape, dtype),
        B: T.Tensor(operands.b_shape, dtype),
        P: T.Tensor([splits, M, N], "float32"),
    ):
        with T.Kernel(
            T.ceildiv(N, block_n), T.ceildiv(M, block_m), splits, threads=tiles.threads
        ) as (bn, bm, s):
            a_tile = T.alloc_shared(operands.a_tile, dtype)
            b_tile = T.alloc_shared(operands.b_tile, dtype)
            acc = T.alloc_fragment([block_m, block_n], "float32")
            steps = T.ceildiv(T.ceildiv(K, block_k), splits)
            m, n = bm * block_m, bn * block_n
            T.clear(acc)
            sum_products(A, B, a_tile, b_tile, acc, m, n, s * steps, steps, operands, tiles)
            T.copy(acc, P[s, m : m + block_m, n : n + block_n])

    return gemm_partial_sums


@tilelang.jit
def atomic_sums_kernel(
    dtype: str, transpose_a: bool, transpose_b: bool, whole_rows: bool, size: str
):
    """Build the kernel that adds every slice to S by atomics; called with (A, B, S, splits)."""
    tiles = split_tiles(capability(), size, whole_rows=whole_rows)
    operands = loaded_operands(dtype, (transpose_a, transpose_b), tiles, whole_rows=whole_rows)
    M, N, K = operands.M, operands.N, operands.K
    block_m, block_n, block_k = tiles.block_m, tiles.block_n, tiles.block_k

    @T.prim_func
    def gemm_atomic_sums(
        A: T.Tensor(operands.a_shape, dtype),
        B: T.Tensor(operands.b_shape, dtype),
        S: T.Tensor([M, N], "float32"),
        splits: T.int32,
    ):
        with T.Kernel(
            T.ceildiv(N, block_n), T.ceildiv(M, block_m), splits, threads=tiles.threads
        ) as (bn, bm, s):
            a_tile = T.alloc_shared(operands.a_tile, dtype)
            b_tile = T.alloc_shared(operands.b_tile, dtype)
            acc = T.alloc_fragment([block_m, block_n], "float32")
            steps = T.ceildiv(T.ceildiv(K, block_k), splits)
            m, n = bm * block_m, bn * block_n
            T.clear(acc)
            sum_products(A, B, a_tile, b_tile, acc, m, n, s * steps, steps, operands, tiles)
            for i, j in T.Parallel(block_m, block_n):
                if m + i < M and n + j < N:
                    T.atomic_add(S[m + i, n + j], acc[i, j])

    return gemm_atomic_sums


@tilelang.jit
def combine_kernel(out_dtype: str, accumulate: bool):
    """Build the kernel that adds the slices of P in order, and the old C if `accumulate`.

    P is [splits, M * N] float32, C [M * N].
    """
    splits, size = T.dynamic("splits"), T.dynamic("size")

    @T.prim_func
    def gemm_combine(P: T.Tensor([splits, size], "float32"), C: T.Tensor([size], out_dtype)):
        with T.Kernel(T.ceildiv(size, COMBINED), threads=128) as block:
            acc = T.alloc_fragment([COMBINED], "float32")
            begin = block * COMBINED
            if accumulate:
                T.copy(C[begin : begin + COMBINED], acc)
            else:
                T.clear(acc)
            for s in T.serial(splits):
                for i in T.Parallel(COMBINED):
                    if begin + i < size:
                        acc[i] += P[s, begin + i]
            T.copy(acc, C[begin : begin + COMBINED])

    return gemm_combine
