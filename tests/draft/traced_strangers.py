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
def staged_gather(dim, columns=64, dtype="float16"):
    rows, pool = T.dynamic("rows, pool")

    @T.prim_func
    def main(
        Pool: T.Tensor((pool, dim), dtype),
        Table: T.Tensor((rows, columns), "int32"),
        Valid: T.Tensor((rows,), "int32"),
        Y: T.Tensor((rows, columns, dim), dtype),
    ):
        with T.Kernel(rows, threads=128) as row:
            table = T.alloc_shared((columns,), "int32")
            at = T.alloc_var("int32")
            T.copy(Table[row, 0], table)
            at = 0
            for k in T.serial(columns):
                for d in T.Parallel(dim):
                    value = Pool[table[at], d]
                    Y[row, k, d] = T.Select(at < Valid[row], value, T.cast(0, dtype))
                at = at + 1

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


@tilelang.jit(out_idx=[6])
def attend(batch, rows, keys, heads, groups, dim, is_causal, block=32):
    kv_heads = heads // groups

    @T.prim_func
    def main(
        Q_rows: T.Tensor((rows, heads, dim), "float16"),
        K_rows: T.Tensor((keys, kv_heads, dim), "float16"),
        V_rows: T.Tensor((keys, kv_heads, dim), "float16"),
        cu_seqlens_q: T.Tensor((batch + 1,), "int32"),
        cu_seqlens_k: T.Tensor((batch + 1,), "int32"),
        max_seqlen_q: T.int32,
        Out: T.Tensor((rows, heads, dim), "float16"),
    ):
        with T.Kernel(T.ceildiv(max_seqlen_q, block), heads, batch, threads=128) as (tile, head, b):
            q = T.alloc_shared((block, dim), "float16")
            k = T.alloc_shared((block, dim), "float16")
            v = T.alloc_shared((block, dim), "float16")
            s = T.alloc_fragment((block, block), "float32")
            p = T.alloc_fragment((block, block), "float16")
            acc = T.alloc_fragment((block, dim), "float32")
            total = T.alloc_fragment((block,), "float32")
            most = T.alloc_fragment((block,), "float32")
            first, first_key = cu_seqlens_q[b], cu_seqlens_k[b]
            count, count_k = cu_seqlens_q[b + 1] - first, cu_seqlens_k[b + 1] - first_key
            T.copy(Q_rows[first + tile * block : first + (tile + 1) * block, head, :], q)
            T.clear(acc)
            T.clear(total)
            T.fill(most, -T.infinity("float32"))
            for turn, step in T.grid(2, T.ceildiv(count_k, block)):  # the maximum, then the sum
                key = first_key + step * block
                T.copy(K_rows[key : key + block, head // groups, :], k)
                T.copy(V_rows[key : key + block, head // groups, :], v)
                T.clear(s)
                T.gemm(q, k, s, transpose_B=True)
                for i, j in T.Parallel(block, block):
                    seen = step * block + j < count_k
                    if is_causal:
                        last = tile * block + i + count_k - count
                        seen = T.And(seen, step * block + j <= last)
                    s[i, j] = T.if_then_else(seen, s[i, j] / dim**0.5, -T.infinity("float32"))
                if turn == 0:
                    T.reduce_max(s, most, dim=1, clear=False)
                else:
                    for i, j in T.Parallel(block, block):
                        s[i, j] = T.if_then_else(s[i, j] > -1e30, T.exp(s[i, j] - most[i]), 0.0)
                    T.reduce_sum(s, total, dim=1, clear=False)
                    T.copy(s, p)
                    T.gemm(p, v, acc)
            for i, d in T.Parallel(block, dim):
                if tile * block + i < count:
                    Out[first + tile * block + i, head, d] = T.if_then_else(
                        total[i] > 0, acc[i, d] / total[i], 0.0
                    )

    return main


@tilelang.jit(out_idx=[1])
def flat_double(rows, cols, block=128):
    """A loop over all elements, which are addressed by quotients and remainders."""

    @T.prim_func
    def main(X: T.Tensor((rows, cols), "float32"), Y: T.Tensor((rows * cols,), "float32")):
        with T.Kernel(T.ceildiv(rows * cols, block), threads=128) as b:
            for k in T.Parallel(block):
                at = b * block + k
                if at < rows * cols:
                    Y[at] = X[at // cols, at % cols] * 2

    return main


@tilelang.jit(out_idx=[1])
def copied_asynchronously(rows, dtype="float16"):
    @T.prim_func
    def main(X: T.Tensor((rows, 8), dtype), Y: T.Tensor((rows, 8), dtype)):
        with T.Kernel(rows, threads=1) as row:
            x = T.alloc_shared((8,), dtype)
            T.ptx_cp_async(T.access_ptr(x[0], "w", 8), T.access_ptr(X[row, 0], "r", 8), 8)
            T.ptx_commit_group()
            T.ptx_wait_group(0)
            T.copy(x, Y[row, 0])

    return main
