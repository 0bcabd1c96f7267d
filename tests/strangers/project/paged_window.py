"""Attention of packed queries over a paged cache, each query through a window of keys."""

from itertools import pairwise

import tilelang
import tilelang.language as T
import torch


@tilelang.jit
def window_kernel(heads, head_dim, page_size, window, dtype, block_m=16, threads=128):
    total, bounds, batch, pages, columns = T.dynamic("total, bounds, batch, pages, columns")
    scale = head_dim**-0.5 * 1.4426950408889634

    @T.prim_func
    def paged_window(
        Q: T.Tensor((total, heads, head_dim), dtype),
        Key: T.Tensor((pages, page_size, heads, head_dim), dtype),
        Value: T.Tensor((pages, page_size, heads, head_dim), dtype),
        Table: T.Tensor((batch, columns), "int32"),
        CuQ: T.Tensor((bounds,), "int32"),
        Lengths: T.Tensor((batch,), "int32"),
        Out: T.Tensor((total, heads, head_dim), dtype),
        max_q: T.int32,
    ):
        with T.Kernel(T.ceildiv(max_q, block_m), heads, batch, threads=threads) as (bm, h, b):
            q = T.alloc_shared([block_m, head_dim], dtype)
            k = T.alloc_shared([page_size, head_dim], dtype)
            v = T.alloc_shared([page_size, head_dim], dtype)
            scores = T.alloc_fragment([block_m, page_size], "float32")
            weights = T.alloc_fragment([block_m, page_size], dtype)
            acc = T.alloc_fragment([block_m, head_dim], "float32")
            top = T.alloc_fragment([block_m], "float32")
            top_before = T.alloc_fragment([block_m], "float32")
            norm = T.alloc_fragment([block_m], "float32")
            start = CuQ[b]
            rows = CuQ[b + 1] - start
            length = Lengths[b]
            position = length - rows + bm * block_m  # of the first query of the tile

            if bm * block_m < rows:
                for i, d in T.Parallel(block_m, head_dim):
                    row = bm * block_m + i
                    q[i, d] = T.if_then_else(row < rows, Q[start + row, h, d], 0)
                T.clear(acc)
                T.clear(norm)
                T.fill(top, -1e30)
                first = T.max(position - window + 1, 0)
                end = T.min(position + block_m, length)
                for tile in T.serial(first // page_size, T.ceildiv(end, page_size)):
                    page = Table[b, tile]
                    T.copy(Key[page, 0:page_size, h, 0:head_dim], k)
                    for j, d in T.Parallel(page_size, head_dim):
                        # What a page holds past the length may be NaN.
                        held = tile * page_size + j < length
                        v[j, d] = T.if_then_else(held, Value[page, j, h, d], 0)
                    T.clear(scores)
                    T.gemm(q, k, scores, transpose_B=True)
                    for i, j in T.Parallel(block_m, page_size):
                        key = tile * page_size + j
                        if key > position + i or key <= position + i - window:
                            scores[i, j] = -T.infinity("float32")
                    T.copy(top, top_before)
                    T.reduce_max(scores, top, dim=1, clear=False)
                    for i in T.Parallel(block_m):
                        norm[i] *= T.exp2((top_before[i] - top[i]) * scale)
                    for i, d in T.Parallel(block_m, head_dim):
                        acc[i, d] *= T.exp2((top_before[i] - top[i]) * scale)
                    for i, j in T.Parallel(block_m, page_size):
                        scores[i, j] = T.exp2((scores[i, j] - top[i]) * scale)
                    T.reduce_sum(scores, norm, dim=1, clear=False)
                    T.copy(scores, weights)
                    T.gemm(weights, v, acc)
                for i, d in T.Parallel(block_m, head_dim):
                    row = bm * block_m + i
                    if row < rows:
                        Out[start + row, h, d] = acc[i, d] / norm[i]

    return paged_window


def attend(q, key, value, table, cu_q, lengths, max_q, window):
    out = torch.empty_like(q)
    if q.numel() == 0:
        return out
    _, page_size, heads, head_dim = key.shape
    dtype = str(q.dtype).split(".")[-1]
    kernel = window_kernel(heads, head_dim, page_size, window, dtype)
    kernel(q, key, value, table, cu_q, lengths, out, max_q)
    return out


def reference(q, key, value, table, cu_q, lengths, window):
    out = []
    page_size = key.shape[1]
    for b, (start, end) in enumerate(pairwise(cu_q.tolist())):
        length = int(lengths[b])
        position = torch.arange(length - (end - start), length)[:, None]
        first = max(length - (end - start) - window + 1, 0)
        slots = torch.arange(first, length)
        at = table[b, slots // page_size].long(), slots % page_size
        scores = torch.einsum("qhd,khd->hqk", q[start:end], key[at]) * q.shape[-1] ** -0.5
        hidden = (slots > position) | (slots <= position - window)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out.append(torch.einsum("hqk,khd->qhd", weights, value[at]))
    return torch.cat(out)
