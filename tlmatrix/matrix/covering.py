"""Makes covering arrays: rows with every feasible tuple of `strength` values (pairwise, t-wise).

The library covertable makes the rows, with an oracle that decides by search whether a partial row
can be completed. Its result is proven; where it is too slow (its time is quadratic in the number of
tuples) or incomplete, a greedy algorithm (`complete`) adds rows. The rows depend on axes, values,
constraints, classes of values that share kernels, and the seed alone.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from tlmatrix.matrix.constraints import UNBOUND
from tlmatrix.matrix.coverage_proof import Proof, prove, tuples
from tlmatrix.matrix.shared_kernels import sharing_rows
from tlmatrix.matrix.uncovered import Uncovered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tlmatrix.matrix.constraints import Row
    from tlmatrix.matrix.coverage_proof import Tuple
    from tlmatrix.matrix.shared_kernels import CompileClasses
    from tlmatrix.matrix.space import Space

_LONGER = 1.15
"""The most rows with few kernels, relative to the rows of an array without regard to kernels."""
_PATIENCE = (0.0, 0.0, 0.1, 0.2, 0.3, 0.45, 0.6, 0.7, 0.8, 0.9)
"""Values of `patience` that are tried, in order; see `sharing_rows`."""
_PATIENCE_LARGE = (0.4, 0.8)
_LARGE = 8_000
"""Tuples from which fewer arrays are tried, because each takes seconds."""
_LIBRARY_LIMIT = 20_000  # tuples; covertable took 3 s for 12,000 of them and 23 s for 97,000


def covering_rows(
    space: Space, strength: int, seed: int = 0, classes: CompileClasses | None = None
) -> tuple[tuple[Row, ...], Proof]:
    """A covering array of `space`, and its proof.

    Another `seed` gives another covering array. With `classes` its rows use few distinct kernels
    and are at most 15 % more than without. With at most `strength` axes, it is every row.

    Raises:
        ValueError: `strength` is less than 1.
    """
    if strength < 1:
        raise ValueError(f"strength is {strength}, must be at least 1")
    if strength >= len(space.sizes):
        rows = tuple(space)
        return rows, prove(space, rows, len(space.sizes))
    # The library calls the oracle 100 times as often as `complete`: too slow for large constraints.
    small = tuples(space, strength) <= _LIBRARY_LIMIT and not space.solves
    found = library_rows(space, strength, seed) if small else ()
    proof = prove(space, found, strength)
    rows = reduce_rows(complete(space, found, proof.missing, strength, seed), strength)
    if classes is not None:
        rows = _fewer_kernels(space, strength, seed, classes, rows)
    return rows, prove(space, rows, strength)


def _fewer_kernels(
    space: Space, strength: int, seed: int, classes: CompileClasses, rows: tuple[Row, ...]
) -> tuple[Row, ...]:
    """The first array that shares kernels and is short enough; `rows` if there is none."""
    missing = prove(space, (), strength).missing
    tries = _PATIENCE if len(missing) <= _LARGE else _PATIENCE_LARGE
    for number, patience in enumerate(tries):
        shared = sharing_rows(
            space, strength, classes, missing,
            patience=patience, seed=seed * len(_PATIENCE) + number,
        )  # fmt: skip
        found = reduce_rows(shared, strength)
        if len(found) <= _LONGER * len(rows):
            return min(found, rows, key=lambda each: (classes.kernels(each), len(each)))
    return rows


def library_rows(space: Space, strength: int, seed: int = 0) -> tuple[Row, ...]:
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


def complete(
    space: Space, rows: Sequence[Row], missing: Sequence[Tuple], strength: int, seed: int = 0
) -> tuple[Row, ...]:
    """Add rows to `rows` until they have all `missing` tuples, which must be feasible.

    Greedy: a row starts from a missing tuple, then each other axis takes the value that adds the
    most missing tuples and leaves the row extensible.
    """
    uncovered = Uncovered(missing)
    added = list(rows)
    for axes, values in missing:
        if not uncovered.has(axes, values):
            continue
        row = [UNBOUND] * len(space.sizes)
        for at, index in zip(axes, values, strict=True):
            row[at] = index
        for at in _largest_first(space, axes):
            gains = uncovered.gains(row, at, strength, space.sizes[at])
            # Break ties by the row number, so that values vary.
            turn = len(added) + seed
            for index in sorted(
                range(space.sizes[at]),
                key=lambda each: (-gains[each], (each + turn) % space.sizes[at]),
            ):
                row[at] = index
                if space.extensible_at(row, at):
                    break
        added.append(tuple(row))
        uncovered.discard_all(row, strength)
    return tuple(added)


def _largest_first(space: Space, bound: Row) -> list[int]:
    """The axes not in `bound`, by number of values, largest first."""
    left = [at for at in range(len(space.sizes)) if at not in bound]
    return sorted(left, key=lambda at: (-space.sizes[at], at))


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
