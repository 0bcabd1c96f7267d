"""Covering arrays whose rows share compiled kernels.

A kernel takes seconds to compile and a case takes milliseconds to run, so the rows of a tier use
few distinct kernels. *Compile axes* are those that the compile key depends on; values with which
the key is equal form a *class*. First a covering array over the classes of the compile axes alone
gives the configurations, as many as their tuples need. Then every other tuple is placed on a row
of one of these configurations.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import combinations, islice, product
from math import comb, prod
from typing import TYPE_CHECKING

from tlmatrix.matrix.constraints import UNBOUND
from tlmatrix.matrix.uncovered import Uncovered
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from tlmatrix.matrix.constraints import Row
    from tlmatrix.matrix.coverage_proof import Tuple
    from tlmatrix.matrix.space import Space
    from tlmatrix.spec.values import Value

_BASES = 24
"""Rows in which each value of an axis is tried, to see which values change the compile key."""
_ATTEMPTS = 4
"""Arrays of configurations that are made, of which the smallest is used."""
_WORK = 20_000
"""Tuples looked up to choose the configuration of a row: fewer candidates for higher strengths."""


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


def sharing_rows(
    space: Space,
    strength: int,
    classes: CompileClasses,
    missing: Sequence[Tuple],
    *,
    patience: float = 0.0,
    seed: int = 0,
) -> tuple[Row, ...]:
    """Rows with all `missing` tuples, which must be feasible, of few distinct kernels.

    A row opens another configuration if it needs to, or if the best row of the configurations so
    far adds fewer tuples than the fraction `patience` of those that a free choice adds. So a
    larger `patience` gives fewer rows with more kernels.
    """
    pick = random.Random(seed)  # noqa: S311 - reproducible, not secret
    attempts = (_configurations(space, strength, classes, pick) for _ in range(_ATTEMPTS))
    configurations = min(attempts, key=len)
    uncovered = Uncovered(missing)
    rows: list[Row] = []
    position_of = {at: place for place, at in enumerate(classes.positions)}
    # Tuples of the axes with the most values need the most rows; the others fit into them.
    order = sorted(missing, key=lambda each: -prod(space.sizes[at] for at in each[0]))
    most = max(4, _WORK // comb(len(space.sizes), strength))
    used = [0] * len(configurations)
    for axes, values in order:
        if not uncovered.has(axes, values):
            continue
        bound = dict(zip(axes, values, strict=True))
        fitting = [
            number
            for number, chosen in enumerate(configurations)
            if all(
                at not in position_of
                or classes.classes[position_of[at]][index] == chosen[position_of[at]]
                for at, index in bound.items()
            )
        ]
        fitting.sort(key=lambda number: (used[number], pick.random()))
        best: tuple[int, Row, int] | None = None
        for number in fitting[:most]:
            row = _filled(space, strength, classes, uncovered, bound, configurations[number], pick)
            if row is None:
                continue
            gain = uncovered.count(row, strength)
            if best is None or gain > best[0]:
                best = gain, row, number
        other = None
        if best is None or patience:
            other = _filled(space, strength, classes, uncovered, bound, None, pick)
        if other is not None and (
            best is None or best[0] < patience * uncovered.count(other, strength)
        ):
            # The constraints join the tuple with none of the configurations, or rows of them
            # have few uncovered tuples left.
            row = other
            configurations.append(_class_row(classes, row))
            used.append(1)
        else:
            assert best is not None
            _, row, number = best
            used[number] += 1
        rows.append(row)
        uncovered.discard_all(row, strength)
    return tuple(rows)


def _class_row(classes: CompileClasses, row: Sequence[int]) -> Row:
    return tuple(of[row[at]] for at, of in zip(classes.positions, classes.classes, strict=True))


def _configurations(
    space: Space, strength: int, classes: CompileClasses, pick: random.Random
) -> list[Row]:
    """A covering array over the classes of the compile axes: a class for each of them."""
    width = len(classes.positions)
    members = [
        [[index for index, mine in enumerate(of) if mine == each] for each in range(max(of) + 1)]
        for of in classes.classes
    ]
    blank = [UNBOUND] * len(space.sizes)

    def possible(chosen: Sequence[int]) -> bool:
        """Whether some row of the space has these classes, of which UNBOUND is any."""
        bound = [place for place in range(width) if chosen[place] != UNBOUND]
        for indices in product(*(members[place][chosen[place]] for place in bound)):
            row = list(blank)
            for place, index in zip(bound, indices, strict=True):
                row[classes.positions[place]] = index
            if space.extensible(row):
                return True
        return False

    size = min(strength, width)
    missing = []
    for places in combinations(range(width), size):
        for indices in product(*(range(len(members[place])) for place in places)):
            chosen = [UNBOUND] * width
            for place, index in zip(places, indices, strict=True):
                chosen[place] = index
            if possible(chosen):
                missing.append((places, indices))
    uncovered = Uncovered(missing)
    for given in classes.given:
        uncovered.discard_all(given, size)
    pick.shuffle(missing)
    missing.sort(key=lambda each: -prod(len(members[place]) for place in each[0]))
    found = list(classes.given)
    for places, indices in missing:
        if not uncovered.has(places, indices):
            continue
        best: tuple[int, Row] | None = None
        for _ in range(_ATTEMPTS * 4):
            chosen = [UNBOUND] * width
            for place, index in zip(places, indices, strict=True):
                chosen[place] = index
            rest = [place for place in range(width) if place not in places]
            pick.shuffle(rest)
            for place in rest:
                gains = uncovered.gains(chosen, place, size, len(members[place]))
                order = sorted(range(len(members[place])), key=lambda i: (-gains[i], pick.random()))
                for index in order:
                    chosen[place] = index
                    if possible(chosen):
                        break
            gain = uncovered.count(chosen, size)
            if best is None or gain > best[0]:
                best = gain, tuple(chosen)
        assert best is not None
        found.append(best[1])
        uncovered.discard_all(best[1], size)
    return found


def _filled(
    space: Space,
    strength: int,
    classes: CompileClasses,
    uncovered: Uncovered,
    bound: Mapping[int, int],
    configuration: Row | None,
    pick: random.Random,
) -> Row | None:
    """A row with the values `bound` and a configuration; None if the constraints exclude it.

    Each axis takes the value that adds the most uncovered tuples. Of a configuration of None, any
    value of the compile axes is allowed.
    """
    allowed: dict[int, list[int]] = {}
    if configuration is not None:
        for at, of, chosen in zip(classes.positions, classes.classes, configuration, strict=True):
            allowed[at] = [index for index, mine in enumerate(of) if mine == chosen]
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
        gains = uncovered.gains(row, at, strength, space.sizes[at])
        order = sorted(
            allowed.get(at, range(space.sizes[at])), key=lambda i: (-gains[i], pick.random())
        )
        for index in order:
            row[at] = index
            if space.extensible(row):
                break
        else:
            return None
    return tuple(row)
