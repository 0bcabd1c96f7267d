"""Matrix multiplication of operands of 8 bits, or of 16 and 8: `C = op(A) @ op(B) * scale`.

Shapes and layout are those of `kernel`, all row-major:

    A [M, K], or [K, M] when transpose_a      a dtype of its own
    B [K, N], or [N, K] when transpose_b      another
    scale [N]                                 float32: a factor of each column of op(B), if `scaled`
    C [M, N]                                  out_dtype

The factors are multiplied as `Products` says:

    float16, bfloat16 by int8, float8     in the dtype of A, to which B is widened in the kernel
    float8 by float8                      as they are where tensor cores can, else in float16
    int8 by int8                          as they are, summed in int32: exact

float16 and bfloat16 hold every value of int8 and of both float8 (e4m3, e5m2) exactly, so nothing is
rounded but sums, in float32, and the result, once: a column's scale multiplies its sums, not its
factors. (Both float8 reach no further than float16; bfloat16 holds integers up to 256.)

Hopper's tensor cores keep 14 bits of a sum of float8 products: of each 32 of them, and of the sum
so far, what lies below the 14th bit of the largest is cut off. So those are summed over one step of
64 of K only, and the sums of steps are added in float32 by the threads (`promote`). Steps of 128
are a fifth faster, and off by three times what the specs allow where all factors are positive.

Tensor cores take 8-bit factors only with K along the rows. A tile that lies the other way is turned
in shared memory.

Tiles at the edge read zeros outside A and B, which add nothing, and what they hold outside C is not
stored. `whole_rows` as in `kernel`; 16 bytes are 16 elements of 8 bits.
"""

import tilelang
import tilelang.language as T

from tlmatrix_kernels.gemm.boxes import NO_TMA, box, row_step, shapes, sizes
from tlmatrix_kernels.gemm.kernel import PANEL
from tlmatrix_kernels.gemm.tiles import Tiles, mixed_tiles
from tlmatrix_kernels.target import capability

__all__ = ["BITS", "mixed_kernel", "products"]

BITS = {"float16": 16, "bfloat16": 16, "int8": 8, "float8_e4m3fn": 8, "float8_e5m2": 8}
"""Bits of an element of the dtypes of A and B."""
_FLOAT8_PRODUCTS = 89
"""Tensor cores multiply float8 from this compute capability on."""


def products(a_dtype, b_dtype, arch):
    """The dtype in which factors are multiplied on a GPU of that compute capability (90)."""
    if BITS[a_dtype] == 16:
        return a_dtype
    if a_dtype == "int8" or (a_dtype == b_dtype and arch >= _FLOAT8_PRODUCTS):
        return a_dtype
    return "float16"


@T.macro
def _prepare(tile, factors, stored, turned):
    """`factors` = the values of `tile`, [rows, columns], turned if the tensor cores need it."""
    rows, columns = stored
    values = T.alloc_fragment([rows, columns], tile.dtype)
    T.copy(tile, values)
    for i, j in T.Parallel(rows, columns):
        if turned:
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
    """The kernel of dtypes and orientation; it is called with (A, B, C), or (A, B, scale, C).

    `size` picks the tiles for the target (see `tiles`), where they are not given.
    """
    orientation = (transpose_a, transpose_b)
    product_dtype = products(a_dtype, b_dtype, capability())
    eight = BITS[product_dtype] == 8
    turn_a, turn_b = eight and transpose_a, eight and not transpose_b
    prepare_a = turn_a or a_dtype != product_dtype
    prepare_b = turn_b or b_dtype != product_dtype
    sums = "int32" if product_dtype == "int8" else "float32"
    promote = eight and sums == "float32"
    tiles = tiles or mixed_tiles(
        capability(), size, product_dtype=product_dtype, prepared=prepare_a or prepare_b,
        whole_rows=whole_rows,
    )  # fmt: skip
    options = {} if whole_rows else NO_TMA
    block_m, block_n, block_k = tiles.block_m, tiles.block_n, tiles.block_k
    M, N, K = sizes(orientation, *((row_step(a_dtype), row_step(b_dtype)) if whole_rows else ()))
    a_shape, b_shape = shapes(orientation, M, N, K)
    a_box, b_box = shapes(orientation, block_m, block_n, block_k)
    # What the tensor cores read: A with K along its rows if of 8 bits, and B alike.
    a_factors, b_factors = shapes(
        (transpose_a and not eight, transpose_b or eight), block_m, block_n, block_k
    )

    @T.macro
    def multiply(A, B, scale, C):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(M, block_m), threads=tiles.threads) as (
            bn,
            bm,
        ):
            a_tile = T.alloc_shared(a_box, a_dtype)
            b_tile = T.alloc_shared(b_box, b_dtype)
            a_wide = T.alloc_shared(a_factors, product_dtype)
            b_wide = T.alloc_shared(b_factors, product_dtype)
            acc = T.alloc_fragment([block_m, block_n], sums)
            step_sums = T.alloc_fragment([block_m, block_n], sums)
            total = T.alloc_fragment([block_m, block_n], "float32")
            m, n = bm * block_m, bn * block_n
            T.use_swizzle(PANEL)

            T.clear(acc)
            for step in T.Pipelined(T.ceildiv(K, block_k), num_stages=tiles.num_stages):
                k = step * block_k
                T.copy(box(A, transpose_a, m, block_m, k, block_k), a_tile, annotations=options)
                T.copy(box(B, transpose_b, k, block_k, n, block_n), b_tile, annotations=options)
                if prepare_a:
                    _prepare(a_tile, a_wide, a_box, turn_a)
                if prepare_b:
                    _prepare(b_tile, b_wide, b_box, turn_b)
                left, right = a_wide if prepare_a else a_tile, b_wide if prepare_b else b_tile
                T.gemm(
                    left, right, step_sums if promote else acc,
                    transpose_A=transpose_a and not eight, transpose_B=transpose_b or eight,
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

    if scaled:

        @T.prim_func
        def gemm_mixed_scaled(
            A: T.Tensor(a_shape, a_dtype),
            B: T.Tensor(b_shape, b_dtype),
            scale: T.Tensor([N], "float32"),
            C: T.Tensor([M, N], out_dtype),
        ):
            multiply(A, B, scale, C)

        return gemm_mixed_scaled

    @T.prim_func
    def gemm_mixed(
        A: T.Tensor(a_shape, a_dtype),
        B: T.Tensor(b_shape, b_dtype),
        C: T.Tensor([M, N], out_dtype),
    ):
        multiply(A, B, None, C)

    return gemm_mixed
