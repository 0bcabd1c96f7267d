"""A whole problem as checks see it whose tensors several ranks share.

Its results say whose each element is, and relations whose problems the ranks could not share are
left out: a batch that is split in two may have lengths that they do not divide.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.distributed.sharding.shards import Sharding
from tlmatrix.problem.lazy_mapping import LazyMapping
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.sharding import has_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tlmatrix.problem.model import Dim, Problem, Relation, RelationKind, TensorInfo
    from tlmatrix.spec.model.spec import Spec

__all__ = ["shared_out"]


def shared_out(spec: Spec, problem: Problem) -> Problem:
    """The problem with the owner of every element of its results; as it is without ranks.

    Raises:
        SpecError: the ranks cannot share its tensors as `shards` say.
    """
    if not has_ranks(spec):
        return problem
    return _told(spec, problem, Sharding.of(spec, problem))


def _told(spec: Spec, problem: Problem, sharding: Sharding) -> Problem:
    owned: dict[tuple[int, tuple[int, ...]], tuple[Dim, Dim]] = {}

    def info(name: str) -> TensorInfo:
        made = problem.outputs[name]
        split = sharding.splits.get(name)
        if split is None or sharding.world == 1:
            return made
        dim = made.dims[split.axis]
        owner = split.owner(dim.size)
        # A dim that several results share stays one: its regions are counted once.
        _, mine = owned.setdefault((id(dim), owner), (dim, replace(dim, owner=owner)))
        dims = (*made.dims[: split.axis], mine, *made.dims[split.axis + 1 :])
        return replace(made, dims=dims)

    def relations(kind: RelationKind) -> Iterator[Relation]:
        for relation in problem.relations(kind):
            made = _shared(spec, relation)
            if made is not None:
                yield made

    outputs: Mapping[str, TensorInfo] = LazyMapping(problem.outputs, info)
    return replace(problem, outputs=outputs, relations=relations)


def _shared(spec: Spec, relation: Relation) -> Relation | None:
    """The relation with its problems shared out; None where ranks cannot."""
    try:
        made = tuple(shared_out(spec, each) for each in relation.problems)
    except SpecError:
        return None
    return replace(relation, problems=made)
