"""Tile sizes, pipeline stages and threads of every attention kernel, with the reasons."""

from dataclasses import dataclass

from tlmatrix_kernels.target import capability

__all__ = [
    "COMBINE_THREADS",
    "PREPARE_THREADS",
    "AttentionTiles",
    "Tiles",
    "padded",
    "strategy_for",
    "tiles_for",
]

# The passes before and after move memory and compute next to nothing. (A block of the pass before
# has `rows.PADDING` rows: enough in flight to fill memory, few enough for its registers.)
PREPARE_THREADS = 128
COMBINE_THREADS = 256


@dataclass(frozen=True)
class Tiles:
    """How one kernel cuts its work.

    A block keeps `queries` query rows and `keys` key rows in shared memory, loads the tiles of
    its inner loop `stages` deep ahead, and runs `threads` threads. Where `staged`, p and ds go
    from registers to the next product by way of shared memory; where it `reduces`, the copy
    engine adds a tile of dq to its sum.
    """

    queries: int
    keys: int
    stages: int
    threads: int
    staged: bool = False
    reduces: bool = False


@dataclass(frozen=True)
class AttentionTiles:
    """The tiles of the three big kernels of one pair of head dimensions."""

    forward: Tiles
    key_block: Tiles
    query_block: Tiles


def padded(dim: int) -> int:
    """The width of a shared tile for a head dimension: a multiple of 32.

    Tensor cores take 16 columns a step, and two warp groups may share a tile by columns. The
    columns past `dim` are read as zeros and add nothing to a product.
    """
    return -(-dim // 32) * 32


def strategy_for(key_rows: int) -> str:
    """The backward strategy where the caller has no wish, for `key_rows` rows of k of all heads.

    One of the two that give the same bits every time: `grouped` where its blocks, one for 128 rows,
    fill a GPU, else `split`, which has as many for each head of a group. On an H200 (132
    multiprocessors) `split` is the faster one up to 128 blocks, `grouped` from 256 on (see
    docs/results.md).
    """
    return "grouped" if key_rows >= 128 * 192 else "split"


def tiles_for(head_dim: int, head_dim_v: int, *, windowed: bool) -> AttentionTiles:
    """Choose tiles for the GPU that is compiled for."""
    width, width_v = padded(head_dim), padded(head_dim_v)
    if capability() < 90:
        return _ampere(width, width_v)
    return _hopper(width, width_v, windowed=windowed)


def _ampere(width: int, width_v: int) -> AttentionTiles:
    """Small tiles: at most 163 KiB of shared memory, and where that fits two blocks of it.

    No stages, so two blocks of a multiprocessor hide each other's loads: asynchronous copies are
    waited for by their number, which must be a constant, and TileLang 0.1.15 has none for a loop
    whose length only the running kernel knows.
    """
    wide, both = max(width, width_v), width + width_v
    columns = 64 if wide <= 128 else 32
    key_block = (
        Tiles(queries=32, keys=128, stages=0, threads=256)
        if both <= 256
        else Tiles(queries=32, keys=64, stages=0, threads=256, staged=True)
    )
    return AttentionTiles(
        forward=Tiles(queries=64, keys=columns, stages=0, threads=128),
        key_block=key_block,
        query_block=Tiles(queries=64, keys=columns, stages=0, threads=128),
    )


def _hopper(width: int, width_v: int, *, windowed: bool) -> AttentionTiles:
    """At most 240 registers a thread and 227 KiB of shared memory."""
    return AttentionTiles(
        forward=_forward(max(width, width_v), windowed=windowed),
        key_block=_key_block(width + width_v),
        query_block=_query_block(max(width, width_v)),
    )


def _forward(wide: int, *, windowed: bool) -> Tiles:
    """Three warp groups of 64 query rows each, or two.

    The accumulator takes head_dim_v / 2 registers a thread, the scores keys / 2 and the weights
    half of that, of 160 registers for three groups and 240 for two; the shared tiles
    2 * queries + 2 * stages * keys rows.

    Under a window two groups: both its edges are masked, which three have no registers for, and
    the less a tile has of rows, the less it sees of keys that only some of them see.
    """
    if wide <= 128:
        rows = 128 if windowed else 192
        return Tiles(queries=rows, keys=128, stages=2, threads=2 * rows)
    if wide <= 192:
        return Tiles(queries=128, keys=64, stages=2, threads=256)
    return Tiles(queries=128, keys=64, stages=1, threads=256)


def _key_block(both: int) -> Tiles:
    """Two warp groups share a tile of keys.

    dk and dv of 128 keys take (head_dim + head_dim_v) / 2 registers a thread, the score tiles
    another queries. Where that does not fit, 64 keys: then the warp groups share the columns of
    every product, and p and ds must pass through shared memory to be seen by both.
    """
    if both <= 256:
        return Tiles(queries=64, keys=128, stages=2, threads=256, reduces=True)
    return Tiles(queries=32, keys=64, stages=1, threads=256, staged=True, reduces=True)


def _query_block(wide: int) -> Tiles:
    """Two warp groups of 64 query rows; only dq accumulates, but two score tiles live at once."""
    if wide <= 128:
        return Tiles(queries=128, keys=128, stages=2, threads=256)
    return Tiles(queries=128, keys=32, stages=1, threads=256)
