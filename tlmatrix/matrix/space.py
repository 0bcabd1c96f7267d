"""The set of cases that axes and rules allow, searched and counted without listing it.

A spec's product may hold millions of cases, and most questions about it (how many are there, which
come first, does any case hold this pair) have answers that do not depend on walking it: rules
name few axes, so axes fall into groups that no rule connects, and each group is small. This
module works on positions (a row is one value index per axis), knows nothing of specs, and is
what every strategy and the proof of coverage stand on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from operator import getitem, itemgetter, mul
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tlmatrix.spec.values import Value

__all__ = ["UNBOUND", "Constraint", "Row", "Space"]

Row = tuple[int, ...]
UNBOUND = -1
"""Stands in a partial row for an axis that has no value yet."""

_TABLE_LIMIT = 1 << 16  # combinations of one rule evaluated up front, so that errors show at once
_MEMO_LIMIT = 1 << 24  # combinations of one rule remembered, a byte each
_SEARCH_MEMO_LIMIT = 1 << 18  # partial assignments remembered by the search of one group

_PASSES, _FAILS = 1, 2  # what is remembered of a combination; 0 where it was not asked yet


@dataclass(frozen=True)
class Constraint:
    """A rule over the axes in `names`: `allows` gets their values by name, True keeps the case.

    `text` is what tells two rules apart in the cache; equal text must mean an equal rule.
    """

    names: tuple[str, ...]
    allows: Callable[[Mapping[str, Value]], bool]
    text: str = ""


class _Rule:
    """A constraint over positions, evaluated at most once for each combination of its axes."""

    def __init__(
        self, constraint: Constraint, positions: Row, domains: Sequence[Sequence[Value]]
    ) -> None:
        self.positions = positions
        self._constraint = constraint
        self._domains = domains
        sizes = [len(domain) for domain in domains]
        self._strides = tuple(prod(sizes[at + 1 :]) for at in range(len(sizes)))
        self.size = prod(sizes)
        self._pick = _picker(positions)
        self._memo = bytearray(self.size if self.size <= _MEMO_LIMIT else 0)
        if self.size <= _TABLE_LIMIT:
            for key in _mixed_radix(sizes):
                self._verdict(key)

    def allows(self, row: Sequence[int]) -> bool:
        """Whether a row that binds every axis of the rule passes it."""
        return self._verdict(self._pick(row))

    def removed(self) -> int:
        """How many combinations of the rule's own axes fail it."""
        return sum(
            not self._verdict(key) for key in _mixed_radix([len(each) for each in self._domains])
        )

    def _verdict(self, key: Row) -> bool:
        if not self._memo:
            return self._evaluate(key)
        at: int = sum(map(mul, key, self._strides))
        if not self._memo[at]:
            self._memo[at] = _PASSES if self._evaluate(key) else _FAILS
        return self._memo[at] == _PASSES

    def _evaluate(self, key: Row) -> bool:
        values = map(getitem, self._domains, key)
        return self._constraint.allows(dict(zip(self._constraint.names, values, strict=True)))


