"""The strategy of cases. Whatever is drawn is a case; only rules on packed lengths may reject one.

Hypothesis shrinks integers and lists best, so that is all there is. Where a choice decides what
range the next integer comes from, its first value stands for the widest one, and the others draw
from parts of that: lowering the choice then keeps the integer, and the case, as they are. So a
configuration of the tier is a choice after which every axis draws from one value alone, and the
choice 0 leaves each of them all of its values.
"""

from __future__ import annotations

from functools import cache
from itertools import chain, cycle, product
from typing import TYPE_CHECKING

from hypothesis import reject
from hypothesis import strategies as st

from tlmatrix.fuzz.strategies.lengths import Lengths, Profile, batch_value, key_span
from tlmatrix.fuzz.strategies.optional_axes import EXCESS, SIDES, Extras
from tlmatrix.fuzz.strategies.spans import Span
from tlmatrix.matrix import Case
from tlmatrix.matrix.rules import UNBOUND
from tlmatrix.spec.expr.expression import ExpressionError
from tlmatrix.spec.lengths import sides_of
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hypothesis.strategies import DrawFn, SearchStrategy

    from tlmatrix.fuzz.strategies.axis_domain import Domain
    from tlmatrix.fuzz.strategies.case_domain import CaseDomain
    from tlmatrix.matrix.space import Space
    from tlmatrix.spec.values import Value

    Batch = Sequence[tuple[int, int]]
    """(queries, keys) by sequence."""

__all__ = ["drawn"]

_WITHIN = 15
"""The first configuration is drawn so many times as often as none."""


def drawn(ground: CaseDomain) -> SearchStrategy[Case]:
    """Cases of a spec, drawn from what `ground` says."""
    batches = {axis: _batches(lengths) for axis, lengths in ground.lengths.items()}
    return _cases(ground, _Configurations(ground), batches)


@st.composite
def _cases(
    draw: DrawFn,
    ground: CaseDomain,
    configurations: _Configurations,
    batches: Mapping[str, SearchStrategy[Batch]],
) -> Case:
    values: dict[str, Value] = {}
    batch: Batch = ()
    for axis, strategy in batches.items():
        drawn_batch = draw(strategy)
        values[axis] = batch_value(ground.lengths[axis], drawn_batch)
        batch = drawn_batch if axis == "seqlens" else batch
    row = [UNBOUND] * len(ground.space.names)
    number = draw(_whole(0, configurations.last))
    within = draw(_whole(0, 0 if number or ground.only else _WITHIN))
    places = configurations.of(number, within)
    for name, domain in ground.fixed.items():
        low, high = (0, len(domain.named) - 1) if places is None else (places[name],) * 2
        place = draw(_whole(low, high)) if len(domain.named) > 1 else 0
        values[name] = _allowed(ground.space, row, name, domain.named[place], place)
    for name, domain in ground.free.items():
        value = _value(draw, domain)
        if name in ground.space.axes:
            value = _allowed(ground.space, row, name, value, domain.places[canonical(value)])
        values[name] = value
    if ground.rules:
        batch = _obedient(ground, values, batch)
    values |= _extras(draw, ground.extras, values, batch)
    return Case(ground.spec.name, values, "fuzz")


def _obedient(ground: CaseDomain, values: dict[str, Value], batch: Batch) -> Batch:
    """The batch, or where a rule does not hold one that the spec lists; `values` are changed."""
    listed = [ground.spec.axes[axis] for axis in ground.lengths]
    drawn_values = [values[axis] for axis in ground.lengths]
    for chosen in (drawn_values, *product(*listed)):
        values |= dict(zip(ground.lengths, chosen, strict=True))
        if _obeys(ground, values):
            seqlens = values.get("seqlens")
            return batch if chosen is drawn_values or seqlens is None else _pairs(seqlens)
    reject()
    raise AssertionError


