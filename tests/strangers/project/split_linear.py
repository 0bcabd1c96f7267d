"""y = act(scale * x @ w.T + bias), trainable, with each sum cut into slices.

Few tokens and a long k fill no GPU: slices of the sum are computed by blocks of their own into
float32 parts, which a second kernel adds up. The gradients are two more products of that form.
"""

from typing import Literal

import tilelang
import tilelang.language as T
import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

BLOCK = 32
ROWS = 8


@tilelang.jit
def slices_kernel(dtype, block_k=32, threads=128):
    """Parts[s] = A @ B.T over the s-th slice of k."""
    M, N, K, S = T.dynamic("M, N, K, S")

    @T.prim_func
    def product_slices(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((N, K), dtype),
        Parts: T.Tensor((S, M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, BLOCK), T.ceildiv(M, BLOCK), S, threads=threads) as (bn, bm, s):
            a = T.alloc_shared([BLOCK, block_k], dtype)
            b = T.alloc_shared([BLOCK, block_k], dtype)
            acc = T.alloc_fragment([BLOCK, BLOCK], "float32")
            steps = T.ceildiv(T.ceildiv(K, block_k), S)
            first = s * steps
            T.clear(acc)
            for step in T.Pipelined(
                T.max(T.min(steps, T.ceildiv(K, block_k) - first), 0), num_stages=2
            ):
                T.copy(A[bm * BLOCK, (first + step) * block_k], a)
                T.copy(B[bn * BLOCK, (first + step) * block_k], b)
                T.gemm(a, b, acc, transpose_B=True)
            T.copy(acc, Parts[s, bm * BLOCK, bn * BLOCK])

    return product_slices


@tilelang.jit
def finish_kernel(act, dtype, block_n=64, threads=128):
    """The parts added up, H = scale * sum + bias, and Y = act(H)."""
    M, N, S = T.dynamic("M, N, S")

    @T.prim_func
    def finish(
        Parts: T.Tensor((S, M, N), "float32"),
        Bias: T.Tensor((N,), dtype),
        scale: T.float32,
        H: T.Tensor((M, N), "float32"),
        Y: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(M, ROWS), T.ceildiv(N, block_n), threads=threads) as (bm, bn):
            h = T.alloc_fragment([ROWS, block_n], "float32")
            T.clear(h)
            for s in T.serial(S):
                for i, j in T.Parallel(ROWS, block_n):
                    if bm * ROWS + i < M and bn * block_n + j < N:
                        h[i, j] += Parts[s, bm * ROWS + i, bn * block_n + j]
            for i, j in T.Parallel(ROWS, block_n):
                m = bm * ROWS + i
                n = bn * block_n + j
                if m < M and n < N:
                    h[i, j] = h[i, j] * scale + Bias[n]
                    H[m, n] = h[i, j]
                    if act == "relu":
                        Y[m, n] = T.max(h[i, j], 0.0)
                    elif act == "silu":
                        Y[m, n] = h[i, j] / (1.0 + T.exp(-h[i, j]))
                    else:
                        Y[m, n] = h[i, j]

    return finish


@tilelang.jit
def act_backward_kernel(act, dtype, block_n=64, threads=128):
    """G = dY * act'(H), and what each tile of rows adds to the gradient of the bias."""
    M, N, tiles = T.dynamic("M, N, tiles")

    @T.prim_func
    def act_backward(
        DY: T.Tensor((M, N), dtype),
        H: T.Tensor((M, N), "float32"),
        G: T.Tensor((M, N), dtype),
        DBias: T.Tensor((tiles, N), "float32"),
    ):
        with T.Kernel(tiles, T.ceildiv(N, block_n), threads=threads) as (bm, bn):
            g = T.alloc_fragment([ROWS, block_n], "float32")
            total = T.alloc_fragment([block_n], "float32")
            T.clear(g)
            for i, j in T.Parallel(ROWS, block_n):
                m = bm * ROWS + i
                n = bn * block_n + j
                if m < M and n < N:
                    h = H[m, n]
                    sigmoid = 1.0 / (1.0 + T.exp(-h))
                    if act == "relu":
                        g[i, j] = T.if_then_else(h > 0, T.cast(DY[m, n], "float32"), 0.0)
                    elif act == "silu":
                        g[i, j] = DY[m, n] * sigmoid * (1.0 + h * (1.0 - sigmoid))
                    else:
                        g[i, j] = DY[m, n]
                    G[m, n] = g[i, j]
            T.reduce_sum(g, total, dim=0)
            for j in T.Parallel(block_n):
                if bn * block_n + j < N:
                    DBias[bm, bn * block_n + j] = total[j]

    return act_backward


def sliced_product(a, b, slices):
    """Parts of a @ b.T in float32: [slices, m, n]."""
    parts = torch.empty(slices, len(a), len(b), device=a.device)
    # TMA takes rows of whole 16 bytes.
    a, b = (F.pad(each, (0, -each.shape[1] % 8)).contiguous() for each in (a, b))
    if not a.numel():
        return parts.zero_()
    if parts.numel():
        slices_kernel(str(a.dtype).split(".")[-1])(a, b, parts)
    return parts


class _SplitLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, act, scale, slices):
        parts = sliced_product(x, weight, slices)
        y = torch.empty(len(x), len(weight), dtype=x.dtype, device=x.device)
        h = torch.empty_like(y, dtype=torch.float32)
        if y.numel():
            finish_kernel(act, str(x.dtype).split(".")[-1])(parts, bias, scale, h, y)
        ctx.save_for_backward(x, weight, h)
        ctx.act, ctx.scale, ctx.slices = act, scale, slices
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight, h = ctx.saved_tensors
        g = torch.empty_like(dy, memory_format=torch.contiguous_format)
        dbias = torch.zeros(-(-len(g) // ROWS), len(weight), device=g.device)
        if g.numel():
            act_backward_kernel(ctx.act, str(g.dtype).split(".")[-1])(dy.contiguous(), h, g, dbias)
        dx = dweight = None
        if ctx.needs_input_grad[0]:
            dx = sliced_product(g, weight.T, ctx.slices).sum(0) * ctx.scale
        if ctx.needs_input_grad[1]:
            dweight = sliced_product(g.T, x.T, ctx.slices).sum(0) * ctx.scale
        return (
            None if dx is None else dx.to(x.dtype),
            None if dweight is None else dweight.to(weight.dtype),
            dbias.sum(0).to(x.dtype),
            None,
            None,
            None,
        )


def split_linear(
    x, weight, bias, act: Literal["none", "relu", "silu"] = "none", scale=1.0, slices=2
):
    """x [m, k], weight [n, k], bias [n] -> [m, n]."""
    return _SplitLinear.apply(x, weight, bias, act, scale, slices)


def reference(x, weight, bias, act, scale):
    h = scale * (x @ weight.T) + bias
    return {"none": lambda h: h, "relu": F.relu, "silu": F.silu}[act](h)
