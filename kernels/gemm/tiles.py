"""Tile sizes of the GEMM kernels, by architecture and by how much there is to do.

A `wide` tile reads each operand least often and keeps the tensor cores busiest; a `narrow` one
makes more blocks of a small product, so that every multiprocessor gets one. What was tried is
in docs/results.md.

=======  =====================================================================================
sm_90    one or two warp groups, as wgmma wants, and as many stages as shared memory holds
sm_80    two stages: more do not lower with TileLang 0.1.15, where K is symbolic
ragged   rows that are no multiple of 16 bytes, loaded element by element: hardly anything is
         in flight, and more threads, or a smaller tile, hold the addresses without spilling
=======  =====================================================================================
"""

from dataclasses import dataclass

from tlmatrix_kernels.target import BLACKWELL, HOPPER

__all__ = ["SIZES", "Tiles", "gemm_tiles", "mixed_tiles", "size_for", "split_size", "split_tiles"]

SIZES = ("wide", "narrow")


@dataclass(frozen=True)
class Tiles:
    """Tile edges in elements, pipeline depth and threads of a block."""

    block_m: int
    block_n: int
    block_k: int
    num_stages: int
    threads: int

    def count(self, m: int, n: int) -> int:
        """How many tiles a result [m, n] has."""
        return -(-m // self.block_m) * -(-n // self.block_n)


GEMM = {
    "wide": Tiles(128, 256, 64, num_stages=4, threads=256),
    "narrow": Tiles(64, 128, 64, num_stages=4, threads=128),
}
GEMM_AMPERE = {
    "wide": Tiles(128, 128, 32, num_stages=2, threads=256),
    "narrow": Tiles(64, 64, 32, num_stages=2, threads=128),
}
GEMM_RAGGED = Tiles(64, 64, 32, num_stages=2, threads=128)

SPLIT = {
    "wide": Tiles(128, 256, 64, num_stages=3, threads=256),
    "low": Tiles(64, 128, 64, num_stages=4, threads=128),
    # For a few rows (decode): hardly more than B is loaded, and nothing is multiplied in vain.
    "row": Tiles(16, 64, 128, num_stages=4, threads=128),
}
SPLIT_AMPERE = {
    "wide": Tiles(128, 128, 32, num_stages=2, threads=256),
    "low": Tiles(64, 128, 64, num_stages=2, threads=128),
    "row": Tiles(16, 64, 128, num_stages=2, threads=128),
}
SPLIT_RAGGED = {
    "wide": Tiles(64, 64, 64, num_stages=0, threads=256),
    "low": Tiles(64, 64, 64, num_stages=0, threads=256),
    "row": Tiles(16, 128, 64, num_stages=2, threads=128),
}

# Of 8-bit factors as they are; of float8 with a second set of sums, in steps as short as `mixed`
# wants them; and of factors that are widened or turned in shared memory first.
MIXED_INTEGERS = {
    "wide": Tiles(128, 256, 128, num_stages=3, threads=256),
    "narrow": Tiles(64, 128, 128, num_stages=3, threads=128),
}
MIXED_FLOATS = {
    "wide": Tiles(128, 128, 64, num_stages=4, threads=256),
    "narrow": Tiles(64, 128, 64, num_stages=4, threads=128),
}
# Blackwell multiplies them by mma.sync, whose operands are in registers too.
MIXED_FLOATS_BLACKWELL = {
    "wide": Tiles(64, 128, 64, num_stages=4, threads=256),
    "narrow": Tiles(64, 64, 64, num_stages=4, threads=128),
}
MIXED_PREPARED = {
    "wide": Tiles(128, 128, 64, num_stages=3, threads=256),
    "narrow": Tiles(64, 64, 128, num_stages=3, threads=128),
}
MIXED_AMPERE = Tiles(64, 64, 64, num_stages=2, threads=128)
# TileLang 0.1.15 lowers no second stage there.
MIXED_AMPERE_PREPARED = Tiles(64, 64, 64, num_stages=1, threads=128)
MIXED_RAGGED = Tiles(64, 64, 64, num_stages=0, threads=256)


def gemm_tiles(arch, size, *, whole_rows):
    """The tiles of `kernel` for a GPU of that compute capability (90)."""
    if not whole_rows:
        return GEMM_RAGGED
    return (GEMM if arch >= HOPPER else GEMM_AMPERE)[size]


def split_tiles(arch, size, *, whole_rows):
    """The tiles of `split_k`; `size` is one that `split_size` gives."""
    if not whole_rows:
        return SPLIT_RAGGED[size]
    return (SPLIT if arch >= HOPPER else SPLIT_AMPERE)[size]


def mixed_tiles(arch, size, *, product_dtype, prepared, whole_rows):
    """The tiles of `mixed` for factors of that dtype; `prepared` if widened or turned first."""
    if not whole_rows:
        return MIXED_RAGGED
    if arch < HOPPER:
        return MIXED_AMPERE_PREPARED if prepared else MIXED_AMPERE
    if prepared:
        return MIXED_PREPARED[size]
    if product_dtype == "int8":
        return MIXED_INTEGERS[size]
    return (MIXED_FLOATS if arch < BLACKWELL else MIXED_FLOATS_BLACKWELL)[size]


def size_for(m, n, tiles, processors):
    """Which of `SIZES` for a result [m, n]: `tiles` are the wide ones.

    A multiprocessor is some 1.7 times as fast with a wide tile as with narrow ones, so they pay
    from where a third of the multiprocessors have one.
    """
    return "wide" if 3 * tiles.count(m, n) >= processors else "narrow"


def split_size(m):
    """The size of a split product's tiles, by its rows: their number hardly depends on n."""
    if m <= SPLIT["row"].block_m:
        return "row"
    return "low" if m <= SPLIT["low"].block_m else "wide"
