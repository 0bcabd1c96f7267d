"""A and B of the GEMM kernels as stored, their tiles, and the loop over K.

TMA and `cp.async` copy 16 bytes at a time, from rows that start at multiples of 16 bytes. For rows
of a symbolic length, TileLang does not check that: it uses TMA regardless, and never `cp.async`. A
kernel with `whole_rows` therefore declares it in its shapes: the length of a row of A or B is a
symbol times the elements in 16 bytes (8 of 16-bit elements). TileLang then uses both, and checks
the lengths at the call.
"""

from dataclasses import dataclass
from typing import Any

import tilelang.language as T
from tvm import DataType

from tlmatrix_kernels.pipeline import keep_producer_together

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


@dataclass(frozen=True)
class Operands:
    """A and B in one orientation, with symbolic M, N and K, and the shapes of a block's tiles.

    `copied` are the annotations of the copies from and to global memory.
    """

    transpose_a: bool
    transpose_b: bool
    M: Any
    N: Any
    K: Any
    a_shape: tuple
    b_shape: tuple
    a_tile: tuple
    b_tile: tuple
    copied: dict[str, bool]

    @property
    def tma(self):
        """Whether TMA copies."""
        return not self.copied


def operands_of(orientation, blocks, row_steps, *, tma):
    """The operands of a kernel.

    Args:
        orientation: (transpose_a, transpose_b).
        blocks: block_m, block_n and block_k, the sizes of the tiles.
        row_steps: the elements of which rows of A, B and C are multiples, see `symbolic_mnk`.
        tma: whether TMA copies, which needs rows of multiples of 16 bytes.
    """
    sizes = symbolic_mnk(orientation, *row_steps)
    a_shape, b_shape = op_shapes(orientation, *sizes)
    a_tile, b_tile = op_shapes(orientation, *blocks)
    return Operands(*orientation, *sizes, a_shape, b_shape, a_tile, b_tile, {} if tma else NO_TMA)


def loaded_operands(dtype, orientation, tiles, *, whole_rows):
    """The operands of a kernel with `tiles.Tiles`, of one dtype; `whole_rows` as in the module."""
    steps = [row_multiple(dtype)] * 2 if whole_rows else []
    blocks = tiles.block_m, tiles.block_n, tiles.block_k
    return operands_of(orientation, blocks, steps, tma=whole_rows)


@T.macro
def sum_products(A, B, a_tile, b_tile, acc, m, n, first, steps, operands, tiles):
    """Add `steps` K steps from `first` on of the tile of op(A) @ op(B) at [m, n] to `acc`."""
    transpose_a, transpose_b, options = (
        operands.transpose_a, operands.transpose_b, operands.copied,
    )  # fmt: skip
    for step in T.Pipelined(steps, num_stages=tiles.num_stages):
        if operands.tma:
            keep_producer_together()
        k = (first + step) * tiles.block_k
        T.copy(
            op_tile(A, transpose_a, m, tiles.block_m, k, tiles.block_k), a_tile, annotations=options
        )
        T.copy(
            op_tile(B, transpose_b, k, tiles.block_k, n, tiles.block_n), b_tile, annotations=options
        )
        T.gemm(a_tile, b_tile, acc, transpose_A=transpose_a, transpose_B=transpose_b)
