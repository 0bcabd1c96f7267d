"""Symmetric int8 quantization, one scale a token."""

import tilelang
import tilelang.language as T
import torch


@tilelang.jit
def quantize_per_token(X, dtype: str = "float16", block_rows: int = 8, block_cols: int = 128):
    rows, cols = T.const("rows, cols")
    X: T.Tensor[[rows, cols], dtype]
    Q = T.empty([rows, cols], "int8")
    S = T.empty([rows], "float32")

    with T.Kernel(T.ceildiv(rows, block_rows), threads=128) as bx:
        x = T.alloc_fragment([block_rows, block_cols], "float32")
        amax = T.alloc_fragment([block_rows], "float32")
        T.clear(amax)
        for tile in T.serial(T.ceildiv(cols, block_cols)):
            T.copy(X[bx * block_rows, tile * block_cols], x)
            T.reduce_absmax(x, amax, dim=1, clear=False)
        for i in T.Parallel(block_rows):
            amax[i] = T.max(amax[i], 1e-10) / 127.0
            if bx * block_rows + i < rows:
                S[bx * block_rows + i] = amax[i]
        for tile in T.serial(T.ceildiv(cols, block_cols)):
            T.copy(X[bx * block_rows, tile * block_cols], x)
            for i, j in T.Parallel(block_rows, block_cols):
                if bx * block_rows + i < rows and tile * block_cols + j < cols:
                    Q[bx * block_rows + i, tile * block_cols + j] = T.cast(
                        T.max(T.min(T.round(x[i, j] / amax[i]), 127.0), -127.0), "int8"
                    )
    return Q, S


def reference(x):
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 127
    q = torch.round(x / scale).clamp(-127, 127)
    return q.to(torch.int8), scale.squeeze(-1)
