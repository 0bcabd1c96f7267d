"""The checks that run the entry again, and which of them a case gets.

Equal calls, isolation, poison beside a sequence, repeated calls, relations and agreement cost one
to three further runs each: most of a case's time. A case of a tier gets all. Of thousands of fuzz
examples each gets one, in turn; which one, the case's own seed says, so that an example is judged
the same way whenever it is run. Of equal calls it makes two then, and not three. Shrinking keeps
to the checks that failed.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.problem.model import Relation, RelationKind

__all__ = ["FURTHER", "KINDS", "Relations", "in_turn", "one_relation", "wanted"]

Relations = Literal["all", "rotate"] | Collection[str]
"""`all`; one, in turn (`rotate`); or all of the checks with these names."""

KINDS: tuple[RelationKind, ...] = ("isolation", "poison", "repeat", "relations", "agreement")
"""Relations in the order in which a person would want to know of them."""

FURTHER: tuple[str, ...] = ("determinism", *KINDS)
"""The checks that run the entry again, in the order in which they are made."""


def wanted(check: str, relations: Relations) -> bool:
    """Whether a check that runs the entry again is asked for by name, or all are."""
    if isinstance(relations, str):
        return relations == "all"
    return check in relations


def in_turn(checks: Collection[str], seed: int) -> list[str]:
    """Those of `checks` that run the entry again, in the order in which this case tries them."""
    order = [check for check in FURTHER if check in checks]
    _picked(seed).shuffle(order)
    return order


def one_relation(relations: Sequence[Relation], seed: int) -> Relation:
    """The relation of a kind that a case gets in rotation."""
    return _picked(seed + 1).choice(relations)


def _picked(seed: int) -> random.Random:
    """Apart from what picks the sequence or head of a relation, which has the same seed."""
    return random.Random(seed ^ 0x70A7E)  # noqa: S311 - test data, not secrets
