"""Matrix multiplication of 8-bit operands, or 16-bit by 8-bit: `C = op(A) @ op(B) * scale`.

Shapes and layout are those of `kernel`, all row-major:

    A [M, K], or [K, M] when transpose_a      dtypes of A and B may differ
    B [K, N], or [N, K] when transpose_b
    scale [N]                                 float32, one factor per column of op(B), if `scaled`
    C [M, N]                                  out_dtype

`products` gives the dtype in which operands are multiplied:

    float16, bfloat16 by int8, float8     the dtype of A; the kernel converts B
    float8 by float8                      unconverted if the tensor cores can, else in float16
    int8 by int8                          unconverted, accumulated exactly in int32

The conversions are exact: float16 represents every value of int8 and of both float8 formats (e4m3,
e5m2), and so does bfloat16. Only the float32 sums and the result are rounded; the scale multiplies
the sums of a column, not its operands.

Hopper's tensor cores accumulate float8 products with a 14-bit mantissa: of each 32 products and the
running sum, bits below the 14th bit of the largest are truncated. The kernel therefore accumulates
one K step of 64 in the tensor cores, and adds the steps in float32 on the CUDA cores (`promote`).
Steps of 128 are a fifth faster, but for positive operands the error is three times the tolerance
of the specs.

Tensor cores need 8-bit operands K-major. A tile in the other orientation is transposed in shared
memory.

Partial tiles read zeros outside A and B, and are not stored outside C. `whole_rows` as in `kernel`;
16 bytes are 16 elements of 8 bits.
"""

import tilelang
import tilelang.language as T

from tlmatrix_kernels.gemm.kernel import PANEL
from tlmatrix_kernels.gemm.operands import op_shapes, op_tile, operands_of, row_multiple
from tlmatrix_kernels.gemm.tiles import Tiles, mixed_tiles
from tlmatrix_kernels.parameters import absent, named
from tlmatrix_kernels.pipeline import keep_producer_together
from tlmatrix_kernels.target import capability

BITS = {"float16": 16, "bfloat16": 16, "int8": 8, "float8_e4m3fn": 8, "float8_e5m2": 8}
"""Element size in bits of the dtypes of A and B."""
_FLOAT8_PRODUCTS = 89
"""The lowest compute capability with float8 tensor cores."""


def products(a_dtype, b_dtype, arch):
    """The dtype in which operands are multiplied, for a compute capability such as 90."""
    if BITS[a_dtype] == 16:
        return a_dtype
    if a_dtype == "int8" or (a_dtype == b_dtype and arch >= _FLOAT8_PRODUCTS):
        return a_dtype
    return "float16"


@T.macro
def _convert(tile, factors, stored, transposed):
    """Convert `tile`, of shape `stored`, to the dtype of `factors`, transposed if `transposed`."""
    rows, columns = stored
    values = T.alloc_fragment([rows, columns], tile.dtype)
    T.copy(tile, values)
    for i, j in T.Parallel(rows, columns):
        if transposed:
            factors[j, i] = T.cast(values[i, j], factors.dtype)
        else:
            factors[i, j] = T.cast(values[i, j], factors.dtype)


@tilelang.jit
def mixed_kernel(
    a_dtype: str,
    b_dtype: str,
    out_dtype: str,
    transpose_a: bool,
    transpose_b: bool,
    accumulate: bool,
    scaled: bool,
    whole_rows: bool,
    size: str = "narrow",
    tiles: Tiles | None = None,
):
    """Build the kernel, called with (A, B, C), or (A, B, scale, C) if `scaled`.

    `size` selects the tiles for the target (see `tiles`) if `tiles` is None.
    """
    orientation = (transpose_a, transpose_b)
    product_dtype = products(a_dtype, b_dtype, capability())
    is_8bit = BITS[product_dtype] == 8
    transpose_tile_a, transpose_tile_b = is_8bit and transpose_a, is_8bit and not transpose_b
    convert_a = transpose_tile_a or a_dtype != product_dtype
    convert_b = transpose_tile_b or b_dtype != product_dtype
    sums = "int32" if product_dtype == "int8" else "float32"
    promote = is_8bit and sums == "float32"
    tiles = tiles or mixed_tiles(
        capability(), size, product_dtype=product_dtype, converted=convert_a or convert_b,
        whole_rows=whole_rows,
    )  # fmt: skip
    block_m, block_n, block_k = tiles.block_m, tiles.block_n, tiles.block_k
    steps = (row_multiple(a_dtype), row_multiple(b_dtype)) if whole_rows else ()
    operands = operands_of(orientation, (block_m, block_n, block_k), steps, tma=whole_rows)
    M, N, K, options = operands.M, operands.N, operands.K, operands.copied
    # The shapes that the tensor cores read: 8-bit operands are K-major.
    a_factors, b_factors = op_shapes(
        (transpose_a and not is_8bit, transpose_b or is_8bit), block_m, block_n, block_k
    )

    @T.prim_func
    @named("gemm_mixed_scaled" if scaled else "gemm_mixed")
    def gemm_mixed(
        A: T.Tensor(operands.a_shape, a_dtype),
        B: T.Tensor(operands.b_shape, b_dtype),
        scale: T.Tensor([N], "float32") if scaled else absent,
        C: T.Tensor([M, N], out_dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=tiles.threads) as (
            bn,
            bm,
        ):
            a_tile = T.alloc_shared(operands.a_tile, a_dtype)
            b_tile = T.alloc_shared(operands.b_tile, b_dtype)
            a_converted = T.alloc_shared(a_factors, product_dtype)
            b_converted = T.alloc_shared(b_factors, product_dtype)
            acc = T.alloc_fragment([block_m, block_n], sums)
            step_sums = T.alloc_fragment([block_m, block_n], sums)
            total = T.alloc_fragment([block_m, block_n], "float32")
            m, n = bm * block_m, bn * block_n
            T.use_swizzle(PANEL)

            T.clear(acc)
            for step in T.Pipelined(T.ceildiv(K, block_k), num_stages=tiles.num_stages):
                if whole_rows:  # of TMA copies
                    keep_producer_together()
                k = step * block_k
                T.copy(op_tile(A, transpose_a, m, block_m, k, block_k), a_tile, annotations=options)
                T.copy(op_tile(B, transpose_b, k, block_k, n, block_n), b_tile, annotations=options)
                if convert_a:
                    _convert(a_tile, a_converted, operands.a_tile, transpose_tile_a)
                if convert_b:
                    _convert(b_tile, b_converted, operands.b_tile, transpose_tile_b)
                left, right = (
                    a_converted if convert_a else a_tile,
                    b_converted if convert_b else b_tile,
                )
                T.gemm(
                    left, right, step_sums if promote else acc,
                    transpose_A=transpose_a and not is_8bit, transpose_B=transpose_b or is_8bit,
                    clear_accum=promote,
                )  # fmt: skip
                if promote:
                    for i, j in T.Parallel(block_m, block_n):
                        acc[i, j] += step_sums[i, j]
            if out_dtype == "int32":
                if accumulate:
                    for i, j in T.Parallel(block_m, block_n):
                        acc[i, j] += C[m + i, n + j]
                T.copy(acc, C[m, n])
            else:
                for i, j in T.Parallel(block_m, block_n):
                    total[i, j] = T.cast(acc[i, j], "float32")
                    if scaled:
                        total[i, j] *= scale[n + j]
                    if accumulate:
                        total[i, j] += T.cast(C[m + i, n + j], "float32")
                T.copy(total, C[m, n])

    return gemm_mixed
