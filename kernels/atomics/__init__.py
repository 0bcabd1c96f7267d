"""Operators that test a compiler's atomics: sums into annotated layouts, and single cells.

No model needs them. They are the smallest kernels that use atomics the way the backward pass of
`attention` does.
"""

from tlmatrix_kernels.atomics.cells import atomic_cells
from tlmatrix_kernels.atomics.layout import atomic_add_layout

__all__ = ["atomic_add_layout", "atomic_cells"]
