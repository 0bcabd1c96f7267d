"""Constraints over positions of axes, and the groups of axes that constraints connect.

A constraint is evaluated at most once for each combination of its axes; a large one is split into
its conjuncts, each over fewer axes. Groups are independent, so each is searched and counted alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import inf, prod
from operator import getitem, itemgetter, mul
from typing import TYPE_CHECKING

from tlmatrix.matrix.bounds import bounds_of, may_hold, part_of
from tlmatrix.spec.expr.evaluation import Failed, evaluator

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    from tlmatrix.matrix.bounds import Bounds
    from tlmatrix.spec.expr.evaluation import Node
    from tlmatrix.spec.values import Value

Row = tuple[int, ...]
UNBOUND = -1
"""In a partial row, an axis without a value."""

_TABLE_LIMIT = 1 << 16  # combinations of one constraint evaluated up front, to show errors at once
_MEMO_LIMIT = 1 << 24  # combinations of one condition remembered, a byte each
_FOUND_LIMIT = 1 << 18  # partial rows of one group whose answers are remembered
_WITNESSES = 1 << 12  # solutions remembered by the search of one group
_COUNTED = 1 << 22  # values that counting tries, in about 3 s, before it gives up
_SEARCHED = 1 << 20  # partial rows that one search visits, in about 20 s, before it gives up
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
        tree: the expression of the predicate, if it is one; then it may have many combinations.
        too_hard: the exception to raise if no solution is found in reasonable time.
    """

    names: tuple[str, ...]
    allows: Callable[[Mapping[str, Value]], bool]
    tree: Node | None = None
    too_hard: Callable[[], Exception] = TooManyError


class Condition:
    """A constraint, or a conjunct of one, over positions of a row.

    It is evaluated at most once for each combination of its axes.

    Attributes:
        positions: those of its axes.
        size: the number of combinations of their values.
        is_large: whether these are too many to evaluate all of them at once.
        parts: the conjuncts of a large constraint; else itself.
        too_hard: see `Constraint`.
    """

    def __init__(
        self,
        axes: Mapping[str, Sequence[Value]],
        position_of: Mapping[str, int],
        allows: Callable[[Mapping[str, Value]], bool],
        too_hard: Callable[[], Exception] = TooManyError,
    ) -> None:
        """A predicate over the values of `axes`; `position_of` gives their positions."""
        self.positions = tuple(position_of[name] for name in axes)
        self.too_hard = too_hard
        self.parts: tuple[Condition, ...] = (self,)
        self.bounds: Callable[[Sequence[int]], Bounds] | None = None
        self._names = tuple(axes)
        self._domains = tuple(axes.values())
        self._allows = allows
        sizes = [len(domain) for domain in self._domains]
        self._strides = tuple(prod(sizes[at + 1 :]) for at in range(len(sizes)))
        self.size = prod(sizes)
        self.is_large = self.size > _TABLE_LIMIT
        self._pick = picker(self.positions)
        self._memo = bytearray(self.size if self.size <= _MEMO_LIMIT else 0)

    def combinations(self) -> Iterator[Row]:
        """All combinations of indices of values of the axes."""
        return product(*(range(len(domain)) for domain in self._domains))

    def holds(self, key: Row) -> bool:
        """Whether the condition holds for a combination."""
        if not self._memo:
            return self._evaluate(key)
        at: int = sum(map(mul, key, self._strides))
        if not self._memo[at]:
            self._memo[at] = _PASSES if self._evaluate(key) else _FAILS
        return self._memo[at] == _PASSES

    def possible(self, row: Sequence[int]) -> bool:
        """Whether the condition may hold for a completion of a partial row; False is a proof."""
        key = self._pick(row)
        if not key or min(key) >= 0:
            return self.holds(key)
        return self.bounds is None or may_hold(self.bounds(row))

    def removed(self, sizes: Sequence[int]) -> int:
        """The number of combinations of the axes that violate it.

        Raises:
            TooManyError: they are too many to count.
        """
        if self.parts[0] is not self:
            return self.size - Group(self.positions, sizes, [self]).count()
        if self.size > _COUNTED:
            raise TooManyError
        return sum(not self.holds(key) for key in self.combinations())

    def _evaluate(self, key: Row) -> bool:
        values = map(getitem, self._domains, key)
        return self._allows(dict(zip(self._names, values, strict=True)))


