"""Which part of a length belongs to which rank, in plain numbers."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["UnevenError", "chunks_of", "owners", "parts"]


class UnevenError(ValueError):
    """A length that ranks cannot share evenly, where nobody said how else."""

    def __init__(self, length: int, count: int) -> None:
        self.length = length
        self.count = count
        super().__init__(f"{length} is not divisible by {count}")


def parts(length: int, count: int, uneven: str | None) -> list[range]:
    """`count` parts of `range(length)`, in order.

    uneven: `balanced` gives the first parts one more, `ceil` gives every part
        ceil(length / count), the last ones less or nothing.

    Raises:
        UnevenError: `count` does not divide `length`, and `uneven` is None.
    """
    least, more = divmod(length, count)
    if more and uneven is None:
        raise UnevenError(length, count)
    if uneven == "ceil":
        most = -(-length // count)
        return [range(min(k * most, length), min((k + 1) * most, length)) for k in range(count)]
    ends = list(accumulate((least + (k < more) for k in range(count)), initial=0))
    return [range(begin, end) for begin, end in pairwise(ends)]


def chunks_of(rank: int, world: int, order: str) -> list[int]:
    """The numbers of a rank's chunks: of `world` where contiguous, of 2 `world` in a zigzag."""
    return [rank] if order == "contiguous" else [rank, 2 * world - 1 - rank]


def owners(
    lengths: Sequence[int], world: int, order: str = "contiguous", uneven: str | None = None
) -> list[list[range]]:
    """By rank: the rows it has of sequences of these lengths, packed one after the other.

    Every sequence is split by itself. Raises UnevenError as `parts` does.
    """
    count = world if order == "contiguous" else 2 * world
    found: list[list[range]] = [[] for _ in range(world)]
    begin = 0
    for length in lengths:
        chunks = parts(length, count, uneven)
        for rank, rows in enumerate(found):
            for number in chunks_of(rank, world, order):
                chunk = chunks[number]
                rows.append(range(begin + chunk.start, begin + chunk.stop))
        begin += length
    return found
