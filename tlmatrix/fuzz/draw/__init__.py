"""Cases drawn from a spec alone, by Hypothesis: lengths, sizes, and every other axis.

`cases` is a strategy whose every value is an ordinary resolved `Case`. What it draws is settled
before, in a `Ground`: which axes change from one example to the next, and which combinations of the
others have kernels. Rules hold by construction, so that nothing is ever rejected; whatever can be
said against a spec is said, at its place, when the ground is made. This package imports no
Hypothesis until `cases` is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.fuzz.draw.described import described
from tlmatrix.fuzz.draw.ground import Configuration, Ground, ground_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hypothesis.strategies import SearchStrategy

    from tlmatrix.matrix import Case
    from tlmatrix.spec.model.spec import Spec

__all__ = ["Configuration", "Ground", "cases", "configurations", "described", "ground_of"]


def cases(
    spec: Spec,
    tier: str = "quick",
    *,
    among: Sequence[Configuration] | None = None,
    at_most: Mapping[str, int] | None = None,
) -> SearchStrategy[Case]:
    """Cases of origin "fuzz", all of which satisfy the constraints of the spec.

    The axes that kernels are compiled for come from `configurations(spec, tier)` and hardly ever
    from elsewhere, so that few kernels serve many examples; from `among` (some of them), and never
    from elsewhere, where it is given. `at_most` leaves out larger numbers of an axis, unless there
    is no case without. A failing example is shrunk over all their values. The simplest case has the
    fewest sequences, the shortest lengths, and the first value of every axis.

    Raises:
        ValueError: the spec has no such tier.
        SpecError: what the spec's `fuzz` asks for cannot be drawn; says what and where.
    """
    from tlmatrix.fuzz.draw.strategy import drawn

    return drawn(ground_of(spec, tier, among=among, at_most=at_most))


def configurations(
    spec: Spec, tier: str = "quick", *, at_most: Mapping[str, int] | None = None
) -> tuple[Configuration, ...]:
    """What the tier's own cases are compiled for: combinations of the axes that decide kernels."""
    return ground_of(spec, tier, at_most=at_most).configurations
