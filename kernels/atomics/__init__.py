"""Atomics as kernels use them: sums into memory in any order of its elements, and single cells.

No algorithm needs these operators: they are the smallest kernels that show whether a compiler gets
atomics right, on which the gradients of `attention` rely.
"""

from tlmatrix_kernels.atomics.cells import atomic_cells
from tlmatrix_kernels.atomics.layout import atomic_add_layout

__all__ = ["atomic_add_layout", "atomic_cells"]
