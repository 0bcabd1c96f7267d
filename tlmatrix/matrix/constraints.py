"""Constraints over positions of axes, and the groups of axes that constraints connect.

A constraint is evaluated at most once for each combination of its axes. Groups are independent, so
each is searched and counted alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from operator import getitem, itemgetter, mul
from typing import TYPE_CHECKING

from tlmatrix.matrix.bounds import conjuncts_of, part_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from tlmatrix.matrix.bounds import Conjunct
    from tlmatrix.spec.values import Value

Row = tuple[int, ...]
UNBOUND = -1
"""In a partial row, an axis without a value."""

_TABLE_LIMIT = 1 << 16  # combinations of one constraint evaluated up front, to show errors at once
_MEMO_LIMIT = 1 << 24  # combinations of one constraint remembered, a byte each
_SEARCH_MEMO_LIMIT = 1 << 18  # partial assignments remembered by the search of one group
_WITNESSES = 1 << 12  # solutions remembered by the search of one group
_COUNTED = 1 << 12  # partial assignments that counting solves, in about 2 s, before it gives up
_SEARCHED = 1 << 20  # partial assignments that one search visits, in about 20 s, before it gives up
_TRIED = 16  # values of an axis that the search tries one by one, without dividing them further

_PASSES, _FAILS = 1, 2  # entries of the memo; 0: not evaluated yet


class TooManyError(Exception):
    """The solutions are too many to count in a few seconds."""


@dataclass(frozen=True)
class Constraint:
    """A constraint over axes.

    Attributes:
        names: the axes.
        allows: a predicate over their values, by name.
        text: the identity of the constraint in the cache.
        solvable: whether `text` is an expression, which is solved if it has too many combinations.
        too_hard: the exception to raise if no solution is found in reasonable time.
    """

    names: tuple[str, ...]
    allows: Callable[[Mapping[str, Value]], bool]
    text: str = ""
    solvable: bool = False
    too_hard: Callable[[], Exception] = TooManyError


class IndexedConstraint:
    """A constraint over positions, evaluated at most once for each combination of its axes."""

    def __init__(
        self, constraint: Constraint, positions: Row, domains: Sequence[Sequence[Value]]
    ) -> None:
        self.positions = positions
        self.too_hard = constraint.too_hard
        self._constraint = constraint
        self._domains = domains
        sizes = [len(domain) for domain in domains]
        self._strides = tuple(prod(sizes[at + 1 :]) for at in range(len(sizes)))
        self.size = prod(sizes)
        self._pick = _picker(positions)
        self._memo = bytearray(self.size if self.size <= _MEMO_LIMIT else 0)
        self.conjuncts: tuple[Conjunct, ...] = ()
        """Conjuncts of a large constraint, for solving; empty if it is enumerated."""
        if self.size <= _TABLE_LIMIT:
            for key in product(*map(range, sizes)):
                self._verdict(key)
        elif constraint.solvable:
            position_of = dict(zip(constraint.names, positions, strict=True))
            axes = dict(zip(constraint.names, domains, strict=True))
            self.conjuncts = conjuncts_of(constraint.text, position_of, axes)
        self.scopes = tuple(filter(None, (conjunct.positions for conjunct in self.conjuncts))) or (
            positions,
        )
        """The axes of each conjunct, or of the whole constraint."""

    def allows(self, row: Sequence[int]) -> bool:
        """Whether a row that binds all axes of the constraint satisfies it."""
        return self._verdict(self._pick(row))

    def removed(self) -> int:
        """The number of combinations of the constraint's axes that violate it.

        Raises:
            TooManyError: they can be neither enumerated nor counted.
        """
        if self.conjuncts:
            sizes = [0] * (1 + max(self.positions))
            for position, domain in zip(self.positions, self._domains, strict=True):
                sizes[position] = len(domain)
            return self.size - Group(self.positions, sizes, [self]).count()
        if self.size > _MEMO_LIMIT:
            raise TooManyError
        indices = product(*(range(len(each)) for each in self._domains))
        return sum(not self._verdict(key) for key in indices)

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


class Group:
    """Axes that constraints connect, directly or through each other."""

    def __init__(
        self, positions: Row, sizes: Sequence[int], constraints: Sequence[IndexedConstraint]
    ) -> None:
        self.positions = _elimination_order(positions, sizes, constraints)
        self._sizes = sizes
        self._constraints = constraints
        self._width = len(sizes)
        self.pick = _picker(self.positions)
        bound_by = {position: depth for depth, position in enumerate(self.positions)}
        depth = len(self.positions)
        self._closing: list[list[IndexedConstraint]] = [[] for _ in range(depth)]
        for constraint in constraints:
            self._closing[max(bound_by[each] for each in constraint.positions)].append(constraint)
        self._conjuncts = [
            conjunct for constraint in constraints for conjunct in constraint.conjuncts
        ]
        self._conjuncts_of_axis = {
            position: [conjunct for conjunct in self._conjuncts if position in conjunct.positions]
            for position in positions
        }
        listed = [constraint for constraint in constraints if not constraint.conjuncts]
        # Bound positions at each depth on which later constraints still depend.
        self._frontier = [
            _picker(
                tuple(
                    position
                    for position in self.positions[:at]
                    if any(
                        position in constraint.positions
                        and any(bound_by[other] >= at for other in constraint.positions)
                        for constraint in listed
                    )
                )
            )
            for at in range(depth + 1)
        ]
        self._of_axis = {
            position: [constraint for constraint in constraints if position in constraint.positions]
            for position in positions
        }
        self._counts: list[dict[Hashable, int]] = [{} for _ in range(depth + 1)]
        self._counted = 0
        self._found: dict[Row, bool] = {}
        self._dead_ends: set[Hashable] = set()
        self._pick_listed = _picker(
            tuple(sorted({position for constraint in listed for position in constraint.positions}))
        )
        self._witnesses: dict[tuple[int, int], int] = {}
        self._solved = 0
        self._visited = 0

    def extensible(self, row: Sequence[int]) -> bool:
        """Whether values of the unbound axes exist that satisfy every constraint.

        Raises:
            Exception: `too_hard` of a constraint.
        """
        key = self.pick(row)
        known = self._found.get(key)
        if known is not None:
            return known
        if self._conjuncts and self._witnessed(row):
            return True
        bound = [UNBOUND] * self._width
        for position, value in zip(self.positions, key, strict=True):
            bound[position] = value
        self._visited = 0
        answer = (
            all(conjunct.possible(bound) for conjunct in self._conjuncts)
            and all(
                constraint.allows(bound)
                for constraint in self._constraints
                if all(bound[position] != UNBOUND for position in constraint.positions)
            )
            and self._search(bound)
        )
        self._remember(key, answer)
        return answer

    def _witnessed(self, row: Sequence[int]) -> bool:
        """Whether an earlier solution agrees with a row; solutions are bits of a mask."""
        agreeing = (1 << min(self._solved, _WITNESSES)) - 1
        for position in self.positions:
            if agreeing and row[position] != UNBOUND:
                agreeing &= self._witnesses.get((position, row[position]), 0)
        return bool(agreeing)

    def _witness(self, row: Sequence[int]) -> None:
        if self._solved < _WITNESSES:
            for position in self.positions:
                place = position, row[position]
                self._witnesses[place] = self._witnesses.get(place, 0) | 1 << self._solved
        self._solved += 1

    def _remember(self, key: Row, answer: bool) -> None:
        if UNBOUND not in key:
            return  # there may be millions of these, and the constraints answer as fast
        if len(self._found) >= _SEARCH_MEMO_LIMIT:
            self._found.clear()
        self._found[key] = answer

    def _search(self, row: list[int]) -> bool:
        """Whether a partial row, which violates no constraint yet, can be completed."""
        position = self._next_axis(row)
        if position is None:
            if self._conjuncts:
                self._witness(row)
            return True
        if self._conjuncts:
            if self._dead_ends and self._left(row) in self._dead_ends:
                return False
        elif (known := self._found.get(self.pick(row))) is not None:
            return known
        # Varied solutions answer more queries.
        start = self._solved % self._sizes[position] if self._conjuncts else 0
        answer = self._search_part(row, position, start)
        row[position] = UNBOUND
        if not self._conjuncts:
            self._remember(self.pick(row), answer)
        elif not answer:
            if len(self._dead_ends) >= _SEARCH_MEMO_LIMIT:
                self._dead_ends.clear()
            self._dead_ends.add(self._left(row))
        return answer

    def _search_part(self, row: list[int], position: int, start: int) -> bool:
        """`_search` over the values of an axis for which its entry in `row` stands.

        `start` is the index that is tried first. Ranges in which bounds prove that there is no
        solution are left out, so that an axis may have many values.
        """
        entry = row[position]
        part = part_of(entry, self._sizes[position])
        if len(part) <= _TRIED:
            first = start if start in part else part.start
            for index in (*range(first, part.stop), *range(part.start, first)):
                row[position] = index
                if self._passes(row, position) and self._search(row):
                    return True
            return False
        self._visit()
        halves = [2 * entry, 2 * entry - 1]
        if start >= (part.start + part.stop) // 2:
            halves.reverse()
        for half in halves:
            row[position] = half
            if self._may_hold(row, position) and self._search_part(row, position, start):
                return True
        return False

    def _visit(self) -> None:
        self._visited += bool(self._conjuncts)
        if self._visited > _SEARCHED:
            raise max(self._constraints, key=lambda each: each.size).too_hard()

    def _may_hold(self, row: Sequence[int], position: int) -> bool:
        return all(conjunct.possible(row) for conjunct in self._conjuncts_of_axis[position])

    def nearest(self, row: list[int], position: int, index: int) -> int | None:
        """The greatest index up to `index`, else the least, of a value that `extensible` allows."""
        for wanted, down in (
            (range(index + 1), True),
            (range(index + 1, self._sizes[position]), False),
        ):
            row[position] = UNBOUND
            found = self._nearest(row, position, wanted, down=down)
            if found is not None:
                return found
        return None

    def _nearest(self, row: list[int], position: int, wanted: range, *, down: bool) -> int | None:
        """The first index of `wanted` that is allowed, in the part for which `row` stands."""
        entry = row[position]
        part = part_of(entry, self._sizes[position])
        part = range(max(part.start, wanted.start), min(part.stop, wanted.stop))
        if len(part) <= _TRIED:
            for index in reversed(part) if down else part:
                row[position] = index
                if self.extensible(row):
                    return index
            return None
        halves = (2 * entry, 2 * entry - 1)
        for half in reversed(halves) if down else halves:
            row[position] = half
            if self._may_hold(row, position):
                found = self._nearest(row, position, wanted, down=down)
                if found is not None:
                    return found
        return None

    def _left(self, row: Sequence[int]) -> Hashable:
        """A key of the residual constraints: rows with equal keys have equal answers."""
        return (self._pick_listed(row), *(conjunct.rest(row) for conjunct in self._conjuncts))

    def _passes(self, row: Sequence[int], position: int) -> bool:
        self._visit()
        return self._may_hold(row, position) and all(
            constraint.allows(row)
            for constraint in self._of_axis[position]
            if all(row[each] != UNBOUND for each in constraint.positions)
        )

    def _next_axis(self, row: Sequence[int]) -> int | None:
        """The unbound axis of the constraint with the fewest unbound axes, to fail early."""
        best: tuple[int, int, int] | None = None
        for constraint in self._constraints:
            for scope in constraint.scopes:
                left = [position for position in scope if row[position] == UNBOUND]
                if left:
                    position = min(left, key=lambda each: (self._sizes[each], each))
                    rank = (len(left), self._sizes[position], position)
                    best = rank if best is None else min(best, rank)
        return None if best is None else best[2]

    def count(self) -> int:
        """The number of assignments of the group's axes.

        Raises:
            TooManyError: there are too many distinct partial assignments.
        """
        return self._count(0, [UNBOUND] * self._width)

    def _count(self, depth: int, row: list[int]) -> int:
        if depth == len(self.positions):
            return 1
        frontier = self._frontier[depth](row)
        rests = [conjunct.rest(row) for conjunct in self._conjuncts]
        if False in rests:
            return 0
        key: Hashable = (frontier, *(rest for rest in rests if rest is not True))
        # Memoize only where two prefixes can share a key, or memory grows as the product.
        shared = bool(self._conjuncts) or len(frontier) < depth or depth == 0
        if shared and key in self._counts[depth]:
            return self._counts[depth][key]
        if self._conjuncts:
            self._counted += 1
            if self._counted > _COUNTED:
                raise TooManyError
        position = self.positions[depth]
        total = 0
        for value in range(self._sizes[position]):
            row[position] = value
            if all(constraint.allows(row) for constraint in self._closing[depth]):
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
                if not all(constraint.allows(row) for constraint in self._closing[depth]):
                    continue
                ways = self._count(depth + 1, row)
                if index < ways:
                    break
                index -= ways
            else:
                raise IndexError(index)


def _picker(positions: Row) -> Callable[[Sequence[int]], Row]:
    """An `itemgetter` that returns a tuple for any number of positions."""
    match positions:
        case ():
            return lambda _: ()
        case (only,):
            return lambda row: (row[only],)
        case _:
            return itemgetter(*positions)


def connected(constraints: Sequence[IndexedConstraint]) -> list[Row]:
    """The connected components of the positions that constraints name."""
    groups: list[set[int]] = []
    for constraint in constraints:
        merged = set(constraint.positions)
        apart = []
        for group in groups:
            if group & merged:
                merged |= group
            else:
                apart.append(group)
        groups = [*apart, merged]
    return sorted(tuple(sorted(group)) for group in groups)


def _elimination_order(
    positions: Row, sizes: Sequence[int], constraints: Sequence[IndexedConstraint]
) -> Row:
    """A greedy elimination order: few bound axes on which later constraints depend.

    Counting memoizes a number for each combination of these, so the order affects memory alone.
    """
    order: list[int] = []
    left = list(positions)
    while left:

        def in_view(candidate: int) -> tuple[int, int]:
            bound = {*order, candidate}
            view = {
                at
                for constraint in constraints
                for scope in constraint.scopes
                if not bound.issuperset(scope)
                for at in scope
                if at in bound
            }
            return prod(sizes[at] for at in view), candidate

        best = min(left, key=in_view)
        order.append(best)
        left.remove(best)
    return tuple(order)
