"""The shapes of op(A) and op(B), and the regions of them that the GEMM kernels load.

The copy engine (TMA) and `cp.async` read 16 bytes at once, from rows that start at multiples of
16 bytes. TileLang does not ask whether rows of a symbolic length do: it uses the copy engine
regardless, and never `cp.async`. So a kernel that is built for whole rows says so in its shapes: a
row of A or B is 8 (or however many elements make 16 bytes) times a symbol. Then both are used, and
TileLang refuses, at the call, tensors whose rows are of another length.
"""

import tilelang.language as T
from tvm import DataType

__all__ = ["NO_TMA", "ROW_BYTES", "box", "row_step", "shapes", "sizes"]

NO_TMA = {"disable_tma": True}
"""Annotation of a copy that threads make, not the copy engine."""
ROW_BYTES = 16
"""What the copy engine and `cp.async` read at once, and where rows must start."""


def sizes(orientation, step_a=1, step_b=1, step_c=1):
    """Symbolic (m, n, k), where a row of A is a multiple of `step_a` elements, of B, C alike.

    The steps are powers of two: where two rows are of one length, the greater holds for both.
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


def row_step(dtype):
    """Elements of a dtype in `ROW_BYTES`."""
    return ROW_BYTES * 8 // DataType(dtype).bits


def shapes(orientation, m, n, k):
    """The shapes of A and B, or of their tiles; `orientation` is (transpose_a, transpose_b)."""
    transpose_a, transpose_b = orientation
    return (k, m) if transpose_a else (m, k), (n, k) if transpose_b else (k, n)


def box(tensor, transposed, row, rows, column, columns):
    """The region of rows and columns of op(tensor)."""
    wide_row, wide_column = slice(row, row + rows), slice(column, column + columns)
    return tensor[wide_column, wide_row] if transposed else tensor[wide_row, wide_column]
