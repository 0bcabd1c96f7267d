"""Grouped GEMM of a mixture of experts: tokens sorted by expert, one weight matrix an expert."""

import tilelang
import tilelang.language as T
import torch


@tilelang.jit(out_idx=[-1])
def grouped_gemm(
    experts, N, K, dtype="float16", block_M=64, block_N=64, block_K=32, num_stages=2, threads=128
):
    tokens = T.dynamic("tokens")

    @T.prim_func
    def moe_gemm(
        A: T.Tensor((tokens, K), dtype),
        B: T.Tensor((experts, K, N), dtype),
        sizes: T.Tensor((experts,), "int32"),
        offsets: T.Tensor((experts,), "int32"),
        padded_offsets: T.Tensor((experts,), "int32"),
        C: T.Tensor((tokens, N), dtype),
    ):
        # Each expert wastes at most one tile.
        with T.Kernel(
            T.ceildiv(tokens, block_M) + experts, T.ceildiv(N, block_N), threads=threads
        ) as (bx, by):
            A_shared = T.alloc_shared([block_M, block_K], dtype)
            B_shared = T.alloc_shared([block_K, block_N], dtype)
            C_local = T.alloc_fragment([block_M, block_N], "float32")
            expert = T.alloc_var("int32")

            expert = 0
            for e in range(experts):
                expert = T.if_then_else(bx * block_M >= padded_offsets[e], e, expert)
            done = bx * block_M - padded_offsets[expert]
            m_start = offsets[expert] + done
            m_rows = T.min(block_M, sizes[expert] - done)

            if m_rows > 0:
                T.clear(C_local)
                for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                    T.copy(A[m_start, k * block_K], A_shared)
                    T.copy(
                        B[
                            expert,
                            k * block_K : (k + 1) * block_K,
                            by * block_N : (by + 1) * block_N,
                        ],
                        B_shared,
                    )
                    T.gemm(A_shared, B_shared, C_local)
                for i, j in T.Parallel(block_M, block_N):
                    if i < m_rows and by * block_N + j < N:
                        C[m_start + i, by * block_N + j] = C_local[i, j]

    return moe_gemm


def reference(x, weight, sizes):
    parts = x.split(sizes.tolist())
    return torch.cat([part @ weight[e] for e, part in enumerate(parts)])