class _Group:
    """Axes that rules connect, directly or through one another; searched apart from the rest."""

    def __init__(self, positions: Row, sizes: Sequence[int], rules: Sequence[_Rule]) -> None:
        self.positions = _elimination_order(positions, sizes, rules)
        self._sizes = sizes
        self._rules = rules
        self._width = len(sizes)
        self.pick = _picker(self.positions)
        bound_by = {position: depth for depth, position in enumerate(self.positions)}
        depth = len(self.positions)
        self._closing: list[list[_Rule]] = [[] for _ in range(depth)]
        for rule in rules:
            self._closing[max(bound_by[each] for each in rule.positions)].append(rule)
        # What a later rule can still see of the positions bound before each depth.
        self._frontier = [
            _picker(
                tuple(
                    position
                    for position in self.positions[:at]
                    if any(
                        position in rule.positions
                        and any(bound_by[other] >= at for other in rule.positions)
                        for rule in rules
                    )
                )
            )
            for at in range(depth + 1)
        ]
        self._of_axis = {
            position: [rule for rule in rules if position in rule.positions]
            for position in positions
        }
        self._counts: list[dict[Row, int]] = [{} for _ in range(depth + 1)]
        self._found: dict[Row, bool] = {}

    def extensible(self, row: Sequence[int]) -> bool:
        """Whether the group's unbound axes can be given values so that every rule passes."""
        key = self.pick(row)
        known = self._found.get(key)
        if known is not None:
            return known
        bound = [UNBOUND] * self._width
        for position, value in zip(self.positions, key, strict=True):
            bound[position] = value
        answer = all(
            rule.allows(bound)
            for rule in self._rules
            if all(bound[position] != UNBOUND for position in rule.positions)
        ) and self._search(bound)
        self._remember(key, answer)
        return answer

    def _remember(self, key: Row, answer: bool) -> None:
        if UNBOUND not in key:
            return  # there may be millions of these, and the rules answer as fast
        if len(self._found) >= _SEARCH_MEMO_LIMIT:
            self._found.clear()
        self._found[key] = answer

    def _search(self, row: list[int]) -> bool:
        """Backtracking: `row` breaks no rule that it binds; is there a way to go on?"""
        position = self._next_axis(row)
        if position is None:
            return True
        key = self.pick(row)
        known = self._found.get(key)
        if known is not None:
            return known
        answer = False
        for value in range(self._sizes[position]):
            row[position] = value
            if self._passes(row, position) and self._search(row):
                answer = True
                break
        row[position] = UNBOUND
        self._remember(key, answer)
        return answer

    def _passes(self, row: Sequence[int], position: int) -> bool:
        return all(
            rule.allows(row)
            for rule in self._of_axis[position]
            if all(row[each] != UNBOUND for each in rule.positions)
        )

    def _next_axis(self, row: Sequence[int]) -> int | None:
        """The unbound axis nearest to completing a rule, so that dead ends show early."""
        best: tuple[int, int, int] | None = None
        for rule in self._rules:
            left = [position for position in rule.positions if row[position] == UNBOUND]
            if left:
                position = min(left, key=lambda each: (self._sizes[each], each))
                rank = (len(left), self._sizes[position], position)
                best = rank if best is None else min(best, rank)
        return None if best is None else best[2]

    def count(self) -> int:
        """How many ways there are to give every axis of the group a value."""
        return self._count(0, [UNBOUND] * self._width)

    def _count(self, depth: int, row: list[int]) -> int:
        if depth == len(self.positions):
            return 1
        key = self._frontier[depth](row)
        # Remembered only where two prefixes can meet: otherwise the memory is the whole product.
        shared = len(key) < depth or depth == 0
        if shared and key in self._counts[depth]:
            return self._counts[depth][key]
        position = self.positions[depth]
        total = 0
        for value in range(self._sizes[position]):
            row[position] = value
            if all(rule.allows(row) for rule in self._closing[depth]):
                total += self._count(depth + 1, row)
        row[position] = UNBOUND
        if shared:
            self._counts[depth][key] = total
        return total

    def fill(self, row: list[int], index: int) -> None:
        """Bind the group's axes to its `index`-th assignment, `0 <= index < count()`."""
        for depth, position in enumerate(self.positions):
            for value in range(self._sizes[position]):
                row[position] = value
                if not all(rule.allows(row) for rule in self._closing[depth]):
                    continue
                ways = self._count(depth + 1, row)
                if index < ways:
                    break
                index -= ways
            else:
                raise IndexError(index)


