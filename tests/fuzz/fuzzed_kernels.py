"""A packed attention kernel with a bug at some lengths, for searches to find.

From the tile `planted` on, a partial tile at the end of a sequence is stored whole: its last rows
land in the next sequence. 0 plants it everywhere, a large number nowhere.
"""

import tilelang
import tilelang.language as T
import torch

ROWS = 32


@tilelang.jit
def packed_kernel(heads, dim, planted):
    total_q, total_k, bounds = T.dynamic("total_q, total_k, bounds")

    @T.prim_func
    def packed(
        q: T.Tensor((total_q, heads, dim), "float16"),
        k: T.Tensor((total_k, heads, dim), "float16"),
        v: T.Tensor((total_k, heads, dim), "float16"),
        cu_q: T.Tensor((bounds,), "int32"),
        cu_k: T.Tensor((bounds,), "int32"),
        out: T.Tensor((total_q, heads, dim), "float16"),
        longest: T.int32,
        scale: T.float32,
    ):
        with T.Kernel(T.ceildiv(longest, ROWS), heads, bounds - 1, threads=128) as (bx, by, bz):
            q_shared = T.alloc_shared((ROWS, dim), "float16")
            k_shared = T.alloc_shared((ROWS, dim), "float16")
            v_shared = T.alloc_shared((ROWS, dim), "float16")
            scores = T.alloc_fragment((ROWS, ROWS), "float32")
            weights = T.alloc_fragment((ROWS, ROWS), "float16")
            acc = T.alloc_fragment((ROWS, dim), "float32")
            most = T.alloc_fragment((ROWS,), "float32")
            before = T.alloc_fragment((ROWS,), "float32")
            total = T.alloc_fragment((ROWS,), "float32")
            part = T.alloc_fragment((ROWS,), "float32")
            start = cu_q[bz]
            length = cu_q[bz + 1] - start
            first = cu_k[bz]
            keys = cu_k[bz + 1] - first
            row = bx * ROWS
            if row < length:
                T.copy(q[start + row : start + row + ROWS, by, 0:dim], q_shared)
                T.fill(acc, 0)
                T.fill(total, 0)
                T.fill(most, -1e30)
                for tile in T.serial(T.ceildiv(keys, ROWS)):
                    here = first + tile * ROWS
                    T.copy(k[here : here + ROWS, by, 0:dim], k_shared)
                    T.copy(v[here : here + ROWS, by, 0:dim], v_shared)
                    for i, j in T.Parallel(ROWS, dim):
                        v_shared[i, j] = T.if_then_else(tile * ROWS + i < keys, v_shared[i, j], 0)
                    T.clear(scores)
                    T.gemm(q_shared, k_shared, scores, transpose_B=True)
                    for i, j in T.Parallel(ROWS, ROWS):
                        scores[i, j] = T.if_then_else(
                            tile * ROWS + j < keys, scores[i, j] * scale, -1e30
                        )
                    T.copy(most, before)
                    T.reduce_max(scores, most, dim=1, clear=False)
                    for i, j in T.Parallel(ROWS, ROWS):
                        scores[i, j] = T.exp(scores[i, j] - most[i])
                    T.reduce_sum(scores, part, dim=1)
                    for i in T.Parallel(ROWS):
                        total[i] = total[i] * T.exp(before[i] - most[i]) + part[i]
                    for i, j in T.Parallel(ROWS, dim):
                        acc[i, j] *= T.exp(before[i] - most[i])
                    T.copy(scores, weights)
                    T.gemm(weights, v_shared, acc)
                for i, j in T.Parallel(ROWS, dim):
                    if row + i < length or bx >= planted:
                        out[start + row + i, by, j] = T.if_then_else(
                            keys > 0, acc[i, j] / total[i], 0.0
                        )

    return packed


def _attention(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, scale, planted):
    out = torch.empty_like(q)
    if len(q) > 0:  # TileLang launches no empty grid
        kernel = packed_kernel(q.shape[1], q.shape[2], planted)
        kernel(q, k, v, cu_seqlens_q, cu_seqlens_k, out, max_seqlen_q, scale)
    return out


def right(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, scale):
    return _attention(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, scale, 1 << 20)


def unguarded(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, scale):
    return _attention(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, scale, 0)


def unguarded_from_the_second_tile(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, scale):
    return _attention(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, scale, 1)


@tilelang.jit
def scaled_kernel(special):
    n = T.dynamic("n")

    @T.prim_func
    def scaled(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 96), threads=96) as block:
            for i in T.Parallel(96):
                if n == special:
                    Y[block * 96 + i] = X[block * 96 + i]
                else:
                    Y[block * 96 + i] = X[block * 96 + i] * 0.3

    return scaled


def wrong_at_one_length(x):
    """Wrong for 4,321 elements alone."""
    y = torch.empty_like(x)
    scaled_kernel(4321)(x, y)
    return y
