"""Metamorphic relations between the results of two calls, which need no reference.

The relations of a built-in family are in its own package. `batch` has those of independent
sequences, `calls` those of other ways to call an entry, `propagation` those of NaN and infinity,
and `user` those that a spec lists under `relations:`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tlmatrix.problem.model import Relation

if TYPE_CHECKING:
    from tlmatrix.problem.model import Problem, RelationKind, Tensors

Kind = TypeVar("Kind", bound=Relation)


def balanced_lengths(lengths: Sequence[int]) -> tuple[int, ...]:
    """As many rows in as many sequences, whose lengths differ by at most one."""
    share, more = divmod(sum(lengths), max(len(lengths), 1))
    return tuple(share + (number < more) for number in range(len(lengths)))


def untouched(
    name: str,
    kind: RelationKind,
    problem: Problem,
    part: Callable[[Tensors], Tensors],
    because: str,
) -> Relation:
    """A relation: `part` of the results of `problem` has the bits it has in the original."""
    return Relation(
        name, kind, (problem,), part, lambda results: part(results[0]), exact=True, because=because
    )


def repeated(
    other: Problem,
    again: Problem,
    because: str,
    *,
    of: type[Kind] = Relation,  # type: ignore[assignment]
    **more: Any,  # noqa: ANN401 - fields of the relation
) -> Kind:
    """A relation: after a run of `other`, a run of `again` gives the bits of the first run.

    `again` is a copy of the original problem. The results of `other` are also checked against its
    own reference. `of` is the class of the relation, and `more` its other fields.
    """
    fields = {"name": "repeat", "exact": True, "judge": (0,), **more}
    return of(
        kind="repeat",
        problems=(other, again),
        right=lambda results: results[1],
        because=because,
        **fields,
    )
