"""The number of splits of the keys of each sequence, chosen to occupy all multiprocessors."""

import functools

MAX_SPLITS = 128
"""The most splits that `combine` merges."""
MIN_TILES = 4
"""Per split; with fewer tiles, starting and merging a split costs more than it gains."""
NEAR_BEST = 0.95
"""Fraction of the best utilization that is good enough."""


@functools.lru_cache(maxsize=1024)  # up to 70 us, more than the launches of a call
def choose_splits(blocks: int, tiles: int, slots: int) -> int:
    """The number of splits, for `blocks` blocks per split.

    Sequences have at most `tiles` tiles of keys. `slots` is the number of blocks that run at once.
    n splits have ``n * blocks`` blocks in waves of `slots`, and the last wave is rarely full.
    Returns the smallest number whose utilization is near the best.
    """
    most = max(1, min(MAX_SPLITS, tiles // MIN_TILES))

    def utilization(splits: int) -> float:
        waves = splits * blocks / slots
        return waves / -(-splits * blocks // slots)

    candidates = range(1, most + 1)
    best = max(utilization(splits) for splits in candidates)
    return next(splits for splits in candidates if utilization(splits) >= NEAR_BEST * best)
