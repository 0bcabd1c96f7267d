"""Axes of fuzz cases that their spec does not list: values, storage, and maximum lengths.

They are the axes of `tlmatrix.problem.optional_axes`. A case has one only if its value is not the
default, except `values`: its default depends on the case's seed, and would change while shrinking.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tlmatrix.fuzz.strategies.spans import Span
from tlmatrix.problem.distributions import usual_distributions
from tlmatrix.problem.optional_axes import optional_axes
from tlmatrix.spec.issues import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.fuzz.strategies.lengths import Lengths
    from tlmatrix.problem import Family
    from tlmatrix.spec.model.fuzz import Fuzz
    from tlmatrix.spec.model.spec import Spec

SIDES: Mapping[str, int] = {"max_seqlen_q": 0, "max_seqlen_k": 1}
"""The axes of maximum lengths, each with its index in a pair (queries, keys)."""

_MOST = 130
EXCESS = (Span(0, _MOST), *[Span(0, 0)] * 7, Span(1, 1), Span(1, 16), Span(1, _MOST))
"""Spans of the difference between a maximum length and the longest sequence; mostly 0."""


@dataclass(frozen=True)
class OptionalAxes:
    """Values of optional axes, the simplest first; empty for an axis that is not generated.

    `larger` are maximum lengths that may exceed the longest sequence. `raised` are those listed in
    the spec, which are raised to the longest generated sequence.
    """

    values: tuple[str, ...] = ()
    storage: tuple[str | None, ...] = ()
    larger: tuple[str, ...] = ()
    raised: tuple[str, ...] = ()


def optional_axes_of(
    spec: Spec, fuzz: Fuzz, family: Family, lengths: Lengths | None
) -> OptionalAxes:
    """The optional axes of a spec's cases.

    Raises:
        SpecError: a constraint names a maximum length that would have to be raised.
    """
    free = optional_axes(family) - spec.axes.keys()
    names = usual_distributions(getattr(family, "special_values", ()))
    longest = SIDES.keys() if lengths is not None else ()
    raised = tuple(axis for axis in longest if axis in spec.axes)
    if lengths is not None:
        _check_raised(spec, raised, lengths)
    return OptionalAxes(
        values=(*names[:1] * len(names), *names[1:]) if "values" in free else (),
        storage=(*[None] * 2 * len(fuzz.storage), *fuzz.storage) if "storage" in free else (),
        larger=tuple(axis for axis in longest if axis in free and not _fixed(axis, lengths)),
        raised=raised,
    )


def _fixed(axis: str, lengths: Lengths | None) -> bool:
    """Whether all sequences have the same number of queries."""
    return SIDES[axis] == 0 and lengths is not None and lengths.fixed is not None


def _check_raised(spec: Spec, raised: tuple[str, ...], lengths: Lengths) -> None:
    constrained = {name for constraint in spec.constraints for name in constraint.expression.names}
    for axis in raised:
        most = lengths.longest(SIDES[axis])
        for index, value in enumerate(spec.axes[axis]):
            if axis in constrained and isinstance(value, int) and value < most:
                message = (
                    f"{axis} is {value}, but 'fuzz' generates lengths up to {most}; it cannot be "
                    "raised because a constraint names it: list larger numbers, or generate "
                    "shorter lengths"
                )
                raise SpecError([spec.issue(("axes", axis, index), message)])
