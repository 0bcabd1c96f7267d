"""What random cases have besides the axes of their spec: values, storage, lengths told too large.

The axes are those of `tlmatrix.problem.optional_axes`. A case has one only where it is drawn to be
other than usual, but for `values`: without it the case's seed would choose, anew for every
smaller case.
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

__all__ = ["EXCESS", "SIDES", "Extras", "extras_of"]

SIDES: Mapping[str, int] = {"max_seqlen_q": 0, "max_seqlen_k": 1}
"""The axes that tell a longest length, and whose it is: of queries, of keys."""

_MOST = 130
EXCESS = (Span(0, _MOST), *[Span(0, 0)] * 7, Span(1, 1), Span(1, 16), Span(1, _MOST))
"""By how much a longest length is told too large; mostly not at all."""


@dataclass(frozen=True)
class Extras:
    """Values of optional axes, the plainest first; none for an axis that is not drawn.

    `larger` are told larger than they are. `raised` are axes of the spec that must be at least as
    large as what is drawn.
    """

    values: tuple[str, ...] = ()
    storage: tuple[str | None, ...] = ()
    larger: tuple[str, ...] = ()
    raised: tuple[str, ...] = ()


def extras_of(spec: Spec, fuzz: Fuzz, family: Family, lengths: Lengths | None) -> Extras:
    """What is drawn besides the axes of a spec; SpecError where a rule stands in the way."""
    free = optional_axes(family) - spec.axes.keys()
    names = usual_distributions()
    longest = SIDES.keys() if lengths is not None else ()
    raised = tuple(axis for axis in longest if axis in spec.axes)
    if lengths is not None:
        _check_raised(spec, raised, lengths)
    return Extras(
        values=(*names[:1] * len(names), *names[1:]) if "values" in free else (),
        storage=(*[None] * 2 * len(fuzz.storage), *fuzz.storage) if "storage" in free else (),
        larger=tuple(axis for axis in longest if axis in free and not _fixed(axis, lengths)),
        raised=raised,
    )


def _fixed(axis: str, lengths: Lengths | None) -> bool:
    """Whether nobody asks for the longest: of sequences with one query each."""
    return SIDES[axis] == 0 and lengths is not None and lengths.fixed is not None


def _check_raised(spec: Spec, raised: tuple[str, ...], lengths: Lengths) -> None:
    ruled = {name for rule in spec.constraints for name in rule.expression.names}
    for axis in raised:
        most = lengths.longest(SIDES[axis])
        for index, value in enumerate(spec.axes[axis]):
            if axis in ruled and isinstance(value, int) and value < most:
                message = (
                    f"{axis} is {value}, and 'fuzz' draws lengths up to {most}; as a rule names "
                    "the axis it cannot be made larger: list larger numbers, or draw shorter ones"
                )
                raise SpecError([spec.issue(("axes", axis, index), message)])
