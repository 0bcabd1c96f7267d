"""The domain of one axis: listed values, and the integers of a range."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tlmatrix.fuzz.strategies.spans import Span, clip, edges
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tlmatrix.spec.model.fuzz import FuzzAxis
    from tlmatrix.spec.values import Value

_MOST_TESTED = 4096
"""Most integers of a span that a predicate is tested for."""


@dataclass(frozen=True)
class AxisDomain:
    """The values of an axis, the simplest first.

    `named` are single values. If there are `spans`, the integers of the first one follow, drawn as
    in `tlmatrix.fuzz.strategies.spans`; listed integers are then spans as well.
    """

    named: tuple[Value, ...]
    spans: tuple[Span, ...] = ()

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
        return AxisDomain(named, spans) if named or spans else None

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
        return AxisDomain(named, spans) if named or spans else self

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
        """Listed numbers outside the range."""
        if not self.spans:
            return []
        whole = self.spans[0]
        return sorted(
            {
                each.low
                for each in self.spans
                if each.low == each.high and not whole.low <= each.low <= whole.high
            }
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
    return AxisDomain(tuple(each for each in values if type(each) is not int), spans)