def _obeys(ground: CaseDomain, values: Mapping[str, Value]) -> bool:
    """Whether the rules hold; one that has no answer for these values does not."""
    try:
        return all(bool(rule.expression.evaluate(values)) for rule in ground.rules)
    except ExpressionError:
        return False


def _pairs(value: Value) -> Batch:
    return list(zip(*sides_of(value), strict=True))


def _extras(
    draw: DrawFn, extras: Extras, values: Mapping[str, Value], batch: Batch
) -> dict[str, Value]:
    """Optional axes that are not left out, and those that must be as large as the lengths."""
    made: dict[str, Value] = {}
    for axis in extras.raised:
        value = values[axis]
        if isinstance(value, int):
            made[axis] = max(value, _longest(batch, axis))
    for axis in extras.larger:
        span = EXCESS[draw(_whole(0, len(EXCESS) - 1))]
        excess = draw(_whole(span.low, span.high))
        if excess:
            made[axis] = _longest(batch, axis) + excess
    for axis, choices in (("storage", extras.storage), ("values", extras.values)):
        if choices:
            chosen = choices[draw(_whole(0, len(choices) - 1))]
            made |= {} if chosen is None else {axis: chosen}
    return made


def _longest(batch: Batch, axis: str) -> int:
    return max(pair[SIDES[axis]] for pair in batch)


class _Configurations:
    """The places of the values of each configuration, by the two numbers that are drawn for it."""

    def __init__(self, ground: CaseDomain) -> None:
        self._places = [
            {
                name: ground.fixed[name].places[canonical(value)]
                for name, value in configuration.values.items()
            }
            for configuration in ground.configurations
        ]
        self.last = max(0, len(self._places) - 1)
        self._only = ground.only

    def of(self, number: int, within: int) -> dict[str, int] | None:
        """Configuration `number`, but for 0 and 0 none, so that axes have all their values."""
        chosen = number or within or self._only
        return self._places[number] if self._places and chosen else None


def _value(draw: DrawFn, domain: Domain) -> Value:
    """A value of an axis that is drawn by itself."""
    if not domain.spans:
        last = len(domain.named) - 1
        return domain.named[draw(_whole(0, last)) if last else 0]
    choice = domain.choices[draw(_whole(0, len(domain.choices) - 1))]
    if isinstance(choice, int):
        draw(_whole(0, 0))  # in the place of the number that another choice draws
        return domain.named[choice]
    number: int = draw(_whole(choice.low, choice.high))
    return number


def _allowed(space: Space, row: list[int], name: str, value: Value, place: int) -> Value:
    """The value, or the nearest one that the rules allow: plainer ones first, then others."""
    if name not in space.axes:
        return value
    position = space.names.index(name)
    values = space.axes[name]
    for at in (*range(place, -1, -1), *range(place + 1, len(values))):
        row[position] = at
        if space.extensible_at(row, position):
            allowed: Value = values[at]
            return allowed
    raise AssertionError(f"{name}: no value beside {row}, which was extensible")


def _batches(lengths: Lengths) -> SearchStrategy[Batch]:
    """Batches of (queries, keys), fewest sequences and shortest lengths first."""
    size = lengths.sequences
    of_profile = [
        st.lists(_sequences(lengths, profile), min_size=size.low, max_size=size.high)
        for profile in lengths.profiles
    ]
    return _profiled(lengths, of_profile)


@st.composite
def _profiled(draw: DrawFn, lengths: Lengths, of_profile: Sequence[SearchStrategy[Batch]]) -> Batch:
    place = draw(_whole(0, len(of_profile) - 1))
    if not lengths.requests:
        return draw(of_profile[place])
    start = draw(_whole(0, len(lengths.requests) - 1))
    profile = lengths.profiles[place]
    if not profile.of_trace:
        return draw(of_profile[place])
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
    """One sequence; with a `log` its next request, by the same draws, each of one number."""
    request = None if log is None else next(log)
    queries = lengths.fixed
    if queries is None:
        span = lengths.queries[draw(_whole(profile.queries.low, profile.queries.high))]
        if request is not None and not lengths.apart:
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
