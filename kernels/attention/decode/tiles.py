"""Tile sizes of the decode kernels, with the reasons."""

from dataclasses import dataclass

from tlmatrix_kernels.attention.tiles import padded
from tlmatrix_kernels.target import capability

# Splits and columns per tile of the combine kernel: 8 loads in flight per thread.
COMBINE_PARTS = 32
COMBINE_COLUMNS = 32
COMBINE_THREADS = 128


@dataclass(frozen=True)
class DecodeTiles:
    """The tile configuration of a block.

    `rows` query heads of one kv head share its keys; tiles of `keys` keys are loaded in a pipeline
    of `stages` stages by `threads` threads (on Hopper plus a producer warp group). `blocks` blocks
    share a multiprocessor, which limits the registers per thread.
    """

    rows: int
    keys: int
    stages: int
    threads: int
    blocks: int


def tiles_for(
    head_dim: int, head_dim_v: int, page_size: int | None = None, *, windowed: bool = False
) -> DecodeTiles:
    """The tiles for the compilation target, for a contiguous cache or pages of `page_size` keys.

    Decoding is memory-bound: what counts is the bytes in flight. 64 rows are the M of one wgmma;
    small groups waste most of them, which costs no time. With 128-wide heads, 64 keys and three
    stages take 112 KiB and 128 registers per thread, so two blocks share a multiprocessor and hide
    each other's compute. Head dimensions that are not multiples of 64, and windows, need more
    registers: half the keys and twice the stages have as many bytes in flight without spilling.

    Pages smaller than a tile are copied with `cp.async` by the block's threads. Those tiles have
    several stages before Hopper too, and as many as fit on Hopper.
    """
    wide = padded(head_dim) + padded(head_dim_v) > 256
    if capability() < 90:
        keys = 32 if wide else 64
        # Otherwise no stages, as in `attention.tiles`: several blocks hide each other's loads.
        stages = 2 if page_size is not None and page_size < keys else 0
        return DecodeTiles(rows=64, keys=keys, stages=stages, threads=128, blocks=2)
    if not wide and (windowed or head_dim % 64 or head_dim_v % 64):
        return DecodeTiles(rows=64, keys=32, stages=6, threads=128, blocks=2)
    if not wide:
        return DecodeTiles(rows=64, keys=64, stages=3, threads=128, blocks=2)
    stages = 3 if page_size is not None and page_size < 64 else 2
    return DecodeTiles(rows=64, keys=64, stages=stages, threads=128, blocks=1)
