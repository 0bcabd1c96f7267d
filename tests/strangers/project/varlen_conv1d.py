"""Causal depthwise convolution over packed sequences, as in Mamba's short convolution.

    y[t, d] = bias[d] + sum over k of x[t - (width - 1) + k, d] * weight[d, k]

with rows before the first of a sequence counted as zero.
"""

from itertools import pairwise

import tilelang
import tilelang.language as T
import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

BLOCK_T = 32
BLOCK_D = 32


@tilelang.jit
def conv_forward(width, dtype, block_t=BLOCK_T, block_d=BLOCK_D, threads=128):
    total, dim, bounds = T.dynamic("total, dim, bounds")

    @T.prim_func
    def conv_fwd(
        X: T.Tensor((total, dim), dtype),
        W: T.Tensor((dim, width), dtype),
        B: T.Tensor((dim,), dtype),
        CuSeqlens: T.Tensor((bounds,), "int32"),
        max_seqlen: T.int32,
        Y: T.Tensor((total, dim), dtype),
    ):
        with T.Kernel(
            T.ceildiv(dim, block_d), T.ceildiv(max_seqlen, block_t), bounds - 1, threads=threads
        ) as (bd, bt, b):
            acc = T.alloc_fragment([block_t, block_d], "float32")
            start = CuSeqlens[b]
            end = CuSeqlens[b + 1]
            first = start + bt * block_t

            if first < end:
                for i, j in T.Parallel(block_t, block_d):
                    d = bd * block_d + j
                    acc[i, j] = T.if_then_else(d < dim, B[d], 0)
                for k in T.serial(width):
                    for i, j in T.Parallel(block_t, block_d):
                        row = first + i - (width - 1) + k
                        d = bd * block_d + j
                        if row >= start and row < end and d < dim:
                            acc[i, j] += T.cast(X[row, d], "float32") * T.cast(W[d, k], "float32")
                for i, j in T.Parallel(block_t, block_d):
                    if first + i < end and bd * block_d + j < dim:
                        Y[first + i, bd * block_d + j] = acc[i, j]

    return conv_fwd


@tilelang.jit
def conv_backward_input(width, dtype, block_t=BLOCK_T, block_d=BLOCK_D, threads=128):
    total, dim, bounds = T.dynamic("total, dim, bounds")

    @T.prim_func
    def conv_bwd_x(
        DY: T.Tensor((total, dim), dtype),
        W: T.Tensor((dim, width), dtype),
        CuSeqlens: T.Tensor((bounds,), "int32"),
        max_seqlen: T.int32,
        DX: T.Tensor((total, dim), dtype),
    ):
        with T.Kernel(
            T.ceildiv(dim, block_d), T.ceildiv(max_seqlen, block_t), bounds - 1, threads=threads
        ) as (bd, bt, b):
            acc = T.alloc_fragment([block_t, block_d], "float32")
            end = CuSeqlens[b + 1]
            first = CuSeqlens[b] + bt * block_t

            if first < end:
                T.clear(acc)
                for k in T.serial(width):
                    for i, j in T.Parallel(block_t, block_d):
                        row = first + i + (width - 1) - k
                        d = bd * block_d + j
                        if row < end and d < dim:
                            acc[i, j] += T.cast(DY[row, d], "float32") * T.cast(W[d, k], "float32")
                for i, j in T.Parallel(block_t, block_d):
                    if first + i < end and bd * block_d + j < dim:
                        DX[first + i, bd * block_d + j] = acc[i, j]

    return conv_bwd_x


@tilelang.jit
def conv_backward_weight(width, dtype, block_t=BLOCK_T, block_d=BLOCK_D, threads=128):
    """A part of dW for each sequence; the caller adds them up."""
    total, dim, bounds, batch = T.dynamic("total, dim, bounds, batch")

    @T.prim_func
    def conv_bwd_w(
        X: T.Tensor((total, dim), dtype),
        DY: T.Tensor((total, dim), dtype),
        CuSeqlens: T.Tensor((bounds,), "int32"),
        DW: T.Tensor((batch, dim, width), "float32"),
    ):
        with T.Kernel(T.ceildiv(dim, block_d), width, batch, threads=threads) as (bd, k, b):
            acc = T.alloc_fragment([block_t, block_d], "float32")
            dw = T.alloc_fragment([block_d], "float32")
            start = CuSeqlens[b]
            end = CuSeqlens[b + 1]

            T.clear(acc)
            for tile in T.serial(T.ceildiv(end - start, block_t)):
                for i, j in T.Parallel(block_t, block_d):
                    row = start + tile * block_t + i
                    before = row - (width - 1) + k
                    d = bd * block_d + j
                    if row < end and before >= start and d < dim:
                        acc[i, j] += T.cast(DY[row, d], "float32") * T.cast(X[before, d], "float32")
            T.reduce_sum(acc, dw, dim=0)
            for j in T.Parallel(block_d):
                if bd * block_d + j < dim:
                    DW[b, bd * block_d + j, k] = dw[j]

    return conv_bwd_w


class CausalConv1d(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, cu_seqlens, max_seqlen):
        ctx.save_for_backward(x, weight, cu_seqlens)
        ctx.max_seqlen = max_seqlen
        y = torch.empty_like(x)
        if x.numel():
            kernel = conv_forward(weight.shape[1], str(x.dtype).split(".")[-1])
            kernel(x, weight, bias, cu_seqlens, max_seqlen, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight, cu_seqlens = ctx.saved_tensors
        dim, width = weight.shape
        dtype = str(x.dtype).split(".")[-1]
        dy = dy.contiguous()
        dx = torch.empty_like(x)
        parts = torch.zeros(len(cu_seqlens) - 1, dim, width, device=x.device)
        if x.numel():
            conv_backward_input(width, dtype)(dy, weight, cu_seqlens, ctx.max_seqlen, dx)
            conv_backward_weight(width, dtype)(x, dy, cu_seqlens, parts)
        dw = parts.sum(0).to(weight.dtype)
        db = dy.float().sum(0).to(dy.dtype)
        return dx, dw, db, None, None


def reference(x, weight, bias, cu_seqlens):
    dim, width = weight.shape
    bounds = cu_seqlens.tolist()
    outs = []
    for start, end in pairwise(bounds):
        if start == end:
            continue
        part = F.pad(x[start:end].T.unsqueeze(0), (width - 1, 0))
        outs.append(F.conv1d(part, weight.unsqueeze(1), bias, groups=dim).squeeze(0).T)
    return torch.cat(outs) if outs else x * 1
