"""Segments of a rank's own rows, each of which is reduced as soon as its tiles are computed.

`gemm_reduce_scatter` computes the own rows last, when the rows of the other ranks have arrived. The
reduction of a segment then only waits for its own tiles, and runs beside the tiles of the next
segment; only the reduction of the last segment is not overlapped.

A segment is one or more panels of the tile order (`swizzle`), since a panel is computed at once. (A
tile that also has rows of the next rank is computed earlier; it counts for the segment that
contains it.) Segments are local: ranks need not agree on them.
"""

import functools
import itertools
from dataclasses import dataclass

from tlmatrix_kernels.distributed.gemm_launch import GemmLaunch

MAX_SEGMENTS = 4
"""Per rank; each costs a small kernel launch."""
MIN_ELEMENTS = 2**20
"""Per segment: a smaller reduction takes no longer than a launch (3 us on an H200, four ranks)."""
MIN_FLOP = 1e11
"""Per rank's product: for smaller ones the host is not ahead of the GPU anyway.

(4096^3 on two H200, 6.9e10 per rank, took 0.35 ms in four segments, 0.18 to 0.26 ms in one.)
"""


@dataclass(frozen=True)
class Segments:
    """Segment i is the rank's rows from `base + i * step` up to the next segment.

    Attributes:
        base: the first row of a tile, at or before the first own row; may be negative.
        step: rows of a segment, whole tiles.
        cuts: the row range (begin, end) of each segment, relative to the first own row.
    """

    base: int
    step: int
    cuts: tuple[tuple[int, int], ...]


def segment_count(rows: int, n: int, flop: float) -> int:
    """The maximum number of segments of a rank's [rows, n] part.

    Args:
        rows: of the rank.
        n: columns.
        flop: floating-point operations of the rank's whole product.
    """
    return max(1, min(MAX_SEGMENTS, rows * n // MIN_ELEMENTS)) if flop >= MIN_FLOP else 1


@functools.lru_cache(maxsize=256)
def segments(
    own: tuple[int, int], tiles_m: int, first: int, panel: int, block_m: int, most: int
) -> Segments:
    """Divide the own rows into at most `most` segments of about equally many whole panels.

    Args:
        own: the own rows (begin, end).
        tiles_m: tile rows of the product.
        first: see `swizzle.ordered_tile`.
        panel: see `swizzle.ordered_tile`.
        block_m: rows of a tile.
        most: at least 1.
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
    """The segments of the rows `own` of a product with m rows, in the tile order of `launch`."""
    return segments(own, -(-m // launch.block_m), launch.first, launch.panel, launch.block_m, most)
