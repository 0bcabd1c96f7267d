"""Softmax over the rows of each segment, column by column (edge weights of a graph, say)."""

import tilelang
import tilelang.language as T
import torch


@tilelang.jit
def segment_softmax_kernel(dtype="float16", block_rows=32, block_cols=32, threads=128):
    total, cols, bounds = T.dynamic("total, cols, bounds")

    @T.prim_func
    def segment_softmax(
        X: T.Tensor((total, cols), dtype),
        Offsets: T.Tensor((bounds,), "int32"),
        Y: T.Tensor((total, cols), dtype),
    ):
        with T.Kernel(T.ceildiv(cols, block_cols), bounds - 1, threads=threads) as (bc, seg):
            x = T.alloc_fragment([block_rows, block_cols], "float32")
            top = T.alloc_fragment([block_cols], "float32")
            top_before = T.alloc_fragment([block_cols], "float32")
            norm = T.alloc_fragment([block_cols], "float32")
            start = Offsets[seg]
            end = Offsets[seg + 1]

            T.fill(top, -1e30)
            T.clear(norm)
            for tile in T.serial(T.ceildiv(end - start, block_rows)):
                for i, j in T.Parallel(block_rows, block_cols):
                    row = start + tile * block_rows + i
                    col = bc * block_cols + j
                    if row < end and col < cols:
                        x[i, j] = X[row, col]
                    else:
                        x[i, j] = -1e30
                T.copy(top, top_before)
                T.reduce_max(x, top, dim=0, clear=False)
                for j in T.Parallel(block_cols):
                    norm[j] *= T.exp(top_before[j] - top[j])
                for i, j in T.Parallel(block_rows, block_cols):
                    x[i, j] = T.exp(x[i, j] - top[j])
                T.reduce_sum(x, norm, dim=0, clear=False)

            for tile in T.serial(T.ceildiv(end - start, block_rows)):
                for i, j in T.Parallel(block_rows, block_cols):
                    row = start + tile * block_rows + i
                    col = bc * block_cols + j
                    if row < end and col < cols:
                        Y[row, col] = T.exp(X[row, col] - top[j]) / norm[j]

    return segment_softmax


def reference(x, offsets):
    parts = [part.softmax(0) for part in x.tensor_split(offsets[1:-1].tolist())]
    return torch.cat(parts)
