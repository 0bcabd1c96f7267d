"""Whole problems whose results name the rank that owns each element.

Relations whose problems cannot be sharded are left out: a batch split in two may have lengths that
the ranks do not divide.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.distributed.sharding.shards import Sharding
from tlmatrix.problem.lazy_mapping import LazyMapping
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.spec import has_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tlmatrix.problem.model import Dim, Problem, Relation, RelationKind, TensorInfo
    from tlmatrix.spec.model.spec import Spec


def with_owners(spec: Spec, problem: Problem) -> Problem:
    """Add the owning rank of each element to a problem's results, if its spec has ranks.

    Raises:
        SpecError: the ranks cannot share the tensors as `shards` declares.
    """
    if not has_ranks(spec):
        return problem
    return _with_owners(spec, problem, Sharding.of(spec, problem))


def _with_owners(spec: Spec, problem: Problem, sharding: Sharding) -> Problem:
    owned: dict[tuple[int, tuple[int, ...]], tuple[Dim, Dim]] = {}

    def info(name: str) -> TensorInfo:
        made = problem.outputs[name]
        split = sharding.splits.get(name)
        if split is None or sharding.world == 1:
            return made
        dim = made.dims[split.axis]
        owner = split.owner(dim.size)
        # Results may share a dim object, whose regions are counted once.
        _, mine = owned.setdefault((id(dim), owner), (dim, replace(dim, owner=owner)))
        dims = (*made.dims[: split.axis], mine, *made.dims[split.axis + 1 :])
        return replace(made, dims=dims)

    def relations(kind: RelationKind) -> Iterator[Relation]:
        for relation in problem.relations(kind):
            made = _sharded_relation(spec, relation)
            if made is not None:
                yield made

    outputs: Mapping[str, TensorInfo] = LazyMapping(problem.outputs, info)
    return replace(problem, outputs=outputs, relations=relations)


def _sharded_relation(spec: Spec, relation: Relation) -> Relation | None:
    """The relation with owners in its problems; None if the ranks cannot share them."""
    try:
        made = tuple(with_owners(spec, each) for each in relation.problems)
    except SpecError:
        return None
    return replace(relation, problems=made)
