"""The domain of one axis: listed values, and spans of integers at which kernels tend to fail.

An integer is drawn in two steps: a span, then a number in it. The first span is the whole range and
contains all others, so Hypothesis can shrink the span without changing the number.

Kernels combine lengths: the first key that a window shows is `seqlen_k - window`, the shift of a
causal mask `seqlen_k - seqlen_q`. Such a sum can be at the edge of a tile although no length is. So
some spans are relative to values of other axes (`related_span`). Where ranks share a length, a tile
may have rows of two of them: some spans put the first row of a rank at its edge (`shared_span`).
Others have fewer rows than there are ranks.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tlmatrix.spec.model.fuzz import FuzzAxis
    from tlmatrix.spec.values import Value

_MULTIPLES = 4
"""Number of multiples of a tile that count as edges."""
_ALIGNED = (4, 8, 16)
"""Alignments that vector instructions, TMA boxes and MMA rows need."""
_STEPS = (64, 128, 256, 512, 1024)
"""Usual numbers of threads and of elements that a loop takes at once."""
_BEYOND = 32
"""About how many numbers above a range are candidates."""
_STRIDE = 7919
"""A prime: successive numbers of spans differ in all that they select."""
_SIGNS = 4
"""One span in so many is of a sum; the others are of differences, which kernels form more often."""
_FEWER = 4
"""One span in so many, of those that ranks share, has fewer rows than ranks."""
_LEAST = 8
"""The least tile with edges: nearly every integer is near a multiple of a smaller one."""
_MOST_TESTED = 4096
"""Most integers of a span that a predicate is tested for."""


@dataclass(frozen=True)
class Span:
    """The integers from `low` to `high`, both included."""

    low: int
    high: int

    @property
    def least(self) -> int:
        """The least that is not 0 or less, or the end of the span."""
        return min(max(self.low, 1), self.high)


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


def shared_span(whole: Span, parts: int, tiles: Sequence[int], number: int) -> Span:
    """A span of lengths of which one part, of `parts`, begins at a tile's edge or beside it.

    One in four has fewer rows than parts, so that some parts are empty; without tiles, half. Parts
    are those of `torch.tensor_split`: part r of n begins at ``r * (n // parts) + min(r, n %
    parts)``.

    Args:
        whole: the bounds of the length.
        parts: in how many parts it is split, at least 2.
        tiles: sizes of tiles.
        number: selects one of these spans.

    Returns:
        The span, or `whole` if no part of such a length begins beside an edge.
    """
    index, kind = divmod((number + 1) * _STRIDE, _FEWER if tiles else 2)
    if kind == 0:
        return clip(Span(1, parts - 1), whole.low, whole.high) if whole.low < parts else whole
    if not tiles:
        return whole
    index, at = divmod(index, len(tiles))
    tile = tiles[at]
    index, part = divmod(index, parts - 1)
    part += 1
    index, beside = divmod(index, 3)
    count = whole.high * part // parts // tile
    if not count:
        return whole
    base, more = divmod((1 + index % count) * tile + beside - 1, part)
    low = high = base * parts + more
    if not more:  # so do those whose last parts are shorter
        low -= parts - part
    if high < whole.low or low > whole.high:
        return whole
    return clip(Span(low, high), whole.low, whole.high)


@dataclass(frozen=True)
class AxisDomain:
    """The values of an axis, the simplest first.

    `named` are single values. If there are `spans`, the integers of the first one follow, drawn
    in two steps (see above); listed integers are then spans as well.
    """

    named: tuple[Value, ...]
    spans: tuple[Span, ...] = ()
    alone: tuple[int, ...] = ()
    """Numbers above the range, of cases whose other sizes are at their least."""

    @property
    def least(self) -> int:
        """The least number of the range that is not 0, or its end."""
        return self.spans[0].least

    @cached_property
    def choices(self) -> tuple[int | Span, ...]:
        """The choices of a value: the index of a named one, or a span; a quarter are named.

        The simplest choices, all named values and the whole range, come first.
        """
        names = range(len(self.named))
        more = len(self.spans) // (3 * len(names)) if names else 0
        return (*names, *self.spans, *(at for at in names for _ in range(more)))

    def within(self, most: int) -> AxisDomain | None:
        """The domain without numbers above `most`; None if it is empty."""
        named = tuple(each for each in self.named if type(each) is not int or each <= most)
        spans = tuple(
            Span(span.low, min(span.high, most)) for span in self.spans if span.low <= most
        )
        if self.spans and self.spans[0].low > most:
            # The whole range is above `most`: only listed numbers remain.
            numbers = sorted({each.low for each in spans})
            named, spans = (*named, *numbers), ()
        alone = tuple(each for each in self.alone if spans and each <= most)
        return AxisDomain(named, spans, alone) if named or spans else None

    def where(self, holds: Callable[[Value], bool]) -> AxisDomain:
        """The domain without values and spans for which a predicate fails; unchanged if all do.

        A span remains if it holds for one of its integers, or if they are too many to test.
        """
        named = tuple(filter(holds, self.named))
        spans = tuple(
            span
            for span in self.spans
            if span.high - span.low > _MOST_TESTED
            or any(map(holds, range(span.low, span.high + 1)))
        )
        alone = tuple(filter(holds, self.alone if spans else ()))
        return AxisDomain(named, spans, alone) if named or spans else self

    @cached_property
    def highest(self) -> int:
        """The largest integer, or -1."""
        numbers = [each for each in self.named if type(each) is int]
        return max([*numbers, *(each.high for each in self.spans)], default=-1)

    @property
    def count(self) -> int:
        """The number of values, or an upper bound of it."""
        spread = sum(span.high - span.low + 1 for span in self.spans[:1])
        return len(self.named) + spread + len(self._outside)

    @property
    def _outside(self) -> list[int]:
        """Numbers outside the range: listed ones, and those of `alone`."""
        if not self.spans:
            return []
        whole = self.spans[0]
        return sorted(
            {
                each.low
                for each in self.spans
                if each.low == each.high and not whole.low <= each.low <= whole.high
            }
            | {*self.alone}
        )

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """Every value, in order."""
        if not self.spans:
            return self.named
        whole = self.spans[0]
        return (*self.named, *sorted({*range(whole.low, whole.high + 1), *self._outside}))

    def index_of(self, value: Value) -> int:
        """The index of a value in `values`.

        Raises:
            ValueError: it is not one of them.
        """
        if (index := self._named.get(canonical(value))) is not None:
            return index
        if type(value) is int and self.spans:
            index = bisect_left(self.values, value, lo=len(self.named))  # type: ignore[type-var]
            if index < len(self.values) and self.values[index] == value:
                return index
        raise ValueError(value)

    @cached_property
    def _named(self) -> dict[str, int]:
        return {canonical(value): at for at, value in enumerate(self.named)}


def axis_domain(
    listed: Sequence[Value], drawn: FuzzAxis | None, tiles: Sequence[int]
) -> AxisDomain:
    """The domain of an axis.

    Args:
        listed: the values of the axis in the spec.
        drawn: the entry of the axis in `fuzz.axes`.
        tiles: sizes of the tile along the axis.
    """
    values = [*listed, *(drawn.values if drawn is not None else ())]
    if drawn is None or drawn.range is None:
        return AxisDomain(tuple(values))
    whole = Span(drawn.range.low, drawn.range.high)
    numbers = [each for each in values if type(each) is int]
    ends = [clip(Span(at, at + 1), whole.low, whole.high) for at in (0, whole.high - 1)]
    own = [Span(each, each) for each in numbers]
    special = [*edges(whole, tiles, drawn.around), *ends, *own]
    spans = (whole, *special, *[whole] * (2 * len(special) // 3))
    others = tuple(each for each in values if type(each) is not int)
    return AxisDomain(others, spans, beyond(whole.high, drawn.alone, (*tiles, *drawn.around)))


def beyond(high: int, most: int | None, tiles: Iterable[int]) -> tuple[int, ...]:
    """Numbers above `high`, from the first past the largest tile or usual step to `most`.

    Loops with the largest step below `most` make a second iteration, those with smaller steps make
    several. Some thirty numbers; empty without `most`.
    """
    if most is None:
        return ()
    past = [step + 1 for step in (*tiles, *_STEPS) if high < step + 1 <= most]
    first = max(past, default=high + 1)
    return (*range(first, most, 1 + (most - first) // _BEYOND), most)
