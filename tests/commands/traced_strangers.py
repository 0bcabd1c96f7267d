"""Kernels for the tests of `tlmatrix new`."""

import tilelang
import tilelang.language as T


@tilelang.jit
def packed_scale(dim, dtype="float16", block=32):
    total, batch = T.dynamic("total, batch")

    @T.prim_func
    def main(
        X: T.Tensor((total, dim), dtype),
        Ends: T.Tensor((batch + 1,), "int32"),
        Cos: T.Tensor((T.dynamic("positions"), dim), "float32"),
        Y: T.Tensor((total, dim), dtype),
    ):
        with T.Kernel(batch, threads=128) as b:
            start = Ends[b]
            length = Ends[b + 1] - start
            for tile in T.serial(T.ceildiv(length, block)):
                for i, j in T.Parallel(block, dim):
                    t = tile * block + i
                    if t < length:
                        Y[start + t, j] = X[start + t, j] * Cos[t, j]

    return main


@tilelang.jit
def paged_gather(dim, page=16, dtype="float16"):
    rows, pages, columns, vocab = T.dynamic("rows, pages, columns, vocab")

    @T.prim_func
    def main(
        Pool: T.Tensor((pages, page, dim), dtype),
        Table: T.Tensor((rows, columns), "int32"),
        Lens: T.Tensor((rows,), "int32"),
        Word: T.Tensor((rows,), "int64"),
        Embed: T.Tensor((vocab, dim), dtype),
        Target: T.Tensor((rows,), "int64"),
        Y: T.Tensor((rows, dim), dtype),
    ):
        with T.Kernel(rows, threads=128) as row:
            where = T.alloc_var("int32")
            for p in T.serial(T.ceildiv(Lens[row], page)):
                where = Table[row, p]
                for i, j in T.Parallel(page, dim):
                    if p * page + i < Lens[row]:
                        Y[row, j] = Pool[where, i, j] + Embed[Word[row], j]
            for j in T.Parallel(dim):
                if j == Target[row]:
                    Y[row, j] = 0

    return main


@tilelang.jit
def product(M, N, K, block=64, dtype="float16"):
    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), "float32")
    ):
        with T.Kernel(T.ceildiv(M, block), T.ceildiv(N, block), threads=128) as (bx, by):
            a = T.alloc_shared([block, 32], dtype)
            b = T.alloc_shared([block, 32], dtype)
            c = T.alloc_fragment([block, block], "float32")
            T.clear(c)
            for k in T.serial(T.ceildiv(K, 32)):
                T.copy(A[bx * block, k * 32], a)
                T.copy(B[by * block, k * 32], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[bx * block, by * block])

    return main
