"""Values of one axis relative to values of others: sums and differences at edges of tiles.

Kernels combine lengths: the first key that a window shows is `seqlen_k - window`, the shift of a
causal mask `seqlen_k - seqlen_q`. Such a sum can be at the edge of a tile although no length is.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from tlmatrix.fuzz.strategies.spans import Span, clip

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_STRIDE = 7919
"""A prime: successive numbers of spans differ in all that they select."""
_SIGNS = 4
"""One span in so many is of a sum; the others are of differences, which kernels form more often."""
_LEAST = 8
"""The least tile with edges: nearly every integer is near a multiple of a smaller one."""


def edges_of(tiles: Iterable[int]) -> tuple[int, ...]:
    """The sizes of tiles at whose multiples sums and differences are put, the smallest first.

    Half of them divide no other size: their multiples are edges of several tiles.
    """
    found = sorted({tile for tile in tiles if tile >= _LEAST})
    largest = [
        tile for tile in found if not any(other % tile == 0 < other - tile for other in found)
    ]
    return (*found, *largest * (len(found) // len(largest) if largest else 0))


def combined(numbers: Sequence[int]) -> tuple[int, ...]:
    """The numbers above 1, each as often as there are such, and sums and differences of two."""
    numbers = [number for number in numbers if number > 1] or numbers
    pairs = [each for a, b in combinations(numbers, 2) for each in (a + b, a - b)]
    return (*numbers, *list(numbers) * (len(numbers) - 1), *pairs)


def related_span(whole: Span, others: Sequence[int], tiles: Sequence[int], number: int) -> Span:
    """A span of integers n with n - other, or rarely n + other, at a tile's edge or beside it.

    Args:
        whole: the bounds of n.
        others: values of other axes, at least one.
        tiles: sizes of tiles, at least one; their multiples, 0 included, are edges.
        number: selects one of these spans.

    Returns:
        The span, or `whole` if it has no such integer.
    """
    index, at = divmod((number + 1) * _STRIDE, len(others))
    other = others[at]
    index, at = divmod(index, len(tiles))
    tile = tiles[at]
    index, sign = divmod(index, _SIGNS)
    index, exact = divmod(index, 2)
    base = (other if sign else -other) % tile
    first, last = -((base - whole.low) // tile), (whole.high - base) // tile
    if last < first:
        return whole
    center = base + (first + index % (last - first + 1)) * tile
    return clip(Span(center - 1 + exact, center + 1 - exact), whole.low, whole.high)
