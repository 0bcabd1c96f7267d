"""The regions of op(A) and op(B) that the GEMM kernels load, however A and B lie."""

__all__ = ["NO_TMA", "box", "shapes"]

NO_TMA = {"disable_tma": True}
"""Annotation of a copy that threads make, not the copy engine."""


def shapes(orientation, m, n, k):
    """The shapes of A and B, or of their tiles; `orientation` is (transpose_a, transpose_b)."""
    transpose_a, transpose_b = orientation
    return (k, m) if transpose_a else (m, k), (n, k) if transpose_b else (k, n)


def box(tensor, transposed, row, rows, column, columns):
    """The region of rows and columns of op(tensor)."""
    wide_row, wide_column = slice(row, row + rows), slice(column, column + columns)
    return tensor[wide_column, wide_row] if transposed else tensor[wide_row, wide_column]
