"""The checks that run the entry again, and the selection of them for a case.

Determinism, isolation, poison in neighbouring sequences, repeated calls, relations and agreement
need one to three more runs each, which is most of a case's time. A case of a tier gets all of them.
A fuzz case gets one, in rotation; its own seed selects it, so that the case is checked in the same
way whenever it runs. Its determinism check makes two equal calls instead of three. Shrinking keeps
only the checks that failed.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.problem.model import Relation, RelationKind

Reruns = Literal["all", "rotate"] | Collection[str]
"""Which checks run the entry again: `all`, one of them in rotation (`rotate`), or these names."""

RELATION_KINDS: tuple[RelationKind, ...] = (
    "isolation",
    "poison",
    "repeat",
    "relations",
    "agreement",
    "propagation",
)
"""Kinds of relations, the most informative first."""

RERUN_CHECKS: tuple[str, ...] = ("determinism", *RELATION_KINDS)
"""The checks that run the entry again, in the order in which they run."""


_LATER = "propagation"


def is_selected(check: str, reruns: Reruns) -> bool:
    """Whether `reruns` is `all` or contains the check."""
    if isinstance(reruns, str):
        return reruns == "all"
    return check in reruns


def rotation_order(checks: Collection[str], seed: int) -> list[str]:
    """The rerun checks among `checks`, in the order in which a case with this seed tries them."""
    order = [check for check in RERUN_CHECKS if check in checks and check != _LATER]
    seeded_generator(seed).shuffle(order)
    if _LATER in checks:
        # Inserted, so that the order of the others does not depend on it.
        order.insert(seeded_generator(seed + 3).randrange(len(order) + 1), _LATER)
    return order


def pick_relation(relations: Sequence[Relation], seed: int) -> Relation:
    """One of the relations of a kind, selected by the case's seed."""
    return seeded_generator(seed + 1).choice(relations)


def seeded_generator(seed: int) -> random.Random:
    """Independent of the one that picks a relation's sequence or head, which has the same seed."""
    return random.Random(seed ^ 0x70A7E)  # noqa: S311 - test data, not secrets
