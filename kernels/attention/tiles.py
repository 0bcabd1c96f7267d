"""Tile sizes, pipeline stages and threads of the attention kernels, with the reasons."""

from dataclasses import dataclass, replace

from tlmatrix_kernels.target import capability

# The pre- and post-passes are memory-bound. A block has enough rows for its loads in flight to
# saturate memory bandwidth, and few enough for its registers.
PASS_ROWS = 64
PREPARE_THREADS = 128
COMBINE_THREADS = 256

WARP_GROUP = 128
"""Threads of a warp group: a Hopper kernel has one more for its copies."""
PRODUCER_REGISTERS = 24
"""Registers of a thread that only issues copies, the fewest that `setmaxnreg` sets."""


@dataclass(frozen=True)
class Tiles:
    """The tile configuration of one kernel.

    A block keeps `queries` query rows and `keys` key rows in shared memory, pipelines its inner
    loop with `stages` stages, and has `threads` threads. `blocks` blocks share a multiprocessor.
    `staged`: p and ds are passed to the next GEMM through shared memory instead of registers.
    `tma_reduce`: TMA adds tiles of dq to global memory. `tma_store`: TMA stores 16-bit tiles of dk
    and dv.
    """

    queries: int
    keys: int
    stages: int
    threads: int
    blocks: int = 1
    staged: bool = False
    tma_reduce: bool = False
    tma_store: bool = False

    @property
    def registers(self):
        """Registers of a consumer thread, if `blocks` blocks on Hopper share a multiprocessor.

        There are 65,536, a thread has a multiple of 8, and the producer's keep
        `PRODUCER_REGISTERS`.
        """
        launched = 65536 // self.blocks // (self.threads + WARP_GROUP) // 8 * 8
        left = launched * (self.threads + WARP_GROUP) - PRODUCER_REGISTERS * WARP_GROUP
        return min(left // self.threads // 8 * 8, 240)


@dataclass(frozen=True)
class AttentionTiles:
    """The tiles of the three main kernels for one pair of head dimensions."""

    forward: Tiles
    key_block: Tiles
    query_block: Tiles


def padded(dim: int) -> int:
    """The width of a shared tile for a head dimension: the next multiple of 32.

    An MMA takes 16 columns of K, and two warp groups may split a tile by columns. Columns past
    `dim` are read as zeros and add nothing to a product.
    """
    return -(-dim // 32) * 32


def strategy_for(key_rows: int) -> str:
    """The default backward strategy, for `key_rows` = rows of k times kv heads.

    One of the two reproducible ones: `grouped` if its blocks, one per 128 rows, fill a GPU, else
    `split`, which has one per 128 rows for each query head. On an H200 (132 multiprocessors)
    `split` is faster up to 128 blocks, `grouped` from 256 on (see docs/results).
    """
    return "grouped" if key_rows >= 128 * 192 else "split"


def tiles_for(head_dim: int, head_dim_v: int, *, windowed: bool) -> AttentionTiles:
    """The tiles for the compilation target."""
    width, width_v = padded(head_dim), padded(head_dim_v)
    if capability() < 90:
        return _ampere(width, width_v)
    return _hopper(width, width_v, windowed=windowed)


def _ampere(width: int, width_v: int) -> AttentionTiles:
    """Small tiles: at most 163 KiB of shared memory, shared by two blocks if they fit.

    No pipeline stages; two blocks per multiprocessor hide each other's loads. `cp.async.wait_group`
    needs a constant count, and TileLang 0.1.15 derives none for a loop of symbolic length.
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
    """At most 240 registers per thread and 227 KiB of shared memory.

    With a window a block has few iterations, so what it costs to start and to end one counts:
    smaller blocks share a multiprocessor and hide it from each other. Smaller tiles also compute
    fewer masked pairs.
    """
    return AttentionTiles(
        forward=_forward(max(width, width_v), windowed=windowed),
        key_block=_key_block(width + width_v, windowed=windowed),
        query_block=_query_block(max(width, width_v), windowed=windowed),
    )


def _forward(wide: int, *, windowed: bool) -> Tiles:
    """One to three warp groups of 64 query rows each.

    Registers per thread: head_dim_v / 2 for acc, keys / 2 for the scores and half of that for the
    weights, of 160 with three groups and 240 with two. Shared memory: 2 * queries + 2 * stages *
    keys rows.

    With a window one group, which makes the small blocks of `_hopper`.
    """
    if windowed and wide <= 64:
        return Tiles(queries=64, keys=64, stages=1, threads=128, blocks=4)
    if windowed and wide <= 128:
        return Tiles(queries=64, keys=128, stages=1, threads=128, blocks=2)
    if wide <= 128:
        return Tiles(queries=192, keys=128, stages=2, threads=384)
    if wide <= 192:
        return Tiles(queries=128, keys=64, stages=2, threads=256)
    return Tiles(queries=128, keys=64, stages=1, threads=256)


def _key_block(both: int, *, windowed: bool) -> Tiles:
    """Two warp groups share a tile of keys; one has it with a window and narrow heads.

    dk and dv of 128 keys take (head_dim + head_dim_v) / 2 registers per thread, the score tiles
    another `queries`. If that does not fit, the tile has 64 keys: the groups then split each
    product by columns, and exchange p and ds through shared memory.

    dk and dv in 16 bits have shared tiles of their own, 64 KiB of 210 KiB in all; in float32 they
    would not fit.
    """
    if windowed and both <= 128:
        tiles = Tiles(queries=64, keys=64, stages=2, threads=128, blocks=2)
    elif both <= 256:
        tiles = Tiles(queries=64, keys=128, stages=2, threads=256)
    else:
        tiles = Tiles(queries=32, keys=64, stages=1, threads=256, staged=True)
    return replace(tiles, tma_reduce=True, tma_store=True)


def _query_block(wide: int, *, windowed: bool) -> Tiles:
    """One or two warp groups of 64 query rows; dq accumulates, and two score tiles are live."""
    if windowed and wide <= 128:
        blocks = 3 if wide <= 64 else 2
        return Tiles(queries=64, keys=64, stages=2, threads=128, blocks=blocks)
    if wide <= 128:
        return Tiles(queries=128, keys=128, stages=2, threads=256)
    return Tiles(queries=128, keys=32, stages=1, threads=256)
