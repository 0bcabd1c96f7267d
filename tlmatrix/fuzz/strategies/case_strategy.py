"""The Hypothesis strategy for cases of a `CaseDomain`.

It draws only integers and lists, which Hypothesis shrinks best. If a choice selects the range of
the next integer, choice 0 selects the widest range, which contains all others: Hypothesis can then
lower the choice without changing the integer. A configuration is such a choice as well: it leaves
one value of each fixed axis, and choice 0 leaves all of them. Only constraints on packed lengths
can reject a case.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import chain, cycle, product
from math import prod
from typing import TYPE_CHECKING, Protocol

from hypothesis import reject
from hypothesis import strategies as st

from tlmatrix.fuzz.strategies.case_domain import EXCESS, SIDES
from tlmatrix.fuzz.strategies.integers import Span, combined, related_span, shared_span
from tlmatrix.fuzz.strategies.lengths import Lengths, Profile, batch_value, key_span
from tlmatrix.matrix import Case
from tlmatrix.matrix.constraints import UNBOUND
from tlmatrix.spec.expr.expression import ExpressionError
from tlmatrix.spec.model.spec import WORLD
from tlmatrix.spec.values import sides_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hypothesis.strategies import DrawFn, SearchStrategy

    from tlmatrix.fuzz.strategies.case_domain import CaseDomain, OptionalAxes
    from tlmatrix.fuzz.strategies.integers import AxisDomain
    from tlmatrix.matrix.space import Space
    from tlmatrix.spec.values import Value

    Batch = Sequence[tuple[int, int]]
    """(queries, keys) of each sequence."""

_LARGE = 7
"""One case in so many, and one, has large sizes only: several tiles along all of them at once."""
_ALONE = 12
"""One case in so many has one large size alone, if a size of the spec has such numbers."""
_CHEAP = 4
"""Of the configurations, such cases have the cheapest: one in so many."""
_WITHIN = 15
"""How many times more often the first configuration is drawn than none."""


def case_strategy(case_domain: CaseDomain) -> SearchStrategy[Case]:
    """A strategy for the cases of a domain."""
    batches = {axis: _batches(lengths) for axis, lengths in case_domain.lengths.items()}
    configurations = [
        {name: case_domain.fixed[name].index_of(value) for name, value in values.items()}
        for values in case_domain.configurations.values()
    ]
    return _cases(case_domain, configurations, batches)


@st.composite
def _cases(
    draw: DrawFn,
    case_domain: CaseDomain,
    configurations: Sequence[Mapping[str, int]],
    batches: Mapping[str, SearchStrategy[Batch]],
) -> Case:
    values: dict[str, Value] = {}
    batch: Batch = ()
    drawn_batches: list[Batch] = []
    alone = _draw_alone(draw, case_domain)
    for axis, strategy in batches.items():
        if alone:
            lengths = case_domain.lengths[axis]
            drawn_batch: Batch = [lengths.least] * alone.get(axis, max(lengths.sequences.low, 1))
        else:
            drawn_batch = draw(strategy)
        values[axis] = batch_value(case_domain.lengths[axis], drawn_batch)
        batch = drawn_batch if axis == "seqlens" else batch
        if axis in case_domain.combined:
            drawn_batches.append(drawn_batch)
    row = [UNBOUND] * len(case_domain.space.names)
    number = draw(_whole(0, max(0, len(configurations) - 1)))
    if alone and configurations:
        number = _cheapest(case_domain)[number // _CHEAP]
    within = draw(_whole(0, 0 if number or case_domain.only else _WITHIN))
    # Both numbers are 0 for all values of each axis, to which Hypothesis shrinks.
    chosen = number or within or case_domain.only
    indices = configurations[number] if configurations and chosen else None
    for name, domain in case_domain.fixed.items():
        if indices is not None and case_domain.only:
            index = indices[name]  # no case is without a configuration, so that no draw is needed
        else:
            low, high = (0, len(domain.named) - 1) if indices is None else (indices[name],) * 2
            index = draw(_whole(low, high)) if len(domain.named) > 1 else 0
        values[name] = _allowed(case_domain.space, row, name, domain.named[index], index)
    numbers: list[int] = []
    large = bool(case_domain.combined) and draw(_whole(0, _LARGE)) == _LARGE
    for name, domain in case_domain.free.items():
        related: _Relation | None = None
        ranks = values.get(WORLD)
        if name in case_domain.shared and isinstance(ranks, int) and ranks > 1:
            related = _Shared(case_domain.shared[name], ranks)
        elif name in case_domain.combined:
            related = _Related(case_domain.tiles, drawn_batches, numbers)
        if alone and domain.spans:
            value: Value = alone.get(name, domain.least)
        else:
            value = _value(draw, domain, related, large=large and name in case_domain.combined)
        if name in case_domain.space.axes:
            value = _allowed(case_domain.space, row, name, value, domain.index_of(value))
        values[name] = value
        if name in case_domain.combined and type(value) is int:
            numbers.append(value)
    if case_domain.length_constraints:
        batch = _with_valid_lengths(case_domain, values, batch)
    values |= _draw_optional(draw, case_domain.optional, values, batch)
    return Case(case_domain.spec.name, values, "fuzz")


@cache
def _cheapest(case_domain: CaseDomain) -> list[int]:
    """The numbers of the configurations, those with the smallest sizes first."""

    def size(values: Mapping[str, Value]) -> int:
        return prod(each for each in values.values() if type(each) is int and each > 0)

    sizes = [size(values) for values in case_domain.configurations.values()]
    return sorted(range(len(sizes)), key=sizes.__getitem__)


def _draw_alone(draw: DrawFn, case_domain: CaseDomain) -> dict[str, int]:
    """The axis that has a number above its range, and the number, in some cases; mostly empty."""
    numbers = {name: domain.alone for name, domain in case_domain.free.items() if domain.alone}
    numbers |= {axis: each.alone for axis, each in case_domain.lengths.items() if each.alone}
    if not numbers or draw(_whole(0, _ALONE - 1)) < _ALONE - 1:
        return {}
    name = list(numbers)[draw(_whole(0, len(numbers) - 1))]
    return {name: numbers[name][draw(_whole(0, len(numbers[name]) - 1))]}


def _with_valid_lengths(case_domain: CaseDomain, values: dict[str, Value], batch: Batch) -> Batch:
    """The batch, or a listed one if it violates a constraint; updates `values`."""
    listed = [case_domain.spec.axes[axis] for axis in case_domain.lengths]
    drawn_values = [values[axis] for axis in case_domain.lengths]
    for chosen in (drawn_values, *product(*listed)):
        values |= dict(zip(case_domain.lengths, chosen, strict=True))
        if _satisfies(case_domain, values):
            seqlens = values.get("seqlens")
            return batch if chosen is drawn_values or seqlens is None else _pairs(seqlens)
    reject()
    raise AssertionError


def _satisfies(case_domain: CaseDomain, values: Mapping[str, Value]) -> bool:
    """Whether the constraints on lengths hold; one that cannot be evaluated does not."""
    try:
        return all(
            bool(each.expression.evaluate(values)) for each in case_domain.length_constraints
        )
    except ExpressionError:
        return False


def _pairs(value: Value) -> Batch:
    return list(zip(*sides_of(value), strict=True))


def _draw_optional(
    draw: DrawFn, optional: OptionalAxes, values: Mapping[str, Value], batch: Batch
) -> dict[str, Value]:
    """The drawn values of optional axes, and raised maximum lengths."""
    found: dict[str, Value] = {}
    for axis in optional.raised:
        value = values[axis]
        if isinstance(value, int):
            found[axis] = max(value, _longest(batch, axis))
    for axis in optional.larger:
        span = EXCESS[draw(_whole(0, len(EXCESS) - 1))]
        excess = draw(_whole(span.low, span.high))
        if excess:
            found[axis] = _longest(batch, axis) + excess
    for axis, choices in (("storage", optional.storage), ("values", optional.values)):
        if choices:
            chosen = choices[draw(_whole(0, len(choices) - 1))]
            found |= {} if chosen is None else {axis: chosen}
    return found


def _longest(batch: Batch, axis: str) -> int:
    return max(pair[SIDES[axis]] for pair in batch)


class _Relation(Protocol):
    """Spans of an axis that depend on values drawn before."""

    def span(self, whole: Span, number: int) -> Span:
        """Span `number` of the axis with the bounds `whole`."""


@dataclass(frozen=True)
class _Shared:
    """The tiles along a length, and the number of ranks that share it."""

    tiles: Sequence[int]
    ranks: int

    def span(self, whole: Span, number: int) -> Span:
        """Span `number` of lengths of which a rank's rows begin beside the edge of a tile."""
        return shared_span(whole, self.ranks, self.tiles, number)


