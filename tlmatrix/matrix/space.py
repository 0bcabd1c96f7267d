"""The set of cases that axes and rules allow, searched and counted without listing it.

A spec's product may hold millions of cases, and most questions about it (how many are there, which
come first, does any case hold this pair) have answers that do not depend on walking it: rules
name few axes, so axes fall into groups that no rule connects, and each group is small. This
module works on positions (a row is one value index per axis), knows nothing of specs, and is
what every strategy and the proof of coverage stand on.
"""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from tlmatrix.matrix.rules import (
    UNBOUND,
    Constraint,
    Group,
    Row,
    Rule,
    TooManyError,
    connected,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from random import Random

    from tlmatrix.spec.values import Value

__all__ = ["Space"]


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
            Rule(
                each,
                tuple(place[name] for name in each.names),
                [self.axes[name] for name in each.names],
            )
            for each in self.constraints
        ]
        self._constant = all(rule.allows(()) for rule in self._rules if not rule.positions)
        rules = [rule for rule in self._rules if rule.positions]
        self._groups = [
            Group(positions, self.sizes, [rule for rule in rules if rule.positions[0] in positions])
            for positions in connected(rules)
        ]
        self._group_of = {at: group for group in self._groups for at in group.positions}
        self._free = [at for at in range(len(self.names)) if at not in self._group_of]

    @property
    def solves(self) -> bool:
        """Whether a rule is too large to be enumerated, and so is solved."""
        return any(rule.parts for rule in self._rules)

    @property
    def products(self) -> int:
        """How many rows there would be without constraints."""
        return prod(self.sizes)

    @cached_property
    def most(self) -> int:
        """`count`, or `products` where large rules leave too many rows to count."""
        try:
            return self.count
        except TooManyError:
            return self.products

    @cached_property
    def counts(self) -> bool:
        """Whether `count` can be found."""
        try:
            return self.count >= 0
        except TooManyError:
            return False

    @cached_property
    def count(self) -> int:
        """How many rows pass every constraint; exact, and found without walking them.

        Raises TooManyError where large rules leave too many to count in a few seconds.
        """
        if not self._constant:
            return 0
        free = prod(self.sizes[at] for at in self._free)
        return free and free * prod(group.count() for group in self._groups)

    def removed(self) -> tuple[int | None, ...]:
        """For each constraint alone, how many rows of the whole product fail it.

        The counts are independent of one another: a row that two constraints fail is in both, so
        their sum may exceed `products - count`. None: too many to count in a few seconds.
        """
        return tuple(map(self._removed_by, self._rules))

    def _removed_by(self, rule: Rule) -> int | None:
        rest = prod(size for at, size in enumerate(self.sizes) if at not in rule.positions)
        try:
            return rule.removed() * rest
        except TooManyError:
            return None

    def enumerated(self, number: int) -> bool:
        """Whether a constraint is asked about each combination, and not solved."""
        return not self._rules[number].parts

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

    def spread(self, pick: Random) -> Iterator[Row]:
        """Allowed rows without end, drawn axis by axis, so not uniform; none if there is none."""
        while self.extensible(row := [UNBOUND] * len(self.names)):
            for at in pick.sample(range(len(row)), len(row)):
                for value in pick.sample(range(self.sizes[at]), self.sizes[at]):
                    row[at] = value
                    if self.extensible_at(row, at):
                        break
            yield tuple(row)

    def values(self, row: Sequence[int]) -> dict[str, Value]:
        """The values that a row stands for, by axis."""
        return {
            name: values[index]
            for (name, values), index in zip(self.axes.items(), row, strict=True)
        }
