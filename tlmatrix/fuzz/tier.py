"""The drawn cases that a tier runs after its own, under pytest.

They are drawn when specs are collected, every worker the same ones, so each is an item of its own
with an id that stays: workers share them out like all others, none is run twice, and one that
failed is run again by its id. What an earlier one exercised does not steer later ones here; that
is for `tlmatrix fuzz`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tlmatrix.matrix import Case
    from tlmatrix.spec.models import Spec

__all__ = ["tier_draws"]


def tier_draws(spec: Spec, tier: str, others: Iterable[str], *, seed: int = 0) -> list[Case]:
    """As many drawn cases as the spec's `fuzz.examples` says for the tier, no id of `others`.

    Raises:
        ValueError: the spec has no such tier.
        SpecError: what the spec's `fuzz` asks for cannot be drawn.
    """
    from tlmatrix.fuzz.search import examples_of

    count = examples_of(spec, tier)
    if not count:
        return []
    from tlmatrix.fuzz.draw import cases
    from tlmatrix.fuzz.draws import drawn_cases, seed_of

    first = seed_of(spec.name, seed)
    return drawn_cases(cases(spec, tier), count=count, first=first, known=frozenset(others))