def condition_of(
    constraint: Constraint, axes: Mapping[str, Sequence[Value]], position_of: Mapping[str, int]
) -> Condition:
    """A constraint over `axes`, of which each has a position; a small one is evaluated at once."""
    mine = {name: axes[name] for name in constraint.names}
    found = Condition(mine, position_of, constraint.allows, constraint.too_hard)
    if not found.is_large:
        for key in found.combinations():
            found.holds(key)
    elif constraint.tree is not None:
        parts = _conjuncts(constraint.tree)
        if len(parts) == 1:
            found.bounds = bounds_of(constraint.tree, position_of, mine)
        else:
            found.parts = tuple(_conjunct(part, mine, position_of) for part in parts)
    return found


def _conjuncts(node: Node) -> list[Node]:
    if node.kind != "and":
        return [node]
    return [each for part in node.parts for each in _conjuncts(part)]


def _conjunct(
    node: Node, axes: Mapping[str, Sequence[Value]], position_of: Mapping[str, int]
) -> Condition:
    """The condition of a conjunct.

    Where it has no value, such as `window < 3` of no window, an earlier conjunct excludes the row,
    or the whole constraint has no value, and raises.
    """
    evaluate = evaluator(node)

    def allows(values: Mapping[str, Value]) -> bool:
        try:
            return bool(evaluate(values))
        except Failed:
            return True

    mine = {name: axes[name] for name in sorted(set(node.names()))}
    found = Condition(mine, position_of, allows)
    found.bounds = bounds_of(node, position_of, axes)
    return found


