"""The tile order of a GEMM whose result rows are partitioned over ranks.

Along M, tiles follow the ranks: tile row `first` comes first, and the others follow it and wrap
around. An all-gather starts with the local rows and continues in the order of arrival; a
reduce-scatter starts with the rows of the next rank and ends with its own.

Within that order, panels of `panel` tile rows are traversed column by column, every other panel
backwards, so that concurrent blocks share rows of A and columns of B in L2.

    tile rows, first = 2         panel of 2, 3 columns
    bm  0   third panel           index  0 2 4      bm 2
        1   (short)                      1 3 5         3
        2   first panel          then   10 8 6      bm 4
        3                               11 9 7         5
        4   second panel
        5

The functions take Python integers or TIR expressions.
"""

PANEL = 8
"""Maximum tile rows of a panel, as in `tlmatrix_kernels.gemm`."""
MIN_PANEL = 4
"""Minimum tile rows of a panel when a rank's rows are divided into more panels."""


def ordered_tile(index, tiles_m, tiles_n, first, panel, minimum=min):
    """The tile (bm, bn) of block `index`; a bijection of the `tiles_m * tiles_n` blocks.

    Args:
        index: 0 to tiles_m * tiles_n - 1.
        tiles_m: tile rows, at least 1.
        tiles_n: tile columns, at least 1.
        first: the first tile row, 0 to tiles_m - 1.
        panel: tile rows of a panel, at least 1; the last panel may be smaller.
        minimum: `min` for integers, `T.min` for expressions.
    """
    number = index // (panel * tiles_n)
    inside = index - number * (panel * tiles_n)
    height = minimum(panel, tiles_m - number * panel)
    column = inside // height
    bn = column + number % 2 * (tiles_n - 1 - 2 * column)
    bm = (number * panel + inside % height + first) % tiles_m
    return bm, bn


def panel_height(rows: int, world: int, block_m: int, most: int = PANEL, panels: int = 1) -> int:
    """Tile rows of a panel: at most `most`, such that a rank's rows are whole panels.

    A panel that spans two ranks would wait for the second one, or delay it, along with the rows of
    the first. A rank's rows have at least `panels` panels, unless they would be lower than
    `MIN_PANEL`.
    """
    of_share = max(1, -(-rows // (world * block_m)))
    panels = max(-(-of_share // most), min(panels, of_share // MIN_PANEL))
    return -(-of_share // panels)
