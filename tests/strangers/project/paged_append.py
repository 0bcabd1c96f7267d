"""Append new keys and values to a paged cache: a custom op that writes to the cache."""

from itertools import pairwise

import tilelang
import tilelang.language as T
import torch
from torch import Tensor


@tilelang.jit
def append_kernel(heads, head_dim, page_size, dtype, block_t=16, threads=128):
    total, bounds, batch, pages, columns = T.dynamic("total, bounds, batch, pages, columns")

    @T.prim_func
    def paged_append(
        Key: T.Tensor((total, heads, head_dim), dtype),
        Value: T.Tensor((total, heads, head_dim), dtype),
        KeyCache: T.Tensor((pages, page_size, heads, head_dim), dtype),
        ValueCache: T.Tensor((pages, page_size, heads, head_dim), dtype),
        BlockTable: T.Tensor((batch, columns), "int32"),
        CuNew: T.Tensor((bounds,), "int32"),
        ContextLens: T.Tensor((batch,), "int32"),
        max_new: T.int32,
    ):
        with T.Kernel(T.ceildiv(max_new, block_t), batch, threads=threads) as (bt, b):
            start = CuNew[b]
            count = CuNew[b + 1] - start
            # The context counts the new tokens, too.
            before = ContextLens[b] - count
            for i, h, d in T.Parallel(block_t, heads, head_dim):
                t = bt * block_t + i
                if t < count:
                    slot = before + t
                    page = BlockTable[b, slot // page_size]
                    KeyCache[page, slot % page_size, h, d] = Key[start + t, h, d]
                    ValueCache[page, slot % page_size, h, d] = Value[start + t, h, d]

    return paged_append


@torch.library.custom_op("pagedkv::append", mutates_args=("key_cache", "value_cache"))
def append(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    cu_new: Tensor,
    context_lens: Tensor,
    max_new: int,
) -> None:
    if key.numel() == 0:
        return
    _, page_size, heads, head_dim = key_cache.shape
    kernel = append_kernel(heads, head_dim, page_size, str(key.dtype).split(".")[-1])
    kernel(key, value, key_cache, value_cache, block_table, cu_new, context_lens, max_new)


def append_torch(key, value, key_cache, value_cache, block_table, cu_new, context_lens):
    key_cache, value_cache = key_cache.clone(), value_cache.clone()
    page_size = key_cache.shape[1]
    bounds = cu_new.tolist()
    for b, (start, end) in enumerate(pairwise(bounds)):
        context = int(context_lens[b])
        for row in range(start, end):
            slot = context - end + row
            page = block_table[b, slot // page_size]
            key_cache[page, slot % page_size] = key[row]
            value_cache[page, slot % page_size] = value[row]
    return key_cache, value_cache
