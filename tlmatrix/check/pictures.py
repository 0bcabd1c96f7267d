"""Pictures of the wrong elements of a tensor, small enough for a results file.

A picture is a grid over two dimensions: rows by columns, then every other dimension (heads, batch)
by rows. A cell covers a rectangle of elements, counted over all other dimensions, and has the share
of them that is wrong in 16 levels; 0 means that none is.
"""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.check.patterns import ROW_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from tlmatrix.problem.model import Dim

LEVELS = 15
"""The level of a cell whose elements are all wrong."""
_ROWS, _COLUMNS = 64, 96
"""Most cells of a picture."""
_VIEWS = 3
"""Most pictures of a tensor."""
_STARTS = 65
"""Most starts of sequences that a picture keeps."""


def pictures(
    wrong: torch.Tensor, dims: Sequence[Dim], worst: Sequence[int]
) -> tuple[Mapping[str, Any], ...]:
    """The pictures of a mask of wrong elements, the most useful first; plain data.

    Each has `axes` (the names of the dimension of rows and of columns), `size` (elements along
    each), `cell` (elements along a side of a cell), `cells` (`cells_of` decodes them), `worst` (the
    index of the worst element), and for each axis `tile` and `starts` (of packed sequences) or
    None.
    """
    axes = [axis for axis, size in enumerate(wrong.shape) if size > 1]
    return tuple(_picture(wrong, dims, worst, *pair) for pair in _pairs(axes, dims)[:_VIEWS])


def _pairs(axes: Sequence[int], dims: Sequence[Dim]) -> list[tuple[int | None, int]]:
    """The axes of rows and of columns of each picture."""
    if not axes:
        return []
    if len(axes) == 1:
        return [(None, axes[0])]
    named = [axis for axis in axes if dims[axis].starts is not None or dims[axis].name in ROW_NAMES]
    row = named[0] if named else max(axes[:-1], key=lambda axis: dims[axis].size)
    pairs: list[tuple[int | None, int]] = [] if row == axes[-1] else [(row, axes[-1])]
    others = [axis for axis in axes if axis != row and (row, axis) not in pairs]
    return pairs + [(axis, row) for axis in reversed(others)]


def _picture(
    wrong: torch.Tensor, dims: Sequence[Dim], worst: Sequence[int], row: int | None, column: int
) -> Mapping[str, Any]:
    kept = [axis for axis in (row, column) if axis is not None]
    others = [axis for axis in range(wrong.ndim) if axis not in kept]
    # Reduced on the device of the mask.
    counts = (wrong.sum(others) if others else wrong.int()).cpu().numpy()
    if kept != sorted(kept):
        counts = counts.T
    counts = counts.reshape(1, -1) if row is None else counts
    each = wrong.numel() // max(counts.size, 1)
    cell = [-(-size // most) for size, most in zip(counts.shape, (_ROWS, _COLUMNS), strict=True)]
    totals = _pooled(np.full(counts.shape, each, np.int64), cell)
    levels = np.ceil(LEVELS * _pooled(counts.astype(np.int64), cell) / totals).astype(np.uint8)
    sides = [None if axis is None else dims[axis] for axis in (row, column)]
    return {
        "axes": ["" if side is None else side.name for side in sides],
        "size": list(counts.shape),
        "cell": cell,
        "cells": base64.b64encode(zlib.compress(levels.tobytes(), 9)).decode(),
        "worst": [0 if axis is None else int(worst[axis]) for axis in (row, column)],
        "tile": [None if side is None else side.tile for side in sides],
        "starts": [_starts(side) for side in sides],
    }


def _pooled(counts: np.ndarray, cell: Sequence[int]) -> np.ndarray:
    """The sums of the rectangles of `cell` elements; those at the end may be smaller."""
    for axis, edge in enumerate(cell):
        counts = np.add.reduceat(counts, np.arange(0, counts.shape[axis], edge), axis=axis)
    return counts


def _starts(dim: Dim | None) -> list[int] | None:
    if dim is None or dim.starts is None:
        return None
    return [int(start) for start in dim.starts if int(start) < dim.size][:_STARTS]


def cells_of(picture: Mapping[str, Any]) -> np.ndarray:
    """The levels of a picture's cells: [rows, columns] of 0 to `LEVELS`."""
    rows, columns = (
        -(-size // cell) for size, cell in zip(picture["size"], picture["cell"], strict=True)
    )
    levels = np.frombuffer(zlib.decompress(base64.b64decode(picture["cells"])), np.uint8)
    return levels.reshape(rows, columns)
