"""The names of built-in problems, and the valid values of their axes.

`docs/reference/problems` describes them; a test compares its tables with these and with problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tlmatrix.dtypes import explain_dtype
from tlmatrix.problem.distributions import explain_distribution
from tlmatrix.problem.storage import explain_storage
from tlmatrix.words import nearest

if TYPE_CHECKING:
    from tlmatrix.spec.values import Value

    Explain = Callable[[Value], str | None]
    """Why a value of an axis is invalid; None if it is valid."""


@dataclass(frozen=True)
class Names:
    """The names of a built-in problem.

    Attributes:
        problem: its name, and that of its page.
        axes: the axes whose value is a name of the case, with their valid values.
        settings: the axes whose value no entry gets.
        others: further names of a case that are no tensors.
        inputs: the tensors that an entry may take.
        results: outputs and gradients.
        relations: the metamorphic relations that a spec may list.
    """

    problem: str
    axes: Mapping[str, Explain]
    settings: Mapping[str, Explain] = field(default_factory=dict)
    others: frozenset[str] = frozenset()
    inputs: frozenset[str] = frozenset()
    results: frozenset[str] = frozenset()
    relations: tuple[str, ...] = ()

    def explain(self, axis: str, value: Value) -> str | None:
        """Why `value` is invalid for an axis; None if it is valid, or if the axis is unknown."""
        explain = self.axes.get(axis) or self.settings.get(axis)
        return None if explain is None else explain(value)

    def refuse_invalid(self, values: Mapping[str, Value]) -> None:
        """Raise ValueError if an axis has an invalid value."""
        for axis, value in values.items():
            if reason := self.explain(axis, value):
                raise ValueError(f"{axis}: {reason}")


def whole(
    least: int, *, same: bool = False, optional: bool = False, want: str | None = None
) -> Explain:
    """Integers from `least`, and `same` or none if these are allowed; `want` names them all."""
    want = want or f"{'none or ' if optional else ''}an integer >= {least}"

    def explain(value: Value) -> str | None:
        if (value is None and optional) or (value == "same" and same):
            return None
        fine = isinstance(value, int) and not isinstance(value, bool) and value >= least
        return None if fine else f"{'none' if value is None else repr(value)} is not {want}"

    return explain


def choice(what: str, options: Sequence[str]) -> Explain:
    """One of the names of something: a layout, an operation."""

    def explain(value: Value) -> str | None:
        if isinstance(value, str) and value in options:
            return None
        return f"unknown {what} {value!r}{nearest(value, options)}"

    return explain


def dtypes(*, floating: bool = False, same: bool = False, optional: bool = False) -> Explain:
    """Dtypes, or floating ones alone; `same` as another axis or none if these are allowed."""

    def explain(value: Value) -> str | None:
        if (same and value == "same") or (optional and value is None):
            return None
        return explain_dtype(value, floating=floating)

    return explain


def flag(value: Value) -> str | None:
    """True and false."""
    return None if isinstance(value, bool) else f"{value!r} is not true or false"


def number(value: Value) -> str | None:
    """Finite numbers, and none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    fine = value is None or (is_number and math.isfinite(float(value)))  # type: ignore[arg-type]
    return None if fine else f"{value!r} is not none or a finite number"


VALUES: Mapping[str, Explain] = {"values": explain_distribution}
STORAGE: Mapping[str, Explain] = {"storage": explain_storage}
