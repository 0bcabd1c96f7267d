"""Hypothesis strategies for the cases of a spec.

`cases` is a strategy of ordinary resolved `Case`s. It draws from a `CaseDomain`, which holds the
domain of every axis and the combinations of axes that kernels are compiled for. Constraints hold by
construction, and errors in the spec are raised when the domain is built. Hypothesis is imported
when `cases` is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.fuzz.strategies.case_domain import CaseDomain, Configuration, case_domain
from tlmatrix.fuzz.strategies.summary import described

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hypothesis.strategies import SearchStrategy

    from tlmatrix.matrix import Case
    from tlmatrix.spec.model.spec import Spec

__all__ = ["CaseDomain", "Configuration", "case_domain", "cases", "configurations", "described"]


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
    from tlmatrix.fuzz.strategies.case_strategy import drawn

    return drawn(case_domain(spec, tier, among=among, at_most=at_most))


def configurations(
    spec: Spec, tier: str = "quick", *, at_most: Mapping[str, int] | None = None
) -> tuple[Configuration, ...]:
    """What the tier's own cases are compiled for: combinations of the axes that decide kernels."""
    return case_domain(spec, tier, at_most=at_most).configurations
