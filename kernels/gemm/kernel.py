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

The tensor memory accelerator (TMA) needs rows that start at multiples of 16 bytes. TileLang
cannot see that of a symbolic row length and would use it regardless, so `tma` says whether the
shapes at hand allow it: a kernel with it, and one without.
"""

from dataclasses import dataclass

import tilelang
import tilelang.language as T

__all__ = ["TILES", "Tiles", "gemm_kernel"]


@dataclass(frozen=True)
class Tiles:
    """Tile edges in elements, pipeline depth and threads of a block."""

    block_m: int = 64
    block_n: int = 64
    block_k: int = 32
    """64 bytes of a float16 row: two 32-byte sectors a load."""
    num_stages: int = 2
    """Two tiles in flight hide the load behind one multiplication; more costs shared memory."""
    threads: int = 128
    """One warpgroup, so that Hopper's wgmma applies."""


TILES = Tiles()


@tilelang.jit
def gemm_kernel(
    dtype: str,
    out_dtype: str,
    transpose_a: bool,
    transpose_b: bool,
    accumulate: bool,
    tma: bool,
    tiles: Tiles = TILES,
):
    """The kernel of one dtype and orientation; it writes C, and with `accumulate` reads it too."""
    M, N, K = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")
    block_m, block_n, block_k = tiles.block_m, tiles.block_n, tiles.block_k
    load = {} if tma else {"disable_tma": True}

    @T.prim_func
    def gemm(
        A: T.Tensor([K, M] if transpose_a else [M, K], dtype),
        B: T.Tensor([N, K] if transpose_b else [K, N], dtype),
        C: T.Tensor([M, N], out_dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=tiles.threads) as (
            bn,
            bm,
        ):
            a_tile = T.alloc_shared(
                [block_k, block_m] if transpose_a else [block_m, block_k], dtype
            )
            b_tile = T.alloc_shared(
                [block_n, block_k] if transpose_b else [block_k, block_n], dtype
            )
            acc = T.alloc_fragment([block_m, block_n], "float32")

            if accumulate:
                T.copy(C[bm * block_m, bn * block_n], acc)
            else:
                T.clear(acc)
            for bk in T.Pipelined(T.ceildiv(K, block_k), num_stages=tiles.num_stages):
                if transpose_a:
                    T.copy(A[bk * block_k, bm * block_m], a_tile, annotations=load)
                else:
                    T.copy(A[bm * block_m, bk * block_k], a_tile, annotations=load)
                if transpose_b:
                    T.copy(B[bn * block_n, bk * block_k], b_tile, annotations=load)
                else:
                    T.copy(B[bk * block_k, bn * block_n], b_tile, annotations=load)
                T.gemm(a_tile, b_tile, acc, transpose_A=transpose_a, transpose_B=transpose_b)
            T.copy(acc, C[bm * block_m, bn * block_n])

    return gemm
