"""RMS normalization (Zhang and Sennrich, arXiv:1910.07467), forward and backward.

With `rstd = 1 / sqrt(mean(x * x) + eps)` and `x_hat = x * rstd`, over the columns of a row:

    y  = x_hat * w
    dx = rstd * (w * dy - x_hat * mean(w * dy * x_hat))
    dw = sum over rows of dy * x_hat

Shapes and layout, all row-major:

    x, y, dx, dy [rows, cols]      float16, bfloat16 or float32
    w [cols]                       the dtype of x
    rstd [rows]                    float32, saved for the backward
    dw_partial [row_tiles, cols]   float32

One block owns `BLOCK_ROWS` rows and iterates over their columns in tiles twice, for the mean and
for the result: registers hold one tile whatever the row length, and the second pass reads from the
L2 cache. All arithmetic is float32. Each block stores a partial dw; the partials are summed in a
fixed order, so dw is bitwise reproducible.

rows and cols are symbolic: one compiled kernel serves every shape. Columns past the end are read as
zeros, which add nothing to a sum, and are not stored.
"""

import tilelang
import tilelang.language as T

BLOCK_ROWS = 8
"""Rows of a block: enough loads in flight to saturate memory bandwidth."""
BLOCK_COLS = 256
"""Columns of a tile: 512 bytes of a float16 row, four 128-byte lines."""
THREADS = 128


@tilelang.jit
def rms_norm_forward_kernel(dtype: str):
    """Build the forward kernel, which writes y and rstd."""
    rows, cols = T.dynamic("rows"), T.dynamic("cols")

    @T.prim_func
    def rms_norm_forward(
        X: T.Tensor([rows, cols], dtype),
        W: T.Tensor([cols], dtype),
        eps: T.float32,
        Y: T.Tensor([rows, cols], dtype),
        Rstd: T.Tensor([rows], "float32"),
    ):
        with T.Kernel(T.ceildiv(rows, BLOCK_ROWS), threads=THREADS) as block:
            x = T.alloc_fragment([BLOCK_ROWS, BLOCK_COLS], "float32")
            square = T.alloc_fragment([BLOCK_ROWS, BLOCK_COLS], "float32")
            total = T.alloc_fragment([BLOCK_ROWS], "float32")
            rstd = T.alloc_fragment([BLOCK_ROWS], "float32")

            T.clear(square)
            for tile in T.serial(T.ceildiv(cols, BLOCK_COLS)):
                T.copy(X[block * BLOCK_ROWS, tile * BLOCK_COLS], x)
                for i, j in T.Parallel(BLOCK_ROWS, BLOCK_COLS):
                    square[i, j] += x[i, j] * x[i, j]
            T.reduce_sum(square, total, dim=1)
            for i in T.Parallel(BLOCK_ROWS):
                rstd[i] = T.rsqrt(total[i] / cols + eps)
            T.copy(rstd, Rstd[block * BLOCK_ROWS])

            for tile in T.serial(T.ceildiv(cols, BLOCK_COLS)):
                T.copy(X[block * BLOCK_ROWS, tile * BLOCK_COLS], x)
                for i, j in T.Parallel(BLOCK_ROWS, BLOCK_COLS):
                    x[i, j] = x[i, j] * rstd[i] * W[tile * BLOCK_COLS + j]
                T.copy(x, Y[block * BLOCK_ROWS, tile * BLOCK_COLS])

    return rms_norm_forward


@tilelang.jit
def rms_norm_backward_kernel(dtype: str):
    """Build the backward kernel, which writes dx and dw_partial."""
    rows, cols, row_tiles = T.dynamic("rows"), T.dynamic("cols"), T.dynamic("row_tiles")

    @T.prim_func
    def rms_norm_backward(
        X: T.Tensor([rows, cols], dtype),
        W: T.Tensor([cols], dtype),
        Rstd: T.Tensor([rows], "float32"),
        DY: T.Tensor([rows, cols], dtype),
        DX: T.Tensor([rows, cols], dtype),
        DW_partial: T.Tensor([row_tiles, cols], "float32"),
    ):
        with T.Kernel(row_tiles, threads=THREADS) as block:
            x = T.alloc_fragment([BLOCK_ROWS, BLOCK_COLS], "float32")
            dy = T.alloc_fragment([BLOCK_ROWS, BLOCK_COLS], "float32")
            product = T.alloc_fragment([BLOCK_ROWS, BLOCK_COLS], "float32")
            total = T.alloc_fragment([BLOCK_ROWS], "float32")
            rstd = T.alloc_fragment([BLOCK_ROWS], "float32")
            dw = T.alloc_fragment([BLOCK_COLS], "float32")

            T.copy(Rstd[block * BLOCK_ROWS], rstd)
            T.clear(product)
            for tile in T.serial(T.ceildiv(cols, BLOCK_COLS)):
                T.copy(X[block * BLOCK_ROWS, tile * BLOCK_COLS], x)
                T.copy(DY[block * BLOCK_ROWS, tile * BLOCK_COLS], dy)
                for i, j in T.Parallel(BLOCK_ROWS, BLOCK_COLS):
                    product[i, j] += W[tile * BLOCK_COLS + j] * dy[i, j] * x[i, j] * rstd[i]
            T.reduce_sum(product, total, dim=1)

            for tile in T.serial(T.ceildiv(cols, BLOCK_COLS)):
                T.copy(X[block * BLOCK_ROWS, tile * BLOCK_COLS], x)
                T.copy(DY[block * BLOCK_ROWS, tile * BLOCK_COLS], dy)
                for i, j in T.Parallel(BLOCK_ROWS, BLOCK_COLS):
                    x[i, j] = x[i, j] * rstd[i]
                    product[i, j] = dy[i, j] * x[i, j]
                T.reduce_sum(product, dw, dim=0)
                T.copy(dw, DW_partial[block, tile * BLOCK_COLS])
                for i, j in T.Parallel(BLOCK_ROWS, BLOCK_COLS):
                    x[i, j] = rstd[i] * (
                        W[tile * BLOCK_COLS + j] * dy[i, j] - x[i, j] * (total[i] / cols)
                    )
                T.copy(x, DX[block * BLOCK_ROWS, tile * BLOCK_COLS])

    return rms_norm_backward
