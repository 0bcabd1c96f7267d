"""Hypothesis strategies for the cases of a spec.

`cases` is a strategy of ordinary resolved `Case`s. It draws from a `CaseDomain`, which holds the
domain of every axis and the combinations of axes that kernels are compiled for. Constraints hold by
construction, and errors in the spec are raised when the domain is built. Hypothesis is imported
when `cases` is called.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tlmatrix.fuzz.strategies.case_domain import (
    CaseDomain,
    case_domain,
    summarize,
    tier_sample,
)
from tlmatrix.problem import family_for
from tlmatrix.spec.model.fuzz import Fuzz
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hypothesis.strategies import SearchStrategy

    from tlmatrix.matrix import Case
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

__all__ = [
    "CaseDomain",
    "case_domain",
    "cases",
    "sharing_cases",
    "summarize",
    "tier_sample",
]


def cases(
    spec: Spec,
    tier: str = "quick",
    *,
    at_most: Mapping[str, int] | None = None,
    around: Sequence[int] = (),
) -> SearchStrategy[Case]:
    """A strategy for cases of origin "fuzz" that satisfy the constraints of the spec.

    The axes that kernels are compiled for mostly take a combination of
    `CaseDomain.configurations`, so that a few compiled kernels serve many examples. The simplest
    case has the fewest sequences, the shortest lengths, and the first value of every axis.

    Args:
        spec: the spec.
        tier: the name of the tier.
        at_most: the largest number of some axes, unless no case is possible with it.
        around: boundary numbers of all ranges, besides those of the spec.

    Raises:
        ValueError: the spec has no such tier.
        SpecError: the section `fuzz` cannot be satisfied.
    """
    from tlmatrix.fuzz.strategies.case_strategy import case_strategy

    domain = case_domain(spec, tier, at_most=at_most)
    more = tuple(number for number in around if number not in domain.tiles)
    if more:
        domain = case_domain(_with_boundaries(spec, more), tier, at_most=at_most)
    return case_strategy(domain)


def _with_boundaries(spec: Spec, more: tuple[int, ...]) -> Spec:
    fuzz = spec.fuzz or Fuzz()
    every: dict[str, Any] = {**fuzz.axes, "seqlens": fuzz.seqlens}
    drawn = {
        name: each.model_copy(update={"around": (*each.around, *more)})
        for name, each in every.items()
    }
    changed = fuzz.model_copy(update={"seqlens": drawn.pop("seqlens"), "axes": drawn})
    return spec.model_copy(update={"fuzz": changed})


def sharing_cases(
    spec: Spec,
    tier: str = "quick",
    *,
    number: int | None = None,
    at_most: Mapping[str, int] | None = None,
) -> SearchStrategy[Case]:
    """A strategy for cases that need no other kernels than those of the tier.

    With `number`, all cases share the kernels of one case of the tier: numbers walk the compile
    keys in the order of the tier, whose first cases cover the most. If the tier lists no
    configurations, cases of any are generated.

    Args:
        spec: the spec.
        tier: the name of the tier.
        number: which compile key, counted modulo their number; None: all of the tier.
        at_most: as for `cases`.

    Raises:
        ValueError: the spec has no such tier.
        SpecError: the section `fuzz` cannot be satisfied.
    """
    from tlmatrix.fuzz.strategies.case_strategy import case_strategy

    domain = case_domain(spec, tier, at_most=at_most)
    key = partial(family_for(spec).compile_key, spec)
    by_key: dict[str, dict[str, Mapping[str, Value]]] = {}
    for values in tier_sample(spec, tier):
        configuration = canonical({name: values[name] for name in domain.fixed})
        if configuration in domain.configurations:
            by_key.setdefault(key(values), {}).setdefault(configuration, values)
    if not by_key:
        return case_strategy(domain)
    keys = list(by_key) if number is None else [list(by_key)[number % len(by_key)]]
    among = {each: values for mine in keys for each, values in by_key[mine].items()}
    configurations = {name: each for name, each in domain.configurations.items() if name in among}
    domain = domain.sharing(list(among.values()))
    strategy = case_strategy(replace(domain, configurations=configurations, only=True))
    if not spec.compile_axes:
        return strategy  # values that only fuzzing generates have keys of their own
    return strategy.filter(lambda case: key(case.values) in keys)
