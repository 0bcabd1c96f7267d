"""Whole numbers near which kernels break, as spans of a range.

A number is drawn in two steps: a span, then a number in it. The first span is always the whole
range, and every other lies within it: so a number found in any span is also one of the first, and
Hypothesis shrinks span and number one after the other without ever having to give up a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Span", "clipped", "edges"]

_MULTIPLES = 4
"""Multiples of a tile that are edges; of longer ranges, the first ones."""
_ALIGNED = (4, 8, 16)
"""What vectors, TMA boxes and MMA rows want a size to be a multiple of."""


@dataclass(frozen=True)
class Span:
    """The whole numbers from `low` to `high`, both included."""

    low: int
    high: int


def clipped(span: Span, low: int, high: int) -> Span:
    """What of a span lies between two bounds, or else the bound that is nearest to it."""
    return Span(min(max(span.low, low), high), max(min(span.high, high), low))


def edges(whole: Span, tiles: Iterable[int], around: Iterable[int] = ()) -> tuple[Span, ...]:
    """Short spans in which bugs live, those of tiles and of `around` more than once.

    A number and both its neighbours make a span: a tile, its multiples, numbers next to multiples
    of 4, 8 and 16.
    """
    found: list[Span] = []
    for tile in dict.fromkeys(tiles):
        for at in range(tile, (_MULTIPLES + 1) * tile, tile):
            found += [*_near(whole, at)] * (3 if at == tile else 2)
    for at in dict.fromkeys(around):
        found += [*_near(whole, at)] * 3
    for step in _ALIGNED:
        for at in (step, 3 * step):
            found += _near(whole, at)
    return tuple(found)


def _near(whole: Span, at: int) -> Iterator[Span]:
    if at - 1 <= whole.high and at + 1 >= whole.low:
        yield clipped(Span(at - 1, at + 1), whole.low, whole.high)
