"""Tile sizes of the decode kernels, with the reasons."""

from dataclasses import dataclass

from tlmatrix_kernels.attention.tiles import padded
from tlmatrix_kernels.target import capability

__all__ = ["COMBINE_COLUMNS", "COMBINE_PARTS", "COMBINE_THREADS", "DecodeTiles", "tiles_for"]

# The combining kernel holds as many parts of as many columns at once: 8 loads a thread in flight.
COMBINE_PARTS = 32
COMBINE_COLUMNS = 32
COMBINE_THREADS = 128


@dataclass(frozen=True)
class DecodeTiles:
    """How a block cuts its work.

    `rows` query heads of one kv head share what is read of it; `keys` keys are loaded at a time,
    `stages` deep ahead, by `threads` threads (on Hopper, a warp group beside them). `blocks` of
    them share a multiprocessor: the compiler keeps to the registers that this leaves.
    """

    rows: int
    keys: int
    stages: int
    threads: int
    blocks: int


def tiles_for(
    head_dim: int, head_dim_v: int, page_size: int | None = None, *, windowed: bool = False
) -> DecodeTiles:
    """Choose tiles for the GPU that is compiled for, for a cache or for pages of `page_size` keys.

    Memory sets the time: what counts is the bytes in flight. 64 rows are what one wgmma has (few
    of them are used by small groups, which costs products that nobody waits for). 64 keys and
    three stages are 112 KiB and 128 registers a thread where heads have 128 columns: two blocks
    share a multiprocessor, and while one computes the other's loads go on. Heads that are no
    multiple of 64 columns, and windows, need more registers than that: half the keys in twice the
    stages have as many bytes in flight, and spill nothing.

    Pages smaller than a tile are copied by the block's own threads, which wait for copies by their
    number: so they have stages before Hopper too, and on Hopper as many as fit.
    """
    wide = padded(head_dim) + padded(head_dim_v) > 256
    if capability() < 90:
        keys = 32 if wide else 64
        # Else none, see `attention.tiles`: several blocks hide each other's loads.
        stages = 2 if page_size is not None and page_size < keys else 0
        return DecodeTiles(rows=64, keys=keys, stages=stages, threads=128, blocks=2)
    if not wide and (windowed or head_dim % 64 or head_dim_v % 64):
        return DecodeTiles(rows=64, keys=32, stages=6, threads=128, blocks=2)
    if not wide:
        return DecodeTiles(rows=64, keys=64, stages=3, threads=128, blocks=2)
    stages = 3 if page_size is not None and page_size < 64 else 2
    return DecodeTiles(rows=64, keys=64, stages=stages, threads=128, blocks=1)