class Space:
    """All rows over `axes` that pass every constraint.

    `axes` maps a name to its values; rows index into them in the order of the mapping. Every
    combination of the axes that a constraint names is evaluated here, up to 65,536 of them and
    later ones when they are met, so whatever a constraint raises is raised early.
    """

    def __init__(
        self, axes: Mapping[str, Sequence[Value]], constraints: Sequence[Constraint] = ()
    ) -> None:
        self.axes = {name: tuple(values) for name, values in axes.items()}
        self.names = tuple(self.axes)
        self.sizes = tuple(len(values) for values in self.axes.values())
        self.constraints = tuple(constraints)
        place = {name: position for position, name in enumerate(self.names)}
        self._rules = [
            _Rule(
                each,
                tuple(place[name] for name in each.names),
                [self.axes[name] for name in each.names],
            )
            for each in self.constraints
        ]
        self._constant = all(rule.allows(()) for rule in self._rules if not rule.positions)
        rules = [rule for rule in self._rules if rule.positions]
        self._groups = [
            _Group(
                positions, self.sizes, [rule for rule in rules if rule.positions[0] in positions]
            )
            for positions in _connected(rules)
        ]
        self._group_of = {at: group for group in self._groups for at in group.positions}
        self._free = [at for at in range(len(self.names)) if at not in self._group_of]

    @property
    def products(self) -> int:
        """How many rows there would be without constraints."""
        return prod(self.sizes)

    @cached_property
    def count(self) -> int:
        """How many rows pass every constraint; exact, and found without walking them."""
        if not self._constant:
            return 0
        free = prod(self.sizes[at] for at in self._free)
        return free and free * prod(group.count() for group in self._groups)

    def removed(self) -> tuple[int, ...]:
        """For each constraint alone, how many rows of the whole product fail it.

        The counts are independent of one another: a row that two constraints fail is in both, so
        their sum may exceed `products - count`.
        """
        return tuple(
            rule.removed() * prod(size for at, size in enumerate(self.sizes) if at not in mine)
            for rule in self._rules
            for mine in [frozenset(rule.positions)]
        )

    def allows(self, row: Sequence[int]) -> bool:
        """Whether a full row passes every constraint."""
        return all(rule.allows(row) for rule in self._rules)

    def failing(self, row: Sequence[int]) -> tuple[int, ...]:
        """The constraints, by number, that a full row fails."""
        return tuple(at for at, rule in enumerate(self._rules) if not rule.allows(row))

    def extensible(self, row: Sequence[int]) -> bool:
        """Whether some full row agrees with `row` wherever it is bound.

        A search by backtracking over everything that the bound axes are connected with; its answer
        is exact both ways, so False is a proof that no case holds these values.
        """
        return (
            self._constant
            and all(self.sizes)
            and all(group.extensible(row) for group in self._groups)
        )

    def extensible_at(self, row: Sequence[int], position: int) -> bool:
        """`extensible`, for a row that was extensible before `position` was bound."""
        group = self._group_of.get(position)
        return group is None or group.extensible(row)

    def __iter__(self) -> Iterator[Row]:
        """Every allowed row, the last axis fastest; nothing is held, no dead end is entered."""
        width = len(self.names)
        row = [UNBOUND] * width
        if not self.extensible(row):
            return
        if not width:
            yield ()
            return
        depth = 0
        while depth >= 0:
            row[depth] += 1
            if row[depth] == self.sizes[depth]:
                row[depth] = UNBOUND
                depth -= 1
            elif self.extensible_at(row, depth):
                if depth == width - 1:
                    yield tuple(row)
                else:
                    depth += 1

    def __getitem__(self, index: int) -> Row:
        """The `index`-th allowed row, in an order of its own: for sampling."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        row = [UNBOUND] * len(self.names)
        for at in self._free:
            index, row[at] = divmod(index, self.sizes[at])
        for group in self._groups:
            index, place = divmod(index, group.count())
            group.fill(row, place)
        return tuple(row)

    def values(self, row: Sequence[int]) -> dict[str, Value]:
        """The values that a row stands for, by axis."""
        return {
            name: values[index]
            for (name, values), index in zip(self.axes.items(), row, strict=True)
        }


def _picker(positions: Row) -> Callable[[Sequence[int]], Row]:
    """`itemgetter` that gives a tuple for any number of positions."""
    match positions:
        case ():
            return lambda _: ()
        case (only,):
            return lambda row: (row[only],)
        case _:
            return itemgetter(*positions)


def _mixed_radix(sizes: Sequence[int]) -> Iterator[Row]:
    return product(*map(range, sizes))


def _connected(rules: Sequence[_Rule]) -> list[Row]:
    """The positions that rules name, split into the parts that no rule connects."""
    parts: list[set[int]] = []
    for rule in rules:
        merged = set(rule.positions)
        apart = []
        for part in parts:
            if part & merged:
                merged |= part
            else:
                apart.append(part)
        parts = [*apart, merged]
    return sorted(tuple(sorted(part)) for part in parts)


def _elimination_order(positions: Row, sizes: Sequence[int], rules: Sequence[_Rule]) -> Row:
    """An order that keeps few axes in view of the rules still to come (greedy).

    Counting remembers one number for each combination of the axes in view, so a bad order costs
    memory, never the answer.
    """
    order: list[int] = []
    left = list(positions)
    while left:

        def in_view(candidate: int) -> tuple[int, int]:
            bound = {*order, candidate}
            view = {
                at
                for rule in rules
                if not bound.issuperset(rule.positions)
                for at in rule.positions
                if at in bound
            }
            return prod(sizes[at] for at in view), candidate

        best = min(left, key=in_view)
        order.append(best)
        left.remove(best)
    return tuple(order)
