"""Metamorphic relations of problems that a spec declares."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.problem.declared.packed import packed_axes, value_of
from tlmatrix.problem.declared.tensors import generate_inputs
from tlmatrix.problem.relations.forms import balanced_lengths, repeated
from tlmatrix.problem.relations.packed import packed_relations
from tlmatrix.spec.lengths import sides_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.problem.declared.build import Declared
    from tlmatrix.problem.model import Relation, RelationKind


def declared_relations(case: Declared, kind: RelationKind) -> Iterator[Relation]:
    """The relations of one kind for a declared case: repeated calls, and those of packed axes."""
    if kind == "repeat":
        other = _other_lengths(case, "normal", case.seed + 1)
        because = "a second call must not remember the first"
        relation = repeated(other.problem(), case.problem(), because)
        yield relation if case.reference is not None else replace(relation, judge=())
    yield from packed_relations(case, kind)


def _other_lengths(case: Declared, distribution: str, seed: int) -> Declared:
    """The case with other inputs, and other lengths if tensors keep their sizes.

    Detects an entry that caches what it read from a tensor of lengths.
    """
    setup = case.setup
    made = generate_inputs(setup, case.declaration, distribution, seed)
    plain = replace(case, inputs=made, distribution=distribution, seed=seed, given_cotangents=None)
    changed = {
        axis: value_of(
            setup.values[axis], list(map(balanced_lengths, sides_of(setup.values[axis])))
        )
        for axis in packed_axes(setup.values, case.declaration)
    }
    values = {**setup.values, **changed}
    if not changed or case.reference is None or not setup.satisfies_where(values):
        return plain
    try:
        setup = replace(setup, values=values)
        inputs = generate_inputs(setup, case.declaration, distribution, seed)
        other = replace(plain, setup=setup, inputs=inputs)
        shapes = {name: info.shape for name, info in other.infos.items()}
    except Exception:  # noqa: BLE001 - the reference cannot take these lengths
        return plain
    same = all(inputs[name].shape == made[name].shape for name in made)
    mine = {name: info.shape for name, info in case.infos.items()}
    return other if same and shapes == mine else plain
