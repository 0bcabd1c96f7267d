"""Hypothesis strategies for the cases of a spec.

`cases` is a strategy of ordinary resolved `Case`s. It draws from a `CaseDomain`, which holds the
domain of every axis and the combinations of axes that kernels are compiled for. Constraints hold by
construction, and errors in the spec are raised when the domain is built. Hypothesis is imported
when `cases` is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.fuzz.strategies.case_domain import CaseDomain, Configuration, case_domain
from tlmatrix.fuzz.strategies.summary import summarize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hypothesis.strategies import SearchStrategy

    from tlmatrix.matrix import Case
    from tlmatrix.spec.model.spec import Spec

__all__ = ["CaseDomain", "Configuration", "case_domain", "cases", "configurations", "summarize"]


def cases(
    spec: Spec,
    tier: str = "quick",
    *,
    among: Sequence[Configuration] | None = None,
    at_most: Mapping[str, int] | None = None,
) -> SearchStrategy[Case]:
    """A strategy for cases of origin "fuzz" that satisfy the constraints of the spec.

    The axes that kernels are compiled for mostly take a combination from
    `configurations(spec, tier)`, so that a few compiled kernels serve many examples. The simplest
    case has the fewest sequences, the shortest lengths, and the first value of every axis.

    Args:
        spec: the spec.
        tier: the name of the tier.
        among: the only configurations to use, instead of mostly those of the tier.
        at_most: the largest number of some axes, unless no case is possible with it.

    Raises:
        ValueError: the spec has no such tier.
        SpecError: the section `fuzz` cannot be satisfied.
    """
    from tlmatrix.fuzz.strategies.case_strategy import case_strategy

    return case_strategy(case_domain(spec, tier, among=among, at_most=at_most))


def configurations(
    spec: Spec, tier: str = "quick", *, at_most: Mapping[str, int] | None = None
) -> tuple[Configuration, ...]:
    """The combinations of values in the tier of the axes that kernels are compiled for."""
    return case_domain(spec, tier, at_most=at_most).configurations
