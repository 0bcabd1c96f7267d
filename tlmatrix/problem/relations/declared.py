"""Metamorphic relations of problems that a spec declares."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.problem.relations.forms import repeated
from tlmatrix.problem.relations.packed import other_lengths, packed_relations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.problem.declared.build import Declared
    from tlmatrix.problem.model import Relation, RelationKind

__all__ = ["declared_relations"]


def declared_relations(case: Declared, kind: RelationKind) -> Iterator[Relation]:
    """The relations of one kind for a declared case: repeated calls, and those of packed axes."""
    if kind == "repeat":
        other = other_lengths(case, "normal", case.seed + 1)
        because = "a second call must not remember the first"
        relation = repeated(other.problem(), case.problem(), because)
        yield relation if case.reference is not None else replace(relation, judge=())
    yield from packed_relations(case, kind)
