"""The backward post-pass: sums float32 partial gradients and casts them to 16 bits.

`atomic` leaves one float32 sum each of dq, dk and dv, i.e. one part; `split` leaves one part of dk
and dv for each query head of a group. Parts are added in float32 in the order of the heads, so the
result is bitwise reproducible.
"""

import tilelang
import tilelang.language as T

# Elements per thread and load; head dimensions are multiples of it.
UNIT = 8


@tilelang.jit
def combine_parts(parts_count, dtype, threads):
    """Build the kernel: sums parts [parts_count, units, UNIT] float32 to total [units, UNIT]."""
    units = T.dynamic("units")

    @T.prim_func
    def combine(
        parts: T.Tensor((parts_count, units, UNIT), "float32"),
        total: T.Tensor((units, UNIT), dtype),
    ):
        with T.Kernel(T.ceildiv(units, threads), threads=threads) as block:
            tally = T.alloc_fragment([threads, UNIT], "float32")
            T.clear(tally)
            for part in T.serial(parts_count):
                for i, j in T.Parallel(threads, UNIT):
                    tally[i, j] += parts[part, block * threads + i, j]
            for i, j in T.Parallel(threads, UNIT):
                total[block * threads + i, j] = tally[i, j]

    return combine
