"""Other ways to the same attention, which need no reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tlmatrix.problem.attention.build import Attention
    from tlmatrix.problem.model import Relation, RelationKind

__all__ = ["relations"]


def relations(_case: Attention, _kind: RelationKind) -> Iterable[Relation]:
    """The relations of one kind; each is built when asked for."""
    return ()