class Group:
    """Axes that constraints connect, directly or through each other."""

    def __init__(
        self, positions: Row, sizes: Sequence[int], constraints: Sequence[Condition]
    ) -> None:
        self._conditions = [each for constraint in constraints for each in constraint.parts]
        self.positions = _elimination_order(positions, sizes, self._conditions)
        self._sizes = sizes
        self._constraints = constraints
        self._pick = picker(self.positions)
        self._of_axis = {
            position: [each for each in self._conditions if position in each.positions]
            for position in positions
        }
        bound_by = {position: depth for depth, position in enumerate(self.positions)}
        last = {
            each: max((bound_by[at] for at in each.positions), default=-1)
            for each in self._conditions
        }
        # Conditions whose last axis is bound at each depth; at -1 those without axes.
        self._closing = {
            depth: [each for each in self._conditions if last[each] == depth]
            for depth in range(-1, len(self.positions))
        }
        # Bound positions at each depth on which later conditions still depend.
        self._frontier = [
            picker(
                tuple(
                    position
                    for position in self.positions[:at]
                    if any(last[each] >= at for each in self._of_axis[position])
                )
            )
            for at in range(len(self.positions) + 1)
        ]
        self._counts: list[dict[Hashable, int]] = [{} for _ in self._frontier]
        self._found: dict[Row, bool] = {}
        self._witnesses: dict[tuple[int, int], int] = {}
        self._solved = 0
        self._steps = 0
        self._budget: float = _COUNTED

    def extensible(self, row: Sequence[int]) -> bool:
        """Whether values of the unbound axes exist that satisfy every constraint.

        Raises:
            Exception: `too_hard` of a constraint.
        """
        key = self._pick(row)
        known = self._found.get(key)
        if known is not None:
            return known
        if self._witnessed(row):
            return True
        bound = [UNBOUND] * len(self._sizes)
        for position, value in zip(self.positions, key, strict=True):
            bound[position] = value
        self._steps = 0
        answer = all(each.possible(bound) for each in self._conditions) and self._search(bound)
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
        if len(self._found) >= _FOUND_LIMIT:
            self._found.clear()
        self._found[key] = answer

    def _search(self, row: list[int]) -> bool:
        """Whether a partial row, which violates no condition yet, can be completed."""
        position = self._next_axis(row)
        if position is None:
            # A constraint without a value raises, which its conjuncts do not.
            if not all(each.possible(row) for each in self._constraints):
                return False
            self._witness(row)
            return True
        key = self._pick(row)
        known = self._found.get(key)
        if known is not None:
            return known
        # Varied solutions answer more queries.
        answer = self._search_part(row, position, self._solved % self._sizes[position])
        row[position] = UNBOUND
        self._remember(key, answer)
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
                self._step()
                if self._possible(row, position) and self._search(row):
                    return True
            return False
        self._step()
        halves = [2 * entry, 2 * entry - 1]
        if start >= (part.start + part.stop) // 2:
            halves.reverse()
        for half in halves:
            row[position] = half
            if self._possible(row, position) and self._search_part(row, position, start):
                return True
        return False

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _SEARCHED:
            raise max(self._constraints, key=lambda each: each.size).too_hard()

    def _possible(self, row: Sequence[int], position: int) -> bool:
        return all(each.possible(row) for each in self._of_axis[position])

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
            if self._possible(row, position):
                found = self._nearest(row, position, wanted, down=down)
                if found is not None:
                    return found
        return None

    def _next_axis(self, row: Sequence[int]) -> int | None:
        """The unbound axis of the condition with the fewest unbound axes, to fail early."""
        best: tuple[int, int, int] | None = None
        for condition in self._conditions:
            left = [position for position in condition.positions if row[position] == UNBOUND]
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
        if any(each.size > _COUNTED for each in self._conditions):
            raise TooManyError
        if not all(each.holds(()) for each in self._closing[-1]):
            return 0
        self._budget = _COUNTED
        return self._count(0, [UNBOUND] * len(self._sizes))

    def _count(self, depth: int, row: list[int]) -> int:
        if depth == len(self.positions):
            return 1
        key = self._frontier[depth](row)
        # Memoize only where two prefixes can share a key, or memory grows as the product.
        shared = len(key) < depth or depth == 0
        if shared and key in self._counts[depth]:
            return self._counts[depth][key]
        position = self.positions[depth]
        self._budget -= self._sizes[position]
        if self._budget < 0:
            raise TooManyError
        total = 0
        for value in range(self._sizes[position]):
            row[position] = value
            if all(each.possible(row) for each in self._closing[depth]):
                total += self._count(depth + 1, row)
        row[position] = UNBOUND
        if shared:
            self._counts[depth][key] = total
        return total

    def fill(self, row: list[int], index: int) -> None:
        """Bind the group's axes to its `index`-th assignment, `0 <= index < count()`."""
        self._budget = inf  # `count` had enough
        for depth, position in enumerate(self.positions):
            for value in range(self._sizes[position]):
                row[position] = value
                if not all(each.possible(row) for each in self._closing[depth]):
                    continue
                ways = self._count(depth + 1, row)
                if index < ways:
                    break
                index -= ways
            else:
                raise IndexError(index)


def picker(positions: Row) -> Callable[[Sequence[int]], Row]:
    """An `itemgetter` that returns a tuple for any number of positions."""
    match positions:
        case ():
            return lambda _: ()
        case (only,):
            return lambda row: (row[only],)
        case _:
            return itemgetter(*positions)


def connected(constraints: Sequence[Condition]) -> list[Row]:
    """The connected components of the positions that constraints name."""
    groups: list[set[int]] = []
    for constraint in constraints:
        touching = [group for group in groups if group & {*constraint.positions}]
        apart = [group for group in groups if group not in touching]
        groups = [*apart, set(constraint.positions).union(*touching)]
    return sorted(tuple(sorted(group)) for group in groups)


def _elimination_order(
    positions: Row, sizes: Sequence[int], conditions: Sequence[Condition]
) -> Row:
    """A greedy elimination order: few bound axes on which later conditions depend.

    Counting memoizes a number for each combination of these, so the order affects memory alone.
    """
    order: list[int] = []
    left = list(positions)
    while left:

        def in_view(candidate: int) -> tuple[int, int]:
            bound = {*order, candidate}
            open_ = [each.positions for each in conditions if not bound.issuperset(each.positions)]
            view = {at for scope in open_ for at in scope if at in bound}
            return prod(sizes[at] for at in view), candidate

        best = min(left, key=in_view)
        order.append(best)
        left.remove(best)
    return tuple(order)
