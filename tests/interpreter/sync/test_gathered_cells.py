"""Elements of gathers and scatters, against indices that are computed one by one."""

from __future__ import annotations

import numpy as np
import pytest

from tlmatrix.interpreter.sync.regions import cells_of, region_of

ROWS, COLUMNS = np.arange(4)[:, None], np.arange(6)[None, :]


@pytest.mark.parametrize(
    ("index", "mask"),
    [
        ((ROWS, COLUMNS), None),
        ((ROWS, COLUMNS + 3), None),
        ((ROWS - 2, 2 * COLUMNS), None),
        ((ROWS, COLUMNS), (ROWS + COLUMNS) % 3 == 0),
        ((ROWS % 2, 5), ROWS < 3),
        ((3, 4), None),
        ((ROWS + 9, COLUMNS), None),
    ],
)
def test_cells_are_the_active_elements_inside(index, mask):
    shape = (4, 8)
    rows, columns, active = np.broadcast_arrays(*index, True if mask is None else mask)
    cells = {
        (int(r), int(c))
        for r, c, on in zip(rows.flat, columns.flat, active.flat, strict=True)
        if on and 0 <= r < shape[0] and 0 <= c < shape[1]
    }
    box, flat = region_of(cells_of(index, mask, shape), shape)
    assert box == tuple(
        (min(axis), max(axis) + 1) if axis else (0, 0)
        for axis in ([cell[k] for cell in cells] for k in range(2))
    )
    if flat is None:
        found = {(r, c) for r in range(*box[0]) for c in range(*box[1])}
    else:
        found = {divmod(int(k), shape[1]) for k in flat}
    assert found == cells
