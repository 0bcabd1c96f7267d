"""The relation of memory layouts: the same values in other memory give the same results.

In some cases of every spec, tensors of a call get a layout of their own: inputs, tables, lengths,
scales, flags, output gradients. One of them is moved off its alignment, and no other, so that no
slow path that another tensor selects hides that it is not checked. In the first case of a spec each
tensor is moved, and what lowered kernels need of it is checked, which takes seconds a kernel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.problem.model import Relation
from tlmatrix.problem.seeded import seeded_random
from tlmatrix.problem.storage import laid_out, layouts_of, tensors_of
from tlmatrix.spec.model.spec import has_ranks

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping, Sequence

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


def with_other_layouts(spec: Spec, problem: Problem, seed: int, number: int | None) -> Problem:
    """The problem with calls whose tensors have other memory layouts.

    Args:
        spec: the spec.
        problem: the problem of a case.
        seed: the seed of the case.
        number: which of the first cases of the spec it is; None if it is a later one.
    """
    if problem.values.get("storage") is not None:
        return problem
    return problem.with_relations("relations", lambda: _relations(spec, problem, seed, number))


def promised_layouts(spec: Spec) -> frozenset[str]:
    """What a spec says that its entry takes: tensors with `strides`, without `alignment`."""
    cases = (*spec.extra_cases, *(each.case for each in spec.regressions))
    named = {str(case["storage"]) for case in cases if case.get("storage") is not None}
    named |= set(spec.fuzz.storage) if spec.fuzz is not None else set()
    found = {"strides"} if named & _STRIDED else set()
    return frozenset(found | ({"alignment"} if named & _ALIGNED else set()))


def _relations(spec: Spec, problem: Problem, seed: int, number: int | None) -> Iterator[Relation]:
    pick = seeded_random(seed + 5)
    tensors = tensors_of(problem)
    movable = sorted(name for name, tensor in tensors.items() if tensor.numel())
    if not movable:
        return
    moved = pick.choice(movable)
    layouts = {} if pick.random() < 0.25 else _strided(tensors, movable, pick)
    if not layouts or pick.random() < 0.25:
        layouts[moved] = "offset"

    def made(layouts: Mapping[str, str]) -> Problem:
        alone = replace(problem, relations=lambda _kind: ())
        if has_ranks(spec):
            return replace(alone, layouts=layouts)
        return laid_out(alone, layouts)

    promises = promised_layouts(spec)
    relation = Relation(
        RELATION,
        "relations",
        layouts=layouts,
        laid_out=made,
        promises=promises - {"alignment"},
        words="a call with contiguous, aligned tensors",
    )
    yield relation
    for name in movable if number is not None and not has_ranks(spec) else ():
        # Tables, lengths, scales: the calls of a few cases are cheap.
        tensor = tensors[name]
        small = tensor.ndim < 2 or not tensor.is_floating_point()
        if small and "strided" in layouts_of(tensor):
            yield replace(relation, layouts={name: "strided"})
    for name in movable if number == 0 else ():
        yield replace(relation, layouts={name: "offset"}, promises=promises)


def _strided(
    tensors: Mapping[str, torch.Tensor], names: Sequence[str], pick: random.Random
) -> dict[str, str]:
    """A layout other than `offset` for each tensor that has one."""
    found = {name: layouts_of(tensors[name]) for name in names}
    return {name: pick.choice(layouts) for name, layouts in found.items() if layouts}
