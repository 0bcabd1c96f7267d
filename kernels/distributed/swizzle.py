"""The order in which blocks take the tiles of a result whose rows belong to ranks.

Two wishes at once. Along M, tiles go by ranks: `first` is the row of tiles that comes first, and
the rows follow it around the end. An all-gather begins so with the rows that are here, and goes on
with those that arrive next; a reduce-scatter begins with the next rank's and ends with its own.

Inside, `panel` rows of tiles are walked together, column by column, every other panel backwards:
what the blocks of one moment read of A and B then stays in the L2 cache.

    rows of tiles, first = 2     panel of 2, 3 columns
    bm  0   third panel           index  0 2 4      bm 2
        1   (short)                      1 3 5         3
        2   first panel          then   10 8 6      bm 4
        3                               11 9 7         5
        4   second panel
        5

The functions take Python integers or expressions of a kernel.
"""

__all__ = ["ordered_tile", "panel_height"]

PANEL = 8
"""Rows of tiles in a panel at most: as in `tlmatrix_kernels.gemm`."""
LOWEST = 4
"""Rows of tiles to which a panel is lowered so that a share has more of them."""


def ordered_tile(index, tiles_m, tiles_n, first, panel, minimum=min):
    """(bm, bn), the tile that block `index` of `tiles_m * tiles_n` makes.

    Every tile is some block's, and only one's.

    Args:
        index: 0 to tiles_m * tiles_n - 1.
        tiles_m: rows of tiles, 1 or more.
        tiles_n: columns of tiles, 1 or more.
        first: the row that comes first, 0 to tiles_m - 1.
        panel: rows that are walked together, 1 or more; the last panel may be short.
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
    """Rows of tiles in a panel: at most `most`, and so that whole panels make a rank's share.

    A panel that reached into the next share would wait for it, or keep it waiting, with the rows of
    the first. A share has at least so many `panels`, unless they would be lower than `LOWEST`.
    """
    of_share = max(1, -(-rows // (world * block_m)))
    panels = max(-(-of_share // most), min(panels, of_share // LOWEST))
    return -(-of_share // panels)
