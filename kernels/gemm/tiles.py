"""Tile configurations of the GEMM kernels, by architecture and problem size.

`wide` tiles have the highest arithmetic intensity; `narrow` tiles give a small product enough
blocks to occupy every multiprocessor. docs/results has the measurements.

=======  =====================================================================================
sm_90    one or two warp groups for wgmma, and as many stages as shared memory holds
sm_80    two stages: TileLang 0.1.15 does not lower more for a symbolic K
ragged   rows that are not multiples of 16 bytes, loaded element by element: few loads are in
         flight, and more threads or a smaller tile hold the addresses without spilling
=======  =====================================================================================
"""

from dataclasses import dataclass

from tlmatrix_kernels.target import BLACKWELL, HOPPER

SIZES = ("wide", "narrow")


@dataclass(frozen=True)
class Tiles:
    """Tile sizes in elements, pipeline stages and threads of a block."""

    block_m: int
    block_n: int
    block_k: int
    num_stages: int
    threads: int

    def count(self, m: int, n: int) -> int:
        """The number of tiles of an [m, n] result."""
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
    # For few rows (decode): little is loaded besides B, and few padded rows are multiplied.
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

# MIXED_INTEGERS: unconverted int8. MIXED_FLOATS: unconverted float8, with a second accumulator and
# the short K steps of `mixed`. MIXED_CONVERTED: operands converted or transposed in shared memory.
MIXED_INTEGERS = {
    "wide": Tiles(128, 256, 128, num_stages=3, threads=256),
    "narrow": Tiles(64, 128, 128, num_stages=3, threads=128),
}
MIXED_FLOATS = {
    "wide": Tiles(128, 128, 64, num_stages=4, threads=256),
    "narrow": Tiles(64, 128, 64, num_stages=4, threads=128),
}
# On Blackwell float8 uses mma.sync, whose operands take registers too.
MIXED_FLOATS_BLACKWELL = {
    "wide": Tiles(64, 128, 64, num_stages=4, threads=256),
    "narrow": Tiles(64, 64, 64, num_stages=4, threads=128),
}
MIXED_CONVERTED = {
    "wide": Tiles(128, 128, 64, num_stages=3, threads=256),
    "narrow": Tiles(64, 64, 128, num_stages=3, threads=128),
}
MIXED_AMPERE = Tiles(64, 64, 64, num_stages=2, threads=128)
# TileLang 0.1.15 does not lower a second stage there.
MIXED_AMPERE_CONVERTED = Tiles(64, 64, 64, num_stages=1, threads=128)
MIXED_RAGGED = Tiles(64, 64, 64, num_stages=0, threads=256)


def gemm_tiles(arch, size, *, whole_rows):
    """The tiles of `kernel` for a compute capability such as 90."""
    if not whole_rows:
        return GEMM_RAGGED
    return (GEMM if arch >= HOPPER else GEMM_AMPERE)[size]


def split_tiles(arch, size, *, whole_rows):
    """The tiles of `split_k`; `size` as returned by `split_size`."""
    if not whole_rows:
        return SPLIT_RAGGED[size]
    return (SPLIT if arch >= HOPPER else SPLIT_AMPERE)[size]


def mixed_tiles(arch, size, *, product_dtype, converted, whole_rows):
    """The tiles of `mixed` by product dtype; `converted`: operands are converted or transposed."""
    if not whole_rows:
        return MIXED_RAGGED
    if arch < HOPPER:
        return MIXED_AMPERE_CONVERTED if converted else MIXED_AMPERE
    if converted:
        return MIXED_CONVERTED[size]
    if product_dtype == "int8":
        return MIXED_INTEGERS[size]
    return (MIXED_FLOATS if arch < BLACKWELL else MIXED_FLOATS_BLACKWELL)[size]


def size_for(m, n, tiles, processors):
    """The size, "wide" or "narrow", for an [m, n] result, given the wide `tiles`.

    A multiprocessor is about 1.7 times as fast with wide tiles, so they pay off if at least a third
    of the multiprocessors get one.
    """
    return "wide" if 3 * tiles.count(m, n) >= processors else "narrow"


def split_size(m):
    """The tile size of a split-K product by its rows; n hardly matters."""
    if m <= SPLIT["row"].block_m:
        return "row"
    return "low" if m <= SPLIT["low"].block_m else "wide"
