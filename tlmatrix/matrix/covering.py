"""Covering arrays: rows with every feasible tuple of `strength` values (pairwise, t-wise).

A kernel takes seconds to compile and a case takes milliseconds to run, so the rows of a tier use
few distinct kernels. *Compile axes* are those that the compile key depends on; values with which
the key is equal form a *class*. First a covering array over the classes of the compile axes alone
gives the configurations, as many as their tuples need. Then every other tuple is placed on a row
of one of these configurations. Without compile axes there is one configuration, and the rows are
those of a plain greedy algorithm.

The rows depend on axes, values, constraints, classes and the seed alone. Each tuple is in a row, or
an exhaustive search shows that no row of the space has it (`uncovered`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, islice, product
from math import comb, prod
from typing import TYPE_CHECKING

from tlmatrix.matrix.constraints import UNBOUND, Row
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from tlmatrix.matrix.space import Space
    from tlmatrix.spec.values import Value

Tuple = tuple[Row, Row]
"""Positions of axes in the space, and a value index for each of them."""

FORMAT = 4
"""Increment when this module makes other rows, which caches keep."""
_LONGER = 1.15
"""The most rows with few kernels, relative to the rows of an array without regard to kernels."""
_PATIENCE = (0.0, 0.0, 0.1, 0.2, 0.3, 0.45, 0.6, 0.7, 0.8, 0.9)
"""Values of `patience` that are tried, in order; see `_Greedy.rows`."""
_PATIENCE_LARGE = (0.4, 0.8)
_LARGE = 8_000
"""Tuples from which fewer arrays are tried, because each takes seconds."""
_LIBRARY_LIMIT = 20_000  # tuples; covertable took 3 s for 12,000 of them and 23 s for 97,000
_BASES = 24
"""Rows in which each value of an axis is tried, to see which values change the compile key."""
_ATTEMPTS = 4
"""Arrays of configurations that are made, of which the smallest is used."""
_CANDIDATES = 16
"""Candidates of a configuration, of which the one that adds the most tuples is used."""
_WORK = 20_000
"""Tuples looked up to choose the configuration of a row: fewer candidates for higher strengths."""


def covering_rows(
    space: Space, strength: int, seed: int = 0, classes: CompileClasses | None = None
) -> tuple[Row, ...]:
    """A covering array of `space`: every tuple of `strength` values that a row of it can have.

    Another `seed` gives another covering array. With `classes` its rows use few distinct kernels
    and are at most 15 % more than without. With at most `strength` axes, it is every row.

    Raises:
        ValueError: `strength` is less than 1.
    """
    if strength < 1:
        raise ValueError(f"strength is {strength}, must be at least 1")
    if strength >= len(space.sizes):
        return tuple(space)
    # The library asks its oracle 100 times as often as `_Greedy`: too slow for large constraints.
    small = tuples(space, strength) <= _LIBRARY_LIMIT and not space.has_large_constraints
    rows = _library_rows(space, strength, seed) if small else ()
    left = uncovered(space, rows, strength)
    plain = _Greedy(space, strength, CompileClasses((), (), lambda _row: None))
    rows = reduce_rows((*rows, *plain.rows(left, seed=seed)), strength)
    return rows if classes is None else _fewer_kernels(space, strength, seed, classes, rows)


def _fewer_kernels(
    space: Space, strength: int, seed: int, classes: CompileClasses, rows: tuple[Row, ...]
) -> tuple[Row, ...]:
    """The first array that shares kernels and is short enough; `rows` if there is none."""
    missing = uncovered(space, (), strength)
    greedy = _Greedy(space, strength, classes)
    tries = _PATIENCE if len(missing) <= _LARGE else _PATIENCE_LARGE
    for number, patience in enumerate(tries):
        shared = greedy.rows(missing, patience=patience, seed=seed * len(_PATIENCE) + number)
        found = reduce_rows(shared, strength)
        if len(found) <= _LONGER * len(rows):
            return min(found, rows, key=lambda each: (classes.kernels(each), len(each)))
    return rows


def _library_rows(space: Space, strength: int, seed: int = 0) -> tuple[Row, ...]:
    """The rows that covertable makes, without any that violate a constraint."""
    from covertable import make, sorters

    if not space.extensible([UNBOUND] * len(space.sizes)):
        return ()

    def possible(bound: Mapping[int, int]) -> bool | None:
        row = [UNBOUND] * len(space.sizes)
        for at, index in bound.items():
            row[at] = index
        if not space.extensible(row):
            return False
        return True if UNBOUND not in row else None  # None: undecided

    rows = make(
        [list(range(size)) for size in space.sizes],
        strength=strength,
        sorter=sorters.hash,
        salt=str(seed) if seed else "",
        # With an empty `requires`, covertable evaluates it for partial rows, too.
        constraints=[{"operator": "fn", "requires": [], "evaluate": possible}],
    )
    return tuple(row for row in map(tuple, rows) if space.allows(row))


class _Greedy:
    """Makes rows of few distinct kernels, one after another, that add many uncovered tuples."""

    def __init__(self, space: Space, strength: int, classes: CompileClasses) -> None:
        self._space = space
        self._strength = strength
        self._classes = classes
        self._place_of = {at: place for place, at in enumerate(classes.positions)}
        # The values of each class, of each compile axis.
        self._members = [
            [
                [index for index, of in enumerate(each) if of == kind]
                for kind in range(max(each) + 1)
            ]
            for each in classes.classes
        ]
        self._possible_classes: dict[Row, bool] = {}

    def rows(
        self, missing: Sequence[Tuple], *, patience: float = 0.0, seed: int = 0
    ) -> tuple[Row, ...]:
        """Rows with all `missing` tuples, which must be feasible.

        A row opens another configuration if it needs to, or if the best row of the configurations
        so far adds fewer tuples than the fraction `patience` of those that a free choice adds. So a
        larger `patience` gives fewer rows with more kernels.
        """
        pick = random.Random(seed)  # noqa: S311 - reproducible, not secret
        configurations = min((self._configurations(pick) for _ in range(_ATTEMPTS)), key=len)
        uncovered = _Uncovered(missing)
        rows: list[Row] = []
        # Tuples of the axes with the most values need the most rows; the others fit into them.
        sizes = self._space.sizes
        order = sorted(missing, key=lambda each: -prod(sizes[at] for at in each[0]))
        most = max(4, _WORK // comb(len(sizes), self._strength))
        used = [0] * len(configurations)
        for axes, values in order:
            if not uncovered.has(axes, values):
                continue
            bound = dict(zip(axes, values, strict=True))
            fitting = [
                number
                for number, chosen in enumerate(configurations)
                if all(self._fits(at, index, chosen) for at, index in bound.items())
            ]
            fitting.sort(key=lambda number: (used[number], pick.random()))
            best: tuple[int, Row, int] | None = None
            for number in fitting[:most]:
                row = self._filled(uncovered, bound, configurations[number], pick)
                if row is None:
                    continue
                gain = uncovered.count(row, self._strength)
                if best is None or gain > best[0]:
                    best = gain, row, number
            other = None
            if best is None or patience:
                other = self._filled(uncovered, bound, None, pick)
            if other is not None and (
                best is None or best[0] < patience * uncovered.count(other, self._strength)
            ):
                # The constraints join the tuple with none of the configurations, or rows of them
                # have few uncovered tuples left.
                row = other
                kinds = zip(self._classes.positions, self._classes.classes, strict=True)
                configurations.append(tuple(of[row[at]] for at, of in kinds))
                used.append(1)
            else:
                assert best is not None
                _, row, number = best
                used[number] += 1
            rows.append(row)
            uncovered.discard_all(row, self._strength)
        return tuple(rows)

    def _fits(self, at: int, index: int, configuration: Row) -> bool:
        place = self._place_of.get(at)
        return place is None or self._classes.classes[place][index] == configuration[place]

    def _filled(
        self,
        uncovered: _Uncovered,
        bound: Mapping[int, int],
        configuration: Row | None,
        pick: random.Random,
    ) -> Row | None:
        """A row with the values `bound` and a configuration; None if the constraints exclude it.

        Each axis takes the value that adds the most uncovered tuples. Of a configuration of None,
        any value of the compile axes is allowed.
        """
        space = self._space
        allowed: dict[int, list[int]] = {}
        if configuration is not None:
            allowed = {
                at: self._members[place][configuration[place]]
                for at, place in self._place_of.items()
            }
        row = [UNBOUND] * len(space.sizes)
        for at, index in bound.items():
            row[at] = index
        for at, indices in allowed.items():
            if len(indices) == 1:
                row[at] = indices[0]
        if not space.extensible(row):
            return None
        rest = [at for at in range(len(space.sizes)) if row[at] == UNBOUND]
        pick.shuffle(rest)
        if pick.random() < 0.5:
            rest.sort(key=lambda at: (at not in allowed, -space.sizes[at]))
        for at in rest:
            size = space.sizes[at]
            gains = uncovered.gains(row, at, self._strength, size)
            for index in _best_first(allowed.get(at, range(size)), gains, pick):
                row[at] = index
                if space.extensible(row):
                    break
            else:
                return None
        return tuple(row)

    # Configurations.

    def _configurations(self, pick: random.Random) -> list[Row]:
        """A covering array over the classes of the compile axes: a class for each of them."""
        if not self._members:
            return [()]
        sizes = [len(each) for each in self._members]
        strength = min(self._strength, len(sizes))
        missing = list(self._missing_classes)
        uncovered = _Uncovered(missing)
        for given in self._classes.given:
            uncovered.discard_all(given, strength)
        pick.shuffle(missing)
        missing.sort(key=lambda each: -prod(sizes[place] for place in each[0]))
        found = list(self._classes.given)
        for places, kinds in missing:
            if not uncovered.has(places, kinds):
                continue
            best: tuple[int, Row] | None = None
            for _ in range(_CANDIDATES):
                chosen = self._chosen(places, kinds)
                rest = [place for place in range(len(sizes)) if place not in places]
                pick.shuffle(rest)
                for place in rest:
                    gains = uncovered.gains(chosen, place, strength, sizes[place])
                    for kind in _best_first(range(sizes[place]), gains, pick):
                        chosen[place] = kind
                        if self._possible(chosen):
                            break
                gain = uncovered.count(chosen, strength)
                if best is None or gain > best[0]:
                    best = gain, tuple(chosen)
            assert best is not None
            found.append(best[1])
            uncovered.discard_all(best[1], strength)
        return found

    @cached_property
    def _missing_classes(self) -> list[Tuple]:
        """The feasible tuples of classes."""
        width = len(self._members)
        return [
            (places, kinds)
            for places in combinations(range(width), min(self._strength, width))
            for kinds in product(*(range(len(self._members[place])) for place in places))
            if self._possible(self._chosen(places, kinds))
        ]

    def _chosen(self, places: Row, kinds: Row) -> list[int]:
        chosen = [UNBOUND] * len(self._members)
        for place, kind in zip(places, kinds, strict=True):
            chosen[place] = kind
        return chosen

    def _possible(self, chosen: Sequence[int]) -> bool:
        """Whether some row of the space has these classes, of which UNBOUND is any."""
        key = tuple(chosen)
        if key not in self._possible_classes:
            self._possible_classes[key] = any(map(self._space.extensible, self._rows_of(key)))
        return self._possible_classes[key]

    def _rows_of(self, chosen: Row) -> Iterator[list[int]]:
        """Partial rows with each combination of the values of these classes."""
        bound = [place for place, kind in enumerate(chosen) if kind != UNBOUND]
        for indices in product(*(self._members[place][chosen[place]] for place in bound)):
            row = [UNBOUND] * len(self._space.sizes)
            for place, index in zip(bound, indices, strict=True):
                row[self._classes.positions[place]] = index
            yield row


def _best_first(values: Sequence[int], gains: Sequence[int], pick: random.Random) -> list[int]:
    """Values by the tuples that they add, most first; equal ones in random order."""
    return sorted(values, key=lambda value: (-gains[value], pick.random()))


def reduce_rows(rows: Sequence[Row], strength: int) -> tuple[Row, ...]:
    """Remove rows whose tuples are all in other rows, in order from the last.

    The last rows of a greedy algorithm cover the fewest tuples.
    """
    if not rows:
        return ()
    combos = list(combinations(range(len(rows[0])), strength))
    held: dict[tuple[int, Row], int] = {}
    keys = [
        [(number, tuple([row[at] for at in axes])) for number, axes in enumerate(combos)]
        for row in rows
    ]
    for mine in keys:
        for key in mine:
            held[key] = held.get(key, 0) + 1
    kept = [True] * len(rows)
    for at in reversed(range(len(rows))):
        if all(held[key] > 1 for key in keys[at]):
            kept[at] = False
            for key in keys[at]:
                held[key] -= 1
    return tuple(row for row, keep in zip(rows, kept, strict=True) if keep)


# Compile classes -----------------------------------------------------------------------------


@dataclass(frozen=True)
class CompileClasses:
    """The classes of values that share compiled kernels.

    Attributes:
        positions: the positions of the compile axes in a row.
        classes: for each of them the class of each value, numbered from 0.
        key: the compile key of a full row.
        given: configurations that other cases of the spec have anyway, a class for each axis.
    """

    positions: Row
    classes: tuple[Row, ...]
    key: Callable[[Sequence[int]], Hashable]
    given: tuple[Row, ...] = ()

    def kernels(self, rows: Iterable[Sequence[int]]) -> int:
        """The number of distinct compile keys of rows."""
        return len({self.key(row) for row in rows})


def compile_classes(
    space: Space,
    key: Callable[[Mapping[str, Value]], Hashable],
    listed: Sequence[Mapping[str, Value]] = (),
) -> CompileClasses | None:
    """The compile axes of a space; None if there are none, or if every axis is one.

    `key` gives the compile key of axis values, `listed` has those of cases that run in any tier.
    Two values are of one class if the key is equal in some rows of the space with either of them; a
    value that matters only in rare rows may be missed, which costs kernels and no coverage.
    """
    pick = random.Random(0)  # noqa: S311 - reproducible, not secret
    bases = list(islice(space.spread(pick), _BASES))
    found: dict[int, Row] = {}
    for at, size in enumerate(space.sizes):
        keys: dict[Hashable, int] = {}
        classes = []
        for index in range(size):
            mine = tuple(key(space.values([*base[:at], index, *base[at + 1 :]])) for base in bases)
            classes.append(keys.setdefault(mine, len(keys)))
        if len(keys) > 1:
            found[at] = tuple(classes)
    if not found or all(
        at in found and len(set(found[at])) == size for at, size in enumerate(space.sizes)
    ):
        return None
    places = {
        at: {canonical(value): index for index, value in enumerate(space.axes[space.names[at]])}
        for at in found
    }
    given: dict[Row, None] = {}
    for values in listed:
        indices = [places[at].get(canonical(values[space.names[at]])) for at in found]
        if None not in indices:
            row = zip(found.values(), indices, strict=True)
            given[tuple(classes[index] for classes, index in row if index is not None)] = None
    return CompileClasses(
        tuple(found), tuple(found.values()), lambda row: key(space.values(row)), tuple(given)
    )


# Tuples -------------------------------------------------------------------------------------


class _Uncovered:
    """The tuples still to cover, as bit masks over the values of each axis."""

    def __init__(self, missing: Sequence[Tuple]) -> None:
        self._masks: dict[tuple[int, Row, Row], int] = {}
        for axes, values in missing:
            for place, at in enumerate(axes):
                rest = (
                    at,
                    axes[:place] + axes[place + 1 :],
                    values[:place] + values[place + 1 :],
                )
                self._masks[rest] = self._masks.get(rest, 0) | 1 << values[place]

    def has(self, axes: Row, values: Row) -> bool:
        """Whether a tuple is uncovered."""
        return bool(self._masks.get((axes[0], axes[1:], values[1:]), 0) >> values[0] & 1)

    def gains(self, row: Sequence[int], at: int, strength: int, size: int) -> list[int]:
        """For each value of the axis `at`, the number of uncovered tuples that it adds to `row`."""
        gains = [0] * size
        bound = [each for each, index in enumerate(row) if index != UNBOUND]
        for axes in combinations(bound, strength - 1):
            mask = self._masks.get((at, axes, tuple([row[each] for each in axes])), 0)
            while mask:
                low = mask & -mask
                gains[low.bit_length() - 1] += 1
                mask ^= low
        return gains

    def discard_all(self, row: Sequence[int], strength: int) -> None:
        """Remove the tuples that a full row has."""
        for axes in combinations(range(len(row)), strength - 1):
            values = tuple([row[each] for each in axes])
            for at, index in enumerate(row):
                rest = (at, axes, values)
                if rest in self._masks:
                    self._masks[rest] &= ~(1 << index)

    def count(self, row: Sequence[int], strength: int) -> int:
        """The number of uncovered tuples that a row has."""
        found = 0
        bound = [at for at, index in enumerate(row) if index != UNBOUND]
        for axes in combinations(bound, strength):
            mask = self._masks.get((axes[0], axes[1:], tuple([row[at] for at in axes[1:]])), 0)
            found += mask >> row[axes[0]] & 1
        return found


def tuples(space: Space, strength: int) -> int:
    """The number of tuples of `strength` values, feasible or not."""
    return sum(prod(sizes) for sizes in combinations(space.sizes, strength))


def uncovered(space: Space, rows: Sequence[Row], strength: int) -> tuple[Tuple, ...]:
    """The tuples of `strength` values that no row has, and some row of the space could have.

    `strength` is from 1 to the number of axes.

    Raises:
        ValueError: a row is not in the space.
    """
    for row in rows:
        if not space.allows(row):
            raise ValueError(f"the row {space.values(row)} violates a constraint")
    missing: list[Tuple] = []
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(space.sizes)
    partial = [UNBOUND] * len(space.sizes)
    for axes in combinations(range(len(space.sizes)), strength):
        seen = set(zip(*(columns[at] for at in axes), strict=True))
        if len(seen) == prod(space.sizes[at] for at in axes):
            continue
        for values in product(*(range(space.sizes[at]) for at in axes)):
            if values in seen:
                continue
            for at, index in zip(axes, values, strict=True):
                partial[at] = index
            if space.extensible(partial):
                missing.append((axes, values))
        for at in axes:
            partial[at] = UNBOUND
    return tuple(missing)
