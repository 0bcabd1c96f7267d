"""Asymmetric uint8 quantization of a KV cache, with a scale and a zero point for each group."""

import tilelang
import tilelang.language as T
import torch

GROUP = 32


@tilelang.jit
def quantize_groups(dtype, group=GROUP, block_rows=16, threads=128):
    rows, cols, groups = T.dynamic("rows, cols, groups")

    @T.prim_func
    def quantize(
        X: T.Tensor((rows, cols), dtype),
        Q: T.Tensor((rows, cols), "uint8"),
        Scale: T.Tensor((rows, groups), "float32"),
        Zero: T.Tensor((rows, groups), "float32"),
    ):
        with T.Kernel(T.ceildiv(rows, block_rows), groups, threads=threads) as (bx, g):
            x = T.alloc_fragment([block_rows, group], "float32")
            low = T.alloc_fragment([block_rows], "float32")
            high = T.alloc_fragment([block_rows], "float32")

            # Columns past the last repeat it, and change neither the least nor the largest.
            for i, j in T.Parallel(block_rows, group):
                row = T.min(bx * block_rows + i, rows - 1)
                x[i, j] = X[row, T.min(g * group + j, cols - 1)]
            T.reduce_min(x, low, dim=1)
            T.reduce_max(x, high, dim=1)
            for i in T.Parallel(block_rows):
                high[i] = T.max((high[i] - low[i]) / 255.0, 1e-10)
                if bx * block_rows + i < rows:
                    Scale[bx * block_rows + i, g] = high[i]
                    Zero[bx * block_rows + i, g] = low[i]
            for i, j in T.Parallel(block_rows, group):
                if bx * block_rows + i < rows and g * group + j < cols:
                    Q[bx * block_rows + i, g * group + j] = T.cast(
                        T.min(T.round((x[i, j] - low[i]) / high[i]), 255.0), "uint8"
                    )

    return quantize


def quantize(x):
    rows, cols = x.shape
    groups = -(-cols // GROUP)
    q = torch.empty(rows, cols, dtype=torch.uint8, device=x.device)
    scale, zero = torch.empty(2, rows, groups, device=x.device).unbind(0)
    quantize_groups(str(x.dtype).split(".")[-1])(x, q, scale, zero)
    return q, scale, zero


def reference(x):
    q, scales, zeros = [], [], []
    for part in x.split(GROUP, dim=1):
        low, high = part.aminmax(dim=1, keepdim=True)
        scale = ((high - low) / 255).clamp(min=1e-10)
        q.append(torch.round((part - low) / scale).clamp(0, 255).to(torch.uint8))
        scales.append(scale)
        zeros.append(low)
    return torch.cat(q, 1), torch.cat(scales, 1), torch.cat(zeros, 1)
