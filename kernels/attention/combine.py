"""The backward post-pass: float32 sums, or parts of sums, to gradients in 16 bits.

`atomic` leaves one float32 sum of dq, dk and dv each, which is a single part; `split` leaves a
part of dk and dv for each query head of a group. Parts are added in the order of the heads, in
float32, so the same parts give the same bits.
"""

import tilelang
import tilelang.language as T

__all__ = ["UNIT", "combine_parts"]

# Elements a thread moves at once: head dimensions are multiples of it.
UNIT = 8


@tilelang.jit
def combine_parts(parts_count, dtype, threads):
    """Build the kernel: parts [parts_count, units, UNIT] float32 to total [units, UNIT]."""
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
