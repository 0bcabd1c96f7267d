"""Tile sizes of the Blackwell kernels, within the limits of shared and tensor memory."""

from dataclasses import dataclass

from tlmatrix_kernels.attention.tiles import padded


@dataclass(frozen=True)
class Sm100Tiles:
    """The tile configuration of one kernel.

    A block keeps `queries` query rows, loads keys and values in tiles of `keys` rows into `stages`
    buffers, and has `threads` threads, which read tensor memory in chunks of `part` columns. Blocks
    share no multiprocessor.
    """

    queries: int
    keys: int
    threads: int
    stages: int
    part: int
    blocks: int = 1


def sm100_tiles(
    variant: str,
    head_dim: int,
    head_dim_v: int,
    *,
    causal: bool = False,
    windowed: bool = False,
) -> Sm100Tiles:
    """The forward tiles: at most 227 KiB of shared memory and 512 columns of tensor memory.

    A tcgen05 MMA has 128 rows, the lanes of tensor memory. Shared memory holds q and out, 128 rows
    each, and `stages` tiles of k and v; with 128 keys and 128-wide heads, two stages take 192 KiB
    in total. Wider heads use fewer keys.

    In `ss` and `ts`, 256 threads share the softmax. In `wasp`, 128 threads compute it, one warp
    loads and one issues MMAs; a softmax thread holds a whole row of scores, and `part` columns of
    the accumulator. With 128 scores per thread the mask bounds would spill (28 bytes, 200 with a
    window), so causal tiles have fewer keys.
    """
    width_v = padded(head_dim_v)
    wide = max(padded(head_dim), width_v)
    keys = 128 if wide <= 128 else 64 if wide <= 192 else 32
    if variant == "wasp" and causal:
        keys = min(keys, 64 if windowed else 96)
    parts = (128, 96, 64, 32) if width_v <= 128 else (64, 32)
    part = next(part for part in parts if width_v % part == 0)
    if variant == "wasp":
        return Sm100Tiles(queries=128, keys=keys, threads=192, stages=2, part=part)
    return Sm100Tiles(queries=128, keys=keys, threads=256, stages=1, part=part)


def backward_tiles(head_dim: int, head_dim_v: int) -> Sm100Tiles:
    """The backward tiles, for head dimensions up to 128.

    MMAs of 128 keys by 128 queries; six tiles of 32 KiB in shared memory, and all of tensor memory.
    `part` must divide both padded head dimensions.
    """
    widths = padded(head_dim), padded(head_dim_v)
    part = next(part for part in (64, 32) if not any(width % part for width in widths))
    return Sm100Tiles(queries=128, keys=128, threads=256, stages=1, part=part)
