"""Random small axes and constraints, with everything about them found the slow and obvious way."""

from __future__ import annotations

from itertools import combinations, product

from hypothesis import strategies as st

from tlmatrix.matrix.constraints import Constraint
from tlmatrix.matrix.space import Space


def forbid(names, forbidden):
    """A constraint that forbids the listed combinations of the values of `names`."""
    names = tuple(sorted(names))
    forbidden = frozenset(forbidden)
    return Constraint(names, lambda values: tuple(values[name] for name in names) not in forbidden)


@st.composite
def spaces(draw, max_axes=5, max_values=3, max_constraints=4):
    """Up to five axes of up to three values, with constraints over one to three axes each."""
    names = draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=max_axes, unique=True))
    axes = {name: tuple(range(draw(st.integers(1, max_values)))) for name in names}
    constraints = []
    for _ in range(draw(st.integers(0, max_constraints))):
        about = sorted(draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)))
        every = list(product(*(axes[name] for name in about)))
        constraints.append(
            forbid(about, draw(st.lists(st.sampled_from(every), max_size=len(every))))
        )
    return Space(axes, constraints)


def all_rows(space):
    """Every allowed row, by trying them all."""
    return [
        row
        for row in product(*map(range, space.sizes))
        if all(each.allows(space.values(row)) for each in space.constraints)
    ]


def held(rows, strength):
    """Every tuple of `strength` values that some row holds: (axes, values)."""
    return {
        (axes, tuple(row[at] for at in axes))
        for row in rows
        for axes in combinations(range(len(row)), strength)
    }
