"""Into how many shares the keys of every sequence are cut, so that all multiprocessors work."""

__all__ = ["MAX_SPLITS", "choose_splits"]

MAX_SPLITS = 128
"""No more parts than that are combined."""
MIN_TILES = 4
"""A share of fewer tiles costs more to start and to combine than it gains."""
NEAR_BEST = 0.95
"""What counts as good: of the best that any number of shares reaches."""


def choose_splits(blocks: int, tiles: int, slots: int) -> int:
    """The number of shares for a launch of `blocks` blocks a share, of at most `tiles` tiles each.

    With n shares there are ``n * blocks`` blocks, that run in waves of `slots` at once:
    the last wave is rarely full. Of the numbers that use the processors nearly as well as the best
    of them, the smallest.
    """
    most = max(1, min(MAX_SPLITS, tiles // MIN_TILES))

    def used(shares: int) -> float:
        waves = shares * blocks / slots
        return waves / -(-shares * blocks // slots)

    shares = range(1, most + 1)
    best = max(used(number) for number in shares)
    return next(number for number in shares if used(number) >= NEAR_BEST * best)
