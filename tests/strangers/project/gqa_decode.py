"""One query a sequence against a cache of keys, with the keys split among blocks.

The query heads of a kv head are the rows of a tile, so that a key is read once for all of them.
Each split leaves its output and the log of its sum of exponentials; `merge` weighs and adds them.
"""

import math

import tilelang
import tilelang.language as T
import torch

BLOCK_H = 32
SHARED = 200 * 1024


def key_block(dim, block_n, stages):
    """Keys of a tile: fewer than were asked for if Q, P and the stages of K and V need too much."""
    while 2 * (BLOCK_H * (dim + block_n) + 2 * stages * block_n * dim) > SHARED:
        block_n //= 2
    return block_n


@tilelang.jit
def decode_kernel(dim, dtype, block_n, stages, threads=128):
    batch, heads, kv_heads, length, splits = T.dynamic("batch, heads, kv_heads, length, splits")
    block_n = key_block(dim, block_n, stages)

    @T.prim_func
    def decode_splits(
        Q: T.Tensor((batch, heads, dim), dtype),
        K: T.Tensor((batch, length, kv_heads, dim), dtype),
        V: T.Tensor((batch, length, kv_heads, dim), dtype),
        Lengths: T.Tensor((batch,), "int32"),
        groups: T.int32,
        softcap: T.float32,
        Parts: T.Tensor((batch, splits, heads, dim), "float32"),
        Lse: T.Tensor((batch, splits, heads), "float32"),
    ):
        with T.Kernel(splits, kv_heads * T.ceildiv(groups, BLOCK_H), batch, threads=threads) as (
            s,
            tile,
            b,
        ):
            q = T.alloc_shared([BLOCK_H, dim], dtype)
            k = T.alloc_shared([block_n, dim], dtype)
            v = T.alloc_shared([block_n, dim], dtype)
            p = T.alloc_shared([BLOCK_H, block_n], dtype)
            acc = T.alloc_fragment([BLOCK_H, dim], "float32")
            score = T.alloc_fragment([BLOCK_H, block_n], "float32")
            top = T.alloc_fragment([BLOCK_H], "float32")
            top_before = T.alloc_fragment([BLOCK_H], "float32")
            total = T.alloc_fragment([BLOCK_H], "float32")

            tiles = T.ceildiv(groups, BLOCK_H)
            kv = tile // tiles
            in_group = (tile % tiles) * BLOCK_H
            head = kv * groups + in_group
            end = Lengths[b]
            share = T.ceildiv(T.ceildiv(end, splits), block_n) * block_n
            begin = s * share
            stop = T.min(begin + share, end)

            for i, d in T.Parallel(BLOCK_H, dim):
                q[i, d] = T.if_then_else(in_group + i < groups, Q[b, head + i, d], 0)
            T.clear(acc)
            T.clear(total)
            T.fill(top, -1e30)
            for step in T.Pipelined(T.ceildiv(T.max(stop - begin, 0), block_n), num_stages=stages):
                at = begin + step * block_n
                T.copy(K[b, at : at + block_n, kv, :], k)
                T.copy(V[b, at : at + block_n, kv, :], v)
                T.clear(score)
                T.gemm(q, k, score, transpose_B=True)
                for i, j in T.Parallel(BLOCK_H, block_n):
                    x = score[i, j] / math.sqrt(dim)
                    capped = T.if_then_else(softcap > 0, softcap * T.tanh(x / softcap), x)
                    score[i, j] = T.if_then_else(at + j < stop, capped, -1e30)
                T.copy(top, top_before)
                T.reduce_max(score, top, dim=1, clear=False)
                for i in T.Parallel(BLOCK_H):
                    total[i] *= T.exp(top_before[i] - top[i])
                for i, d in T.Parallel(BLOCK_H, dim):
                    acc[i, d] *= T.exp(top_before[i] - top[i])
                for i, j in T.Parallel(BLOCK_H, block_n):
                    score[i, j] = T.exp(score[i, j] - top[i])
                T.reduce_sum(score, total, dim=1, clear=False)
                T.copy(score, p)
                T.gemm(p, v, acc)
            for i, d in T.Parallel(BLOCK_H, dim):
                if in_group + i < groups:
                    Parts[b, s, head + i, d] = acc[i, d] / T.max(total[i], 1e-30)
            for i in T.Parallel(BLOCK_H):
                if in_group + i < groups:
                    # A split without keys weighs nothing.
                    Lse[b, s, head + i] = T.if_then_else(
                        begin < stop, top[i] + T.log(total[i]), -1e30
                    )

    return decode_splits


@tilelang.jit
def merge_kernel(dim, dtype, threads=64):
    batch, heads, splits = T.dynamic("batch, heads, splits")

    @T.prim_func
    def merge(
        Parts: T.Tensor((batch, splits, heads, dim), "float32"),
        Lse: T.Tensor((batch, splits, heads), "float32"),
        Out: T.Tensor((batch, heads, dim), dtype),
        OutLse: T.Tensor((batch, heads), "float32"),
    ):
        with T.Kernel(heads, batch, threads=threads) as (h, b):
            acc = T.alloc_fragment([dim], "float32")
            top = T.alloc_var("float32")
            total = T.alloc_var("float32")
            top = -1e30
            total = 0.0
            for s in T.serial(splits):
                top = T.max(top, Lse[b, s, h])
            for s in T.serial(splits):
                total += T.exp(Lse[b, s, h] - top)
            T.clear(acc)
            for s in T.serial(splits):
                for d in T.Parallel(dim):
                    acc[d] += Parts[b, s, h, d] * T.exp(Lse[b, s, h] - top)
            for d in T.Parallel(dim):
                Out[b, h, d] = acc[d] / total
            OutLse[b, h] = top + T.log(total)

    return merge


def decode(q, key, value, lengths, softcap=0.0, splits=None, block_n=64, stages=2):
    """q [batch, heads, dim], key and value [batch, length, kv_heads, dim] -> out, lse."""
    batch, heads, dim = q.shape
    kv_heads = key.shape[2]
    if splits is None:
        # As many blocks as a wave takes, and no split of less than 128 keys.
        splits = max(1, min(key.shape[1] // 128, 132 // (batch * kv_heads)))
    parts = torch.empty(batch, splits, heads, dim, device=q.device)
    part_lse = torch.empty(batch, splits, heads, device=q.device)
    out = torch.empty_like(q)
    lse = torch.empty(batch, heads, device=q.device)
    dtype = str(q.dtype).split(".")[-1]
    groups = heads // kv_heads
    kernel = decode_kernel(dim, dtype, block_n, stages)
    kernel(q, key, value, lengths, groups, softcap, parts, part_lse)
    merge_kernel(dim, dtype)(parts, part_lse, out, lse)
    return out, lse


def reference(q, key, value, lengths, softcap):
    groups = q.shape[1] // key.shape[2]
    key, value = (each.repeat_interleave(groups, 2) for each in (key, value))
    score = torch.einsum("bhd,blhd->bhl", q, key) / math.sqrt(q.shape[2])
    if softcap:
        score = softcap * torch.tanh(score / softcap)
    hidden = torch.arange(key.shape[1], device=q.device) >= lengths.unsqueeze(1)
    score = score.masked_fill(hidden.unsqueeze(1), -math.inf)
    value = value.masked_fill(hidden[:, :, None, None], 0)
    return torch.einsum("bhl,blhd->bhd", score.softmax(-1), value), score.logsumexp(-1)
