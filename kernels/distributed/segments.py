"""Pieces of a rank's own rows, each of which is added as soon as its tiles are made.

`gemm_reduce_scatter` makes the own rows last. What the others have for them is there by then, so
the sum of a piece needs nothing but its own tiles, and is made beside those of the next piece. What
comes after the product is the sum of one piece.

A piece is one panel of the order of tiles (`swizzle`) or several, as a panel is made all at once.
(A tile with rows of the next rank as well is made before all of them, and counts where it lies.)
No other rank looks at pieces, so ranks need not agree on them.
"""

import functools
import itertools
from dataclasses import dataclass

from tlmatrix_kernels.distributed.gemm_launch import GemmLaunch

__all__ = ["MAX_SEGMENTS", "Segments", "own_segments", "segment_count", "segments"]

MAX_SEGMENTS = 4
"""Of a share: each costs a small launch of the host."""
MIN_ELEMENTS = 2**20
"""Of a piece: a sum of fewer takes no longer than a launch (3 us on an H200, of four ranks)."""
MIN_FLOP = 1e11
"""Of a rank's product that is summed in pieces: below, the host is not ahead of the GPU as it is.

(4096^3 on two H200, 6.9e10 a rank, took 0.35 ms in four pieces, 0.18 to 0.26 ms in one.)
"""


@dataclass(frozen=True)
class Segments:
    """Piece i has the rows from `base + i * step` to the next of those that are the rank's own.

    Attributes:
        base: a row of m with which a tile begins, the first own one or before; may be negative.
        step: rows of a piece, whole tiles.
        cuts: by piece its first row and the one behind its last, counted from the first own row.
    """

    base: int
    step: int
    cuts: tuple[tuple[int, int], ...]


def segment_count(rows: int, n: int, flop: float) -> int:
    """In how many pieces a share of [rows, n] is added at most, of a product of so many operations.

    Args:
        rows: of the share.
        n: its columns.
        flop: floating point operations of the rank's whole product.
    """
    return max(1, min(MAX_SEGMENTS, rows * n // MIN_ELEMENTS)) if flop >= MIN_FLOP else 1


@functools.lru_cache(maxsize=256)
def segments(
    own: tuple[int, int], tiles_m: int, first: int, panel: int, block_m: int, most: int
) -> Segments:
    """Whole panels in at most `most` pieces, about as many in each.

    Args:
        own: the own rows, from and to.
        tiles_m: rows of tiles of the product.
        first: see `swizzle.ordered_tile`.
        panel: likewise.
        block_m: rows of a tile.
        most: 1 or more.
    """
    begin, end = own
    tile = begin // block_m
    base = (tile - (tile - first) % tiles_m % panel) * block_m
    if begin == end:
        return Segments(base, panel * block_m, ())
    panels = -(-(end - base) // (panel * block_m))
    step = -(-panels // most) * panel * block_m
    edges = [*range(base, end, step), end]
    edges[0] = begin
    cuts = tuple((low - begin, high - begin) for low, high in itertools.pairwise(edges))
    return Segments(base, step, cuts)


def own_segments(own: tuple[int, int], m: int, launch: GemmLaunch, most: int) -> Segments:
    """Of a product of m rows, the `own` ones in the order in which `launch` makes their tiles."""
    return segments(own, -(-m // launch.block_m), launch.first, launch.panel, launch.block_m, most)
