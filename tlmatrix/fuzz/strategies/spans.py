"""Spans of integers at which kernels tend to fail.

An integer is drawn in two steps: a span, then a number in it. The first span is the whole range and
contains all others, so Hypothesis can shrink the span without changing the number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MULTIPLES = 4
"""Number of multiples of a tile that count as edges."""
_ALIGNED = (4, 8, 16)
"""Alignments that vector instructions, TMA boxes and MMA rows need."""


@dataclass(frozen=True)
class Span:
    """The integers from `low` to `high`, both included."""

    low: int
    high: int


def clip(span: Span, low: int, high: int) -> Span:
    """The part of a span between two bounds, or the nearest bound if there is none."""
    return Span(min(max(span.low, low), high), max(min(span.high, high), low))


def edges(whole: Span, tiles: Iterable[int], around: Iterable[int] = ()) -> tuple[Span, ...]:
    """Spans of three integers around tile sizes, their multiples, `around`, and alignments.

    Those of tiles and `around` are repeated, so that they are drawn more often.
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
        yield clip(Span(at - 1, at + 1), whole.low, whole.high)
