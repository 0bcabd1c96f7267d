"""Tile sizes, pipeline stages and threads of every attention kernel, with the reasons."""

from dataclasses import dataclass

__all__ = [
    "COMBINE_THREADS",
    "DELTA_ROWS",
    "DELTA_THREADS",
    "AttentionTiles",
    "Tiles",
    "padded",
    "tiles_for",
]

# The passes before and after move memory and compute next to nothing: enough rows in flight to
# fill it, few enough that a 256-wide row still fits in registers.
DELTA_ROWS = 64
DELTA_THREADS = 128
COMBINE_THREADS = 256


@dataclass(frozen=True)
class Tiles:
    """How one kernel cuts its work.

    A block keeps `queries` query rows and `keys` key rows in shared memory, loads the tiles of
    its inner loop `stages` deep ahead, and runs `threads` threads.
    """

    queries: int
    keys: int
    stages: int
    threads: int


@dataclass(frozen=True)
class AttentionTiles:
    """The tiles of the three big kernels of one pair of head dimensions."""

    forward: Tiles
    key_block: Tiles
    query_block: Tiles


def padded(dim: int) -> int:
    """The width of a shared tile for a head dimension: tensor cores take 16 columns a step.

    The columns past `dim` are read as zeros and add nothing to a product.
    """
    return -(-dim // 16) * 16


def tiles_for(head_dim: int, head_dim_v: int) -> AttentionTiles:
    """Choose tiles for Hopper; they fit Ampere and Blackwell as well.

    Forward: two warp groups of 64 query rows each. The accumulator takes head_dim_v / 2
    registers a thread and the scores keys / 2 more, so at most 128 keys, fewer as the heads
    grow.

    Key block: dK and dV of 128 keys are (head_dim + head_dim_v) / 2 registers a thread over two
    warp groups, the two score tiles queries each. Beyond 128 columns 64 keys are spread over
    columns, too.

    Query block: dQ alone accumulates, but two score tiles live at once, so fewer keys.
    """
    wide = max(padded(head_dim), padded(head_dim_v))
    if wide <= 64:
        return AttentionTiles(
            forward=Tiles(queries=128, keys=128, stages=2, threads=256),
            key_block=Tiles(queries=64, keys=128, stages=2, threads=256),
            query_block=Tiles(queries=128, keys=64, stages=2, threads=256),
        )
    if wide <= 128:
        return AttentionTiles(
            forward=Tiles(queries=128, keys=128, stages=2, threads=256),
            key_block=Tiles(queries=64, keys=128, stages=1, threads=256),
            query_block=Tiles(queries=128, keys=64, stages=2, threads=256),
        )
    if wide <= 192:
        return AttentionTiles(
            forward=Tiles(queries=128, keys=64, stages=2, threads=256),
            key_block=Tiles(queries=32, keys=64, stages=1, threads=256),
            query_block=Tiles(queries=128, keys=32, stages=1, threads=256),
        )
    return AttentionTiles(
        forward=Tiles(queries=128, keys=64, stages=1, threads=256),
        key_block=Tiles(queries=32, keys=64, stages=1, threads=256),
        query_block=Tiles(queries=64, keys=32, stages=1, threads=256),
    )
