"""Shapes of A and B as stored, and the tiles of op(A) and op(B) that the GEMM kernels load.

TMA and `cp.async` copy 16 bytes at a time, from rows that start at multiples of 16 bytes. For rows
of a symbolic length, TileLang does not check that: it uses TMA regardless, and never `cp.async`. A
kernel with `whole_rows` therefore declares it in its shapes: the length of a row of A or B is a
symbol times the elements in 16 bytes (8 of 16-bit elements). TileLang then uses both, and checks
the lengths at the call.
"""

import tilelang.language as T
from tvm import DataType

NO_TMA = {"disable_tma": True}
"""Annotation of a copy that the threads do, not TMA."""
ROW_BYTES = 16
"""Bytes per copy of TMA and `cp.async`, and the alignment of the rows they copy."""


def symbolic_mnk(orientation, step_a=1, step_b=1, step_c=1):
    """Symbolic (m, n, k); rows of A, B and C are multiples of `step_a`, `step_b`, `step_c`.

    The steps are powers of two: of two rows with the same length, the larger step applies to both.
    """
    transpose_a, transpose_b = orientation
    rows = (("m" if transpose_a else "k", step_a), ("k" if transpose_b else "n", step_b))
    steps = dict.fromkeys("mnk", 1)
    for name, step in (*rows, ("n", step_c)):
        steps[name] = max(steps[name], step)
    return tuple(
        T.dynamic(name) if step == 1 else T.dynamic(f"{name}_by_{step}") * step
        for name, step in steps.items()
    )


def row_multiple(dtype):
    """The elements of a dtype in `ROW_BYTES`."""
    return ROW_BYTES * 8 // DataType(dtype).bits


def op_shapes(orientation, m, n, k):
    """Stored shapes of A and B, or of their tiles; `orientation` is (transpose_a, transpose_b)."""
    transpose_a, transpose_b = orientation
    return (k, m) if transpose_a else (m, k), (n, k) if transpose_b else (k, n)


def op_tile(tensor, transposed, row, rows, column, columns):
    """The region [row : row + rows, column : column + columns] of op(tensor)."""
    wide_row, wide_column = slice(row, row + rows), slice(column, column + columns)
    return tensor[wide_column, wide_row] if transposed else tensor[wide_row, wide_column]
