"""Sinkhorn normalisation of small matrices: rows and columns by turns, a block a matrix."""

import tilelang
import tilelang.language as T
import torch


@tilelang.jit(out_idx=[1])
def sinkhorn_kernel(rows, cols, iters=4, eps=1e-6, threads=128):
    batch = T.dynamic("batch")
    R, C = tilelang.next_power_of_2(rows), tilelang.next_power_of_2(cols)

    @T.prim_func
    def sinkhorn(
        X: T.Tensor((batch, rows, cols), "float32"), P: T.Tensor((batch, rows, cols), "float32")
    ):
        with T.Kernel(batch, threads=threads) as b:
            p = T.alloc_fragment([R, C], "float32")
            row = T.alloc_fragment([R], "float32")
            col = T.alloc_fragment([C], "float32")

            for i, j in T.Parallel(R, C):
                p[i, j] = T.if_then_else(i < rows and j < cols, X[b, i, j], -1e30)
            T.reduce_max(p, row, dim=1)
            for i, j in T.Parallel(R, C):
                p[i, j] = T.if_then_else(i < rows and j < cols, T.exp(p[i, j] - row[i]), 0)
            for _ in T.serial(iters):
                T.reduce_sum(p, row, dim=1)
                for i, j in T.Parallel(R, C):
                    p[i, j] = p[i, j] / (row[i] + eps)
                T.reduce_sum(p, col, dim=0)
                for i, j in T.Parallel(R, C):
                    p[i, j] = p[i, j] / (col[j] + eps)
            for i, j in T.Parallel(R, C):
                if i < rows and j < cols:
                    P[b, i, j] = p[i, j]

    return sinkhorn


def reference(x, iters, eps=1e-6):
    p = torch.exp(x - x.amax(-1, keepdim=True))
    for _ in range(iters):
        p = p / (p.sum(-1, keepdim=True) + eps)
        p = p / (p.sum(-2, keepdim=True) + eps)
    return p
