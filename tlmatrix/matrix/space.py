"""The set of rows that axes and constraints allow, searched and counted without listing it.

A product may have millions of rows. Constraints name few axes each, so the axes fall into
independent groups, and each group is searched alone. A row has one value index per axis.
"""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from tlmatrix.matrix.constraints import (
    UNBOUND,
    Condition,
    Constraint,
    Group,
    Row,
    TooManyError,
    condition_of,
    connected,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from random import Random

    from tlmatrix.spec.values import Value


class Space:
    """All rows over `axes` that pass every constraint.

    Rows index into the values of `axes`, in the order of the mapping. Constraints with up to
    65,536 combinations of their axes are evaluated at once, so that their errors are raised early.
    """

    def __init__(
        self, axes: Mapping[str, Sequence[Value]], constraints: Sequence[Constraint] = ()
    ) -> None:
        self.axes = {name: tuple(values) for name, values in axes.items()}
        self.names = tuple(self.axes)
        self.sizes = tuple(len(values) for values in self.axes.values())
        self.constraints = tuple(constraints)
        position_of = {name: position for position, name in enumerate(self.names)}
        self._indexed = [condition_of(each, self.axes, position_of) for each in self.constraints]
        self._constant = all(each.holds(()) for each in self._indexed if not each.positions)
        bound = [constraint for constraint in self._indexed if constraint.positions]
        self._groups = [
            Group(
                positions,
                self.sizes,
                [constraint for constraint in bound if constraint.positions[0] in positions],
            )
            for positions in connected(bound)
        ]
        self._group_of = {at: group for group in self._groups for at in group.positions}
        self._free = [at for at in range(len(self.names)) if at not in self._group_of]

    @property
    def has_large_constraints(self) -> bool:
        """Whether a constraint is too large to evaluate all of its combinations."""
        return any(each.is_large for each in self._indexed)

    @property
    def products(self) -> int:
        """The number of rows without constraints."""
        return prod(self.sizes)

    @cached_property
    def count(self) -> int | None:
        """The exact number of rows, without listing them; None if it takes more than seconds."""
        if not self._constant:
            return 0
        free = prod(self.sizes[at] for at in self._free)
        try:
            return free and free * prod(group.count() for group in self._groups)
        except TooManyError:
            return None

    def removed(self) -> tuple[int | None, ...]:
        """For each constraint alone, the number of rows of the product that violate it.

        None: too many to count in a few seconds.
        """
        return tuple(map(self._removed_by, self._indexed))

    def _removed_by(self, constraint: Condition) -> int | None:
        rest = prod(size for at, size in enumerate(self.sizes) if at not in constraint.positions)
        try:
            return constraint.removed(self.sizes) * rest
        except TooManyError:
            return None

    def allows(self, row: Sequence[int]) -> bool:
        """Whether a full row passes every constraint."""
        return all(constraint.possible(row) for constraint in self._indexed)

    def failing(self, row: Sequence[int]) -> tuple[int, ...]:
        """Indices of the constraints that a full row violates."""
        return tuple(
            at for at, constraint in enumerate(self._indexed) if not constraint.possible(row)
        )

    def extensible(self, row: Sequence[int]) -> bool:
        """Whether a partial row can be completed to a full one, decided by backtracking.

        The answer is exact: False proves that no row has these values.
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

    def nearest(self, row: list[int], position: int, index: int) -> int:
        """The greatest index up to `index`, else the least, with which `row` can be completed.

        `row` was extensible before `position` was bound.
        """
        group = self._group_of.get(position)
        found = index if group is None else group.nearest(row, position, index)
        assert found is not None, f"{self.names[position]}: no value completes {row}"
        return found

    def __iter__(self) -> Iterator[Row]:
        """All rows, the last axis fastest, in constant memory and without dead ends."""
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
        """The row with an index, in another order than iteration: for sampling."""
        if self.count is None or not 0 <= index < self.count:
            raise IndexError(index)
        row = [UNBOUND] * len(self.names)
        for at in self._free:
            index, row[at] = divmod(index, self.sizes[at])
        for group in self._groups:
            index, place = divmod(index, group.count())
            group.fill(row, place)
        return tuple(row)

    def spread(self, pick: Random) -> Iterator[Row]:
        """An endless stream of random rows, drawn axis by axis, so not uniform."""
        while self.extensible(row := [UNBOUND] * len(self.names)):
            for at in pick.sample(range(len(row)), len(row)):
                for value in pick.sample(range(self.sizes[at]), self.sizes[at]):
                    row[at] = value
                    if self.extensible_at(row, at):
                        break
            yield tuple(row)

    def values(self, row: Sequence[int]) -> dict[str, Value]:
        """The values of a row, by axis."""
        return {
            name: values[index]
            for (name, values), index in zip(self.axes.items(), row, strict=True)
        }
