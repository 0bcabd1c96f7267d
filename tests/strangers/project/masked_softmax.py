"""Softmax of scores under a causal mask with a window; rows that see no column are 0."""

import tilelang
import tilelang.language as T
import torch


@tilelang.jit
def masked_softmax_kernel(dtype="float16", block_rows=16, block_cols=32, threads=128):
    batch, rows, cols = T.dynamic("batch, rows, cols")

    @T.prim_func
    def masked_softmax(
        X: T.Tensor((batch, rows, cols), dtype),
        window: T.int32,
        Y: T.Tensor((batch, rows, cols), dtype),
    ):
        with T.Kernel(T.ceildiv(rows, block_rows), batch, threads=threads) as (bx, b):
            x = T.alloc_fragment([block_rows, block_cols], "float32")
            top = T.alloc_fragment([block_rows], "float32")
            top_before = T.alloc_fragment([block_rows], "float32")
            norm = T.alloc_fragment([block_rows], "float32")
            # The last row sees up to the last column.
            first = bx * block_rows + cols - rows
            last = first + block_rows - 1
            begin = T.max(first - window + 1, 0) // block_cols
            end = T.ceildiv(T.max(T.min(last + 1, cols), 0), block_cols)

            T.fill(top, -1e30)
            T.clear(norm)
            for step in T.serial(T.max(end - begin, 0)):
                left = (begin + step) * block_cols
                for i, j in T.Parallel(block_rows, block_cols):
                    if bx * block_rows + i < rows and left + j < cols:
                        x[i, j] = X[b, bx * block_rows + i, left + j]
                    else:
                        x[i, j] = -1e30
                if left + block_cols - 1 > first or left <= last - window:
                    for i, j in T.Parallel(block_rows, block_cols):
                        if left + j > first + i or left + j <= first + i - window:
                            x[i, j] = -1e30
                T.copy(top, top_before)
                T.reduce_max(x, top, dim=1, clear=False)
                for i in T.Parallel(block_rows):
                    norm[i] *= T.exp(top_before[i] - top[i])
                for i, j in T.Parallel(block_rows, block_cols):
                    x[i, j] = T.exp(x[i, j] - top[i])
                T.reduce_sum(x, norm, dim=1, clear=False)

            for tile in T.serial(T.ceildiv(cols, block_cols)):
                for i, j in T.Parallel(block_rows, block_cols):
                    row = bx * block_rows + i
                    col = tile * block_cols + j
                    if row < rows and col < cols:
                        if col <= first + i and col > first + i - window:
                            Y[b, row, col] = T.exp(X[b, row, col] - top[i]) / norm[i]
                        else:
                            Y[b, row, col] = 0

    return masked_softmax


MOST_ELEMENTS = 2**28
"""Of a launch; larger batches are cut into single matrices."""


def masked_softmax(x, window=None):
    y = torch.empty_like(x)
    if x.numel():
        kernel = masked_softmax_kernel(str(x.dtype).split(".")[-1])
        size = len(x) if x.numel() <= MOST_ELEMENTS else 1
        for part, result in zip(x.split(size), y.split(size), strict=True):
            kernel(part, sum(x.shape) if window is None else window, result)
    return y


def reference(x, window=None):
    rows, cols = x.shape[1:]
    behind = torch.arange(rows).unsqueeze(1) + cols - rows - torch.arange(cols)
    visible = (behind >= 0) & (behind < (sum(x.shape) if window is None else window))
    y = x.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.where(visible, y, 0)
