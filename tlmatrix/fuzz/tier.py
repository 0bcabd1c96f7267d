"""The fuzz cases that a tier runs under pytest, after the cases of its axes.

They are generated at collection, the same ones in every worker. So each is a pytest item with a
stable id, which workers distribute like any other and `--last-failed` runs again. Unlike in
`tlmatrix fuzz`, coverage does not guide the generation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tlmatrix.matrix import Case
    from tlmatrix.spec.model.spec import Spec


def tier_fuzz_cases(
    spec: Spec, tier: str, others: Iterable[str], *, seed: int = 0, compiled: bool = False
) -> list[Case]:
    """Generate the tier's number of `fuzz.examples`, without cases whose ids are in `others`.

    If kernels are `compiled`, the cases need no other kernels than the tier.

    Raises:
        ValueError: the spec has no such tier.
        SpecError: the spec's section `fuzz` cannot be satisfied.
    """
    from tlmatrix.fuzz.search import examples_of

    count = examples_of(spec, tier)
    if not count:
        return []
    from tlmatrix.fuzz.generation import derive_seed, generate_cases
    from tlmatrix.fuzz.strategies import cases, sharing_cases

    first = derive_seed(spec.name, seed)
    strategy = (sharing_cases if compiled else cases)(spec, tier)
    return generate_cases(strategy, count=count, first=first, known=frozenset(others))