@dataclass(frozen=True)
class _Related:
    """Generated values of axes whose sums and differences matter."""

    tiles: Sequence[int]
    batches: Sequence[Batch]
    numbers: Sequence[int]

    def span(self, whole: Span, number: int) -> Span:
        """Span `number` relative to the numbers and to a sequence of each batch."""
        others = list(self.numbers)
        for batch in self.batches:
            others += batch[number % len(batch)] if batch else ()
        return related_span(whole, combined(others), self.tiles, number) if others else whole


def _value(
    draw: DrawFn, domain: AxisDomain, related: _Relation | None, *, large: bool = False
) -> Value:
    """Draw a value of a free axis; half of those that are `related` are relative to others.

    One that is `large` is in the last eighth of the axis's range.
    """
    if not domain.spans:
        last = len(domain.named) - 1
        return domain.named[draw(_whole(0, last)) if last else 0]
    count = len(domain.choices)
    at = draw(_whole(0, count * (1 if related is None else 2) - 1))
    if large:
        whole = domain.spans[0]
        choice: int | Span = Span(whole.high - (whole.high - whole.low) // 8, whole.high)
    elif related is not None and at >= count:
        choice = related.span(domain.spans[0], at - count)
    else:
        choice = domain.choices[at]
    if isinstance(choice, int):
        draw(_whole(0, 0))  # keeps the number of draws the same for all choices
        return domain.named[choice]
    number: int = draw(_whole(choice.low, choice.high))
    return number


def _allowed(space: Space, row: list[int], name: str, value: Value, index: int) -> Value:
    """The value, or the nearest that satisfies the constraints: simpler ones first."""
    if name not in space.axes:
        return value
    position = space.names.index(name)
    row[position] = space.nearest(row, position, index)
    return space.axes[name][row[position]]


def _batches(lengths: Lengths) -> SearchStrategy[Batch]:
    """A strategy for batches; the simplest has the fewest sequences and shortest lengths."""
    size = lengths.sequences
    of_profile = [
        st.lists(_sequences(lengths, profile), min_size=size.low, max_size=size.high)
        for profile in lengths.profiles
    ]
    return _profiled(lengths, of_profile)


@st.composite
def _profiled(draw: DrawFn, lengths: Lengths, of_profile: Sequence[SearchStrategy[Batch]]) -> Batch:
    index = draw(_whole(0, len(of_profile) - 1))
    profile = lengths.profiles[index]
    if profile.climbs:
        climb = lengths.climbs[draw(_whole(0, len(lengths.climbs) - 1))]
        count = min(max(len(climb), lengths.sequences.low), lengths.sequences.high)
        batch = _sequences(lengths, profile, cycle(climb))
        return draw(st.lists(batch, min_size=count, max_size=count))
    if not lengths.requests:
        return draw(of_profile[index])
    start = draw(_whole(0, len(lengths.requests) - 1))
    if not profile.of_trace:
        return draw(of_profile[index])
    size = lengths.sequences
    log = chain(lengths.requests[start:], cycle(lengths.requests))
    return draw(st.lists(_sequences(lengths, profile, log), min_size=size.low, max_size=size.high))


@st.composite
def _sequences(
    draw: DrawFn,
    lengths: Lengths,
    profile: Profile,
    log: Iterator[tuple[int, int]] | None = None,
) -> tuple[int, int]:
    """Draw a sequence; with a `log`, its next request by the same number of draws."""
    request = None if log is None else next(log)
    queries = lengths.fixed
    if queries is None:
        span = lengths.queries[draw(_whole(profile.queries.low, profile.queries.high))]
        if request is not None and (profile.climbs or not lengths.separate_queries):
            span = Span(request[0], request[0])
        queries = draw(_whole(span.low, span.high))
    if lengths.keys is None:
        return queries, queries
    choice = lengths.keys[draw(_whole(profile.keys.low, profile.keys.high))]
    keys = key_span(lengths, choice, queries) if request is None else Span(request[1], request[1])
    return queries, draw(_whole(keys.low, keys.high))


@cache
def _whole(low: int, high: int) -> SearchStrategy[int]:
    return st.integers(low, high)
