"""Layer norm as a module: half-precision activations, float32 weight and bias."""

import tilelang
import tilelang.language as T
import torch
from torch import nn
from torch.autograd.function import once_differentiable

BLOCK_M = 8


@tilelang.jit
def layer_norm_forward(N, dtype, block_M=BLOCK_M, threads=128):
    M = T.dynamic("M")
    block_N = tilelang.next_power_of_2(N)

    @T.prim_func
    def ln_fwd(
        X: T.Tensor((M, N), dtype),
        W: T.Tensor((N,), "float32"),
        B: T.Tensor((N,), "float32"),
        eps: T.float32,
        Y: T.Tensor((M, N), dtype),
        Mean: T.Tensor((M,), "float32"),
        Rstd: T.Tensor((M,), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            x = T.alloc_fragment([block_M, block_N], "float32")
            square = T.alloc_fragment([block_M, block_N], "float32")
            mean = T.alloc_fragment([block_M], "float32")
            rstd = T.alloc_fragment([block_M], "float32")

            T.copy(X[bx * block_M, 0], x)
            T.reduce_sum(x, mean, dim=1)
            for i in T.Parallel(block_M):
                mean[i] = mean[i] / N
            for i, j in T.Parallel(block_M, block_N):
                x[i, j] = T.if_then_else(j < N, x[i, j] - mean[i], 0.0)
            for i, j in T.Parallel(block_M, block_N):
                square[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(square, rstd, dim=1)
            for i in T.Parallel(block_M):
                rstd[i] = T.rsqrt(rstd[i] / N + eps)
            for i, j in T.Parallel(block_M, block_N):
                if bx * block_M + i < M and j < N:
                    Y[bx * block_M + i, j] = x[i, j] * rstd[i] * W[j] + B[j]
            for i in T.Parallel(block_M):
                if bx * block_M + i < M:
                    Mean[bx * block_M + i] = mean[i]
                    Rstd[bx * block_M + i] = rstd[i]

    return ln_fwd


@tilelang.jit
def layer_norm_backward(N, dtype, block_M=BLOCK_M, threads=128):
    M, blocks = T.dynamic("M, blocks")
    block_N = tilelang.next_power_of_2(N)

    @T.prim_func
    def ln_bwd(
        DY: T.Tensor((M, N), dtype),
        X: T.Tensor((M, N), dtype),
        W: T.Tensor((N,), "float32"),
        Mean: T.Tensor((M,), "float32"),
        Rstd: T.Tensor((M,), "float32"),
        DX: T.Tensor((M, N), dtype),
        DW: T.Tensor((blocks, N), "float32"),
        DB: T.Tensor((blocks, N), "float32"),
    ):
        with T.Kernel(blocks, threads=threads) as bx:
            dy = T.alloc_fragment([block_M, block_N], "float32")
            x_hat = T.alloc_fragment([block_M, block_N], "float32")
            term = T.alloc_fragment([block_M, block_N], "float32")
            sum_wdy = T.alloc_fragment([block_M], "float32")
            sum_wdyx = T.alloc_fragment([block_M], "float32")
            total = T.alloc_fragment([block_N], "float32")

            for i, j in T.Parallel(block_M, block_N):
                row = bx * block_M + i
                if row < M and j < N:
                    dy[i, j] = DY[row, j]
                    x_hat[i, j] = (X[row, j] - Mean[row]) * Rstd[row]
                else:
                    dy[i, j] = 0
                    x_hat[i, j] = 0
            T.reduce_sum(dy, total, dim=0)
            for j in T.Parallel(block_N):
                if j < N:
                    DB[bx, j] = total[j]
            for i, j in T.Parallel(block_M, block_N):
                term[i, j] = dy[i, j] * x_hat[i, j]
            T.reduce_sum(term, total, dim=0)
            for j in T.Parallel(block_N):
                if j < N:
                    DW[bx, j] = total[j]

            for i, j in T.Parallel(block_M, block_N):
                dy[i, j] *= T.if_then_else(j < N, W[j], 0)
            T.reduce_sum(dy, sum_wdy, dim=1)
            for i, j in T.Parallel(block_M, block_N):
                term[i, j] = dy[i, j] * x_hat[i, j]
            T.reduce_sum(term, sum_wdyx, dim=1)
            for i, j in T.Parallel(block_M, block_N):
                row = bx * block_M + i
                if row < M and j < N:
                    DX[row, j] = Rstd[row] * (
                        dy[i, j] - (sum_wdy[i] + x_hat[i, j] * sum_wdyx[i]) / N
                    )

    return ln_bwd


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        M, N = x.shape
        y = torch.empty_like(x)
        mean, rstd = (torch.empty(M, device=x.device) for _ in range(2))
        if M:
            kernel = layer_norm_forward(N, str(x.dtype).split(".")[-1])
            kernel(x, weight, bias, eps, y, mean, rstd)
        ctx.save_for_backward(x, weight, mean, rstd)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight, mean, rstd = ctx.saved_tensors
        M, N = x.shape
        dx = torch.empty_like(x)
        blocks = (M + BLOCK_M - 1) // BLOCK_M
        dw, db = (torch.empty(blocks, N, device=x.device) for _ in range(2))
        if M:
            kernel = layer_norm_backward(N, str(x.dtype).split(".")[-1])
            kernel(dy.contiguous(), x, weight, mean, rstd, dx, dw, db)
        return dx, dw.sum(0), db.sum(0), None


class LayerNorm(nn.Module):
    def __init__(self, hidden, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden))
        self.bias = nn.Parameter(torch.zeros(hidden))

    def forward(self, x):
        return _LayerNorm.apply(x, self.weight, self.bias, self.eps)
