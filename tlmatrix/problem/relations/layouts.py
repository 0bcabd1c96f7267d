"""The relation of memory layouts: the same values in other memory give the same results.

In some cases of every spec, tensors of a call get a layout of their own: inputs, tables, lengths,
scales, flags, output gradients. One of them is moved off its alignment, and no other, so that no
slow path that another tensor selects hides that it is not checked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.problem.model import Relation
from tlmatrix.problem.seeded import seeded_random
from tlmatrix.problem.storage import laid_out, layouts_of, tensors_of
from tlmatrix.spec.model.spec import has_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.model.spec import Spec

RELATION = "other_layouts"
SAMPLED = 4
"""Of this many cases, one is called with other memory layouts."""
FIRST = 5
"""The first cases of a spec in a process, which are called so, too."""
_STRIDED = frozenset({"sliced", "transposed"})
"""Values of the axis `storage` with which a spec promises to take tensors that have strides."""
_ALIGNED = frozenset({"offset", "sliced"})
"""Values with which it promises to take tensors that are not aligned."""


def with_other_layouts(spec: Spec, problem: Problem, seed: int) -> Problem:
    """The problem with a call whose tensors have other memory layouts."""
    if problem.values.get("storage") is not None:
        return problem
    return problem.with_relations("relations", lambda: _relations(spec, problem, seed))


def promised_layouts(spec: Spec) -> frozenset[str]:
    """What a spec says that its entry takes: tensors with `strides`, without `alignment`."""
    cases = (*spec.extra_cases, *(each.case for each in spec.regressions))
    named = {str(case["storage"]) for case in cases if case.get("storage") is not None}
    named |= set(spec.fuzz.storage) if spec.fuzz is not None else set()
    found = {"strides"} if named & _STRIDED else set()
    return frozenset(found | ({"alignment"} if named & _ALIGNED else set()))


def _relations(spec: Spec, problem: Problem, seed: int) -> Iterator[Relation]:
    pick = seeded_random(seed + 5)
    tensors = tensors_of(problem)
    movable = sorted(name for name, tensor in tensors.items() if tensor.numel())
    if not movable:
        return
    layouts: dict[str, str] = {}
    moved = pick.choice(movable)
    if pick.random() < 0.5:
        for name in movable:
            found = layouts_of(tensors[name])
            if found:
                layouts[name] = pick.choice(found)
    layouts[moved] = "offset"

    def made(layouts: Mapping[str, str]) -> Problem:
        alone = replace(problem, relations=lambda _kind: ())
        if has_ranks(spec):
            return replace(alone, layouts=layouts)
        return laid_out(alone, layouts)

    yield Relation(
        RELATION,
        "relations",
        layouts=layouts,
        laid_out=made,
        promises=promised_layouts(spec),
        words="a call with contiguous, aligned tensors",
    )


def _is_small(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a table, lengths, a scale or the like."""
    return not tensor.is_floating_point() or tensor.ndim < 2
