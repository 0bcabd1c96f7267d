"""Rotary embedding of packed queries and keys, in place."""

import tilelang
import tilelang.language as T
import torch


@tilelang.jit
def rope_kernel(heads, head_dim, rot_dim, dtype, block_t=32, threads=128):
    half = rot_dim // 2
    total, bounds, positions = T.dynamic("total, bounds, positions")

    @T.prim_func
    def rope(
        X: T.Tensor((total, heads, head_dim), dtype),
        Cos: T.Tensor((positions, half), "float32"),
        Sin: T.Tensor((positions, half), "float32"),
        CuSeqlens: T.Tensor((bounds,), "int32"),
    ):
        with T.Kernel(T.ceildiv(positions, block_t), heads, bounds - 1, threads=threads) as (
            bt,
            h,
            b,
        ):
            left = T.alloc_fragment([block_t, half], "float32")
            right = T.alloc_fragment([block_t, half], "float32")
            start = CuSeqlens[b]
            length = CuSeqlens[b + 1] - start
            for i, j in T.Parallel(block_t, half):
                t = bt * block_t + i
                if t < length:
                    left[i, j] = X[start + t, h, j]
                    right[i, j] = X[start + t, h, half + j]
            for i, j in T.Parallel(block_t, half):
                t = bt * block_t + i
                if t < length:
                    X[start + t, h, j] = left[i, j] * Cos[t, j] - right[i, j] * Sin[t, j]
                    X[start + t, h, half + j] = right[i, j] * Cos[t, j] + left[i, j] * Sin[t, j]

    return rope


def apply_rope_(q, k, cos, sin, cu_seqlens):
    """Rotates q and k where they are; `cos` and `sin` have a row for every position."""
    for x in (q, k):
        _, heads, head_dim = x.shape
        if x.numel():
            dtype = str(x.dtype).split(".")[-1]
            kernel = rope_kernel(heads, head_dim, 2 * cos.shape[1], dtype)
            kernel(x, cos, sin, cu_seqlens)


def reference(q, k, cos, sin, cu_seqlens):
    lengths = cu_seqlens.diff().tolist()
    position = torch.cat([torch.arange(n, device=q.device) for n in lengths])
    cos, sin = cos[position].unsqueeze(1), sin[position].unsqueeze(1)
    half = cos.shape[-1]

    def rotate(x):
        left, right, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([left * cos - right * sin, right * cos + left * sin, rest], -1)

    return rotate(q), rotate(k)
