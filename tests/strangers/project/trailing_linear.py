"""y = alpha * x[:, start:] @ w[:, start:].T on Blackwell, which skips the first features."""

import tilelang
import tilelang.language as T
import torch

BM, BN, BK = 128, 64, 64


@tilelang.jit
def trailing_linear_kernel(dtype: str = "bfloat16"):
    M, N, K = T.dynamic("M, N, K")

    @T.macro
    def load(X, W, xs, ws, loaded, s, m, n, k):
        T.tma_copy(X[m : m + BM, k : k + BK], xs[s, :, :], barrier=loaded[s])
        T.tma_copy(W[n : n + BN, k : k + BK], ws[s, :, :], barrier=loaded[s])
        T.mbarrier_arrive(loaded[s])

    @T.prim_func
    def main(
        X: T.Tensor((M, K), dtype),
        W: T.Tensor((N, K), dtype),
        Y: T.Tensor((M, N), "float32"),
        alpha: T.float32,
        start: T.int32,
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128) as (bn, bm):
            xs = T.alloc_shared((2, BM, BK), dtype)
            ws = T.alloc_shared((2, BN, BK), dtype)
            sums = T.alloc_tmem([BM, BN], "float32")
            acc = T.alloc_fragment([BM, BN], "float32")
            loaded = T.alloc_barrier([128] * 2)
            done = T.alloc_barrier(1)
            steps = T.ceildiv(T.max(K - start, 0), BK)

            T.clear(acc)
            if steps > 0:
                load(X, W, xs, ws, loaded, 0, bm * BM, bn * BN, start)
            for step in T.serial(steps):
                s = step % 2
                if step + 1 < steps:
                    load(X, W, xs, ws, loaded, 1 - s, bm * BM, bn * BN, start + (step + 1) * BK)
                T.mbarrier_wait_parity(loaded[s], step // 2 % 2)
                T.tcgen05_gemm(
                    xs[s, :, :],
                    ws[s, :, :],
                    sums,
                    transpose_B=True,
                    mbar=done,
                    clear_accum=step == 0,
                )
                T.mbarrier_wait_parity(done, step % 2)
            if steps > 0:
                T.copy(sums, acc)
            for i, j in T.Parallel(BM, BN):
                if bm * BM + i < M and bn * BN + j < N:
                    Y[bm * BM + i, bn * BN + j] = acc[i, j] * alpha
            # Warp 0 frees the tensor memory.
            T.sync_threads()

    return main


def trailing_linear(x, w, *, alpha: float = 1.0, start: int = 0):
    """x [m, k], w [n, k] bfloat16 -> [m, n] float32."""
    y = torch.empty(x.shape[0], w.shape[0], dtype=torch.float32, device=x.device)
    trailing_linear_kernel()(x, w, y, alpha, start)
    return y


def reference(x, w, alpha, start):
    return alpha * x[:, start:] @ w[:, start:].T
