"""Linear attention with a decay per head (RetNet), in chunks; the reference goes row by row.

S[t] = exp(g) * S[t - 1] + K[t]^T V[t], O[t] = Q[t] S[t]; S is [heads, dk, dv].
"""

import tilelang
import tilelang.language as T
import torch


@tilelang.jit(out_idx=[4, 5])
def retention(batch, heads, length, dk, dv, dtype, chunk=32, threads=128):
    @T.prim_func
    def retention(
        Q: T.Tensor((batch, length, heads, dk), dtype),
        K: T.Tensor((batch, length, heads, dk), dtype),
        V: T.Tensor((batch, length, heads, dv), dtype),
        G: T.Tensor((heads,), "float32"),
        Out: T.Tensor((batch, length, heads, dv), dtype),
        S: T.Tensor((batch, heads, dk, dv), "float32"),
    ):
        with T.Kernel(heads, batch, threads=threads) as (h, b):
            q = T.alloc_shared([chunk, dk], dtype)
            k = T.alloc_shared([chunk, dk], dtype)
            v = T.alloc_shared([chunk, dv], dtype)
            k_decayed = T.alloc_shared([chunk, dk], dtype)
            p = T.alloc_fragment([chunk, chunk], "float32")
            p_cast = T.alloc_shared([chunk, chunk], dtype)
            state = T.alloc_fragment([dk, dv], "float32")
            state_cast = T.alloc_shared([dk, dv], dtype)
            o = T.alloc_fragment([chunk, dv], "float32")
            T.clear(state)
            g = G[h]
            for c in T.serial(T.ceildiv(length, chunk)):
                rows = T.min(chunk, length - c * chunk)
                T.copy(Q[b, c * chunk : (c + 1) * chunk, h, :], q)
                T.copy(K[b, c * chunk : (c + 1) * chunk, h, :], k)
                T.copy(V[b, c * chunk : (c + 1) * chunk, h, :], v)
                T.copy(state, state_cast)
                T.gemm(q, state_cast, o, clear_accum=True)
                for i, j in T.Parallel(chunk, dv):
                    o[i, j] *= T.exp(g * (i + 1))
                T.gemm(q, k, p, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(chunk, chunk):
                    p[i, j] = T.if_then_else(i >= j, p[i, j] * T.exp(g * (i - j)), 0.0)
                T.copy(p, p_cast)
                T.gemm(p_cast, v, o)
                for i, j in T.Parallel(chunk, dv):
                    if i < rows:
                        Out[b, c * chunk + i, h, j] = o[i, j]
                for i, j in T.Parallel(chunk, dk):
                    decay = T.exp(g * (rows - 1 - i))
                    k_decayed[i, j] = T.if_then_else(i < rows, k[i, j] * decay, 0.0)
                for i, j in T.Parallel(dk, dv):
                    state[i, j] *= T.exp(g * rows)
                T.gemm(k_decayed, v, state, transpose_A=True)
            T.copy(state, S[b, h, :, :])

    return retention


def reference(Q, K, V, G):
    batch, length, heads, dk = Q.shape
    state = Q.new_zeros(batch, heads, dk, V.shape[-1])
    out = []
    for t in range(length):
        state = torch.exp(G)[:, None, None] * state + K[:, t, :, :, None] * V[:, t, :, None]
        out.append((Q[:, t, :, :, None] * state).sum(-2))
    return torch.stack(out, 1), state
