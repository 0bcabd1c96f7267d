"""Matrix multiplication that splits K, for few output tiles and long sums: `C = op(A) @ op(B)`.

Shapes and layout are those of `kernel`, all row-major: A [M, K] or [K, M], B [K, N] or [N, K],
float16 or bfloat16; C [M, N]. With few tiles of C most multiprocessors would have none; here a
tile of C has `splits` blocks, and each sums a slice of K in float32. Two ways to add the slices:

`partial_sums_kernel`, then `combine_kernel`
    Every block writes its sums to a workspace P [splits, M, N] (float32), and a second kernel adds
    the slices of an element in their order: the same bits at every call.

`atomic_sums_kernel`
    Every block adds its sums by float32 atomics to S [M, N], which holds zeros (or what the
    product is added to). One kernel and a small workspace less, but in the order in which blocks
    end: the last bits differ from call to call.

Slice s has the steps of K from `s * steps` up to `(s + 1) * steps`, of the `splits * steps` that
cover K. All have as many, so that no block has a loop of a length of its own. Steps beyond K read
zeros; a slice wholly beyond writes zeros, for a workspace holds anything before.

M, N, K and splits are symbolic: one compiled kernel serves every shape. `T.copy` reads zeros
outside A and B, and stores nothing outside P. `whole_rows` as in `kernel`.
"""

import tilelang
import tilelang.language as T

from tlmatrix_kernels.gemm.boxes import NO_TMA, box, row_step, shapes, sizes
from tlmatrix_kernels.gemm.tiles import split_tiles
from tlmatrix_kernels.target import capability

__all__ = [
    "atomic_sums_kernel",
    "combine_kernel",
    "partial_sums_kernel",
]


COMBINED = 1024
"""Elements of C a block of `combine_kernel` writes: 8 a thread, two loads of 16 bytes a slice."""


@T.macro
def _sum_slice(A, B, a_tile, b_tile, acc, place, orientation, whole_rows, tiles):
    """`acc` = the sum over slice s of K, of `steps` steps, of the tile at (m, n)."""
    m, n, s, steps = place
    transpose_a, transpose_b = orientation
    options = {} if whole_rows else NO_TMA
    T.clear(acc)
    for step in T.Pipelined(steps, num_stages=tiles.num_stages):
        k = (s * steps + step) * tiles.block_k
        T.copy(box(A, transpose_a, m, tiles.block_m, k, tiles.block_k), a_tile, annotations=options)
        T.copy(box(B, transpose_b, k, tiles.block_k, n, tiles.block_n), b_tile, annotations=options)
        T.gemm(a_tile, b_tile, acc, transpose_A=transpose_a, transpose_B=transpose_b)


@tilelang.jit
def partial_sums_kernel(
    dtype: str, transpose_a: bool, transpose_b: bool, whole_rows: bool, size: str
):
    """The kernel that writes the sums of every slice of K."""
    orientation = (transpose_a, transpose_b)
    M, N, K = sizes(orientation, *([row_step(dtype)] * 2 if whole_rows else []))
    splits = T.dynamic("splits")
    tiles = split_tiles(capability(), size, whole_rows=whole_rows)
    block_m, block_n, block_k = tiles.block_m, tiles.block_n, tiles.block_k
    a_shape, b_shape = shapes(orientation, M, N, K)
    a_box, b_box = shapes(orientation, block_m, block_n, block_k)

    @T.prim_func
    def gemm_partial_sums(
        A: T.Tensor(a_shape, dtype),
        B: T.Tensor(b_shape, dtype),
        P: T.Tensor([splits, M, N], "float32"),
    ):
        with T.Kernel(
            T.ceildiv(N, block_n), T.ceildiv(M, block_m), splits, threads=tiles.threads
        ) as (bn, bm, s):
            a_tile = T.alloc_shared(a_box, dtype)
            b_tile = T.alloc_shared(b_box, dtype)
            acc = T.alloc_fragment([block_m, block_n], "float32")
            steps = T.ceildiv(T.ceildiv(K, block_k), splits)
            m, n = bm * block_m, bn * block_n
            _sum_slice(A, B, a_tile, b_tile, acc, (m, n, s, steps), orientation, whole_rows, tiles)
            T.copy(acc, P[s, m : m + block_m, n : n + block_n])

    return gemm_partial_sums


@tilelang.jit
def atomic_sums_kernel(
    dtype: str, transpose_a: bool, transpose_b: bool, whole_rows: bool, size: str
):
    """The kernel that adds the sums of every slice to S; it is called with (A, B, S, splits)."""
    orientation = (transpose_a, transpose_b)
    M, N, K = sizes(orientation, *([row_step(dtype)] * 2 if whole_rows else []))
    tiles = split_tiles(capability(), size, whole_rows=whole_rows)
    block_m, block_n, block_k = tiles.block_m, tiles.block_n, tiles.block_k
    a_shape, b_shape = shapes(orientation, M, N, K)
    a_box, b_box = shapes(orientation, block_m, block_n, block_k)

    @T.prim_func
    def gemm_atomic_sums(
        A: T.Tensor(a_shape, dtype),
        B: T.Tensor(b_shape, dtype),
        S: T.Tensor([M, N], "float32"),
        splits: T.int32,
    ):
        with T.Kernel(
            T.ceildiv(N, block_n), T.ceildiv(M, block_m), splits, threads=tiles.threads
        ) as (bn, bm, s):
            a_tile = T.alloc_shared(a_box, dtype)
            b_tile = T.alloc_shared(b_box, dtype)
            acc = T.alloc_fragment([block_m, block_n], "float32")
            steps = T.ceildiv(T.ceildiv(K, block_k), splits)
            m, n = bm * block_m, bn * block_n
            _sum_slice(A, B, a_tile, b_tile, acc, (m, n, s, steps), orientation, whole_rows, tiles)
            for i, j in T.Parallel(block_m, block_n):
                if m + i < M and n + j < N:
                    T.atomic_add(S[m + i, n + j], acc[i, j])

    return gemm_atomic_sums


@tilelang.jit
def combine_kernel(out_dtype: str, accumulate: bool):
    """C = the sum of the slices of P, in their order; with `accumulate` added to the old C."""
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
