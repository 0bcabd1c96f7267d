"""Relations of other ways to call an entry, with the same inputs.

The entry gets an output, or is called on another CUDA stream, on two streams, with inputs that
change before the backward; gradients are differentiated; tensors have other memory layouts.

In some cases of every spec, tensors of a call get a layout of their own: inputs, tables, lengths,
scales, flags, output gradients. One of them is moved off its alignment, and no other, so that no
slow path that another tensor selects hides that it is not checked. In the first case of a spec each
tensor is moved, and what lowered kernels need of it is checked, which takes seconds a kernel.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.problem.distributions import seeded_random
from tlmatrix.problem.model import AutogradVariant, LayoutRelation, Relation
from tlmatrix.problem.storage import laid_out, layouts_of, tensors_of
from tlmatrix.spec.model.spec import has_ranks

if TYPE_CHECKING:
    import torch

    from tlmatrix.problem.model import Problem, Tensors
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

_OF_AUTOGRAD = ("aligned", "strided", "transposed")
"""The layouts that gradients of results have in turn in the first cases."""


def _variant(problem: Problem, **changes: Any) -> Problem:  # noqa: ANN401 - fields of the problem
    """The problem with other fields, without relations."""
    return replace(problem, relations=lambda _kind: (), **changes)


def _nothing(passed: Callable[[], None]) -> Callable[[Tensors], Tensors]:
    """No results to compare: what a call raises or reports is all; else it has `passed`."""

    def nothing(_results: Tensors) -> Tensors:
        passed()
        return {}

    return nothing


def with_given_output(problem: Problem, output: str) -> Problem:
    """The problem with a call that gives the entry a tensor for `output` as its argument `out`.

    The tensor holds NaN before. It is what the results have as `output`, not what the call returns.
    """
    given = _variant(problem, cotangents={}, gradient_of={}, given_output=output)
    relation = Relation(
        "given_output",
        "relations",
        (given,),
        left=lambda mine: {output: mine[output]},
        right=lambda results: {output: results[0][output]},
        because="the tensor that was given as `out` holds other values after the call",
        words="the result of a call without `out`",
    )
    return problem.with_relations("relations", lambda: (relation,))


def with_side_stream(problem: Problem) -> Problem:
    """The problem with a call on a side stream, on which its inputs are written late."""
    relation = Relation(
        "side_stream",
        "relations",
        (_variant(problem, side_stream=True),),
        because="called on a stream other than the default one, where its inputs are "
        "written 10 ms later; launch on `torch.cuda.current_stream()`, and let other "
        "streams wait for it",
        words="a call on the default stream",
    )
    return problem.with_relations("relations", lambda: (relation,))


def with_second_derivative(problem: Problem, passed: Callable[[], None]) -> Problem:
    """The problem with a call whose gradients are differentiated; `passed` is called if it passes.

    An entry may refuse. See `tlmatrix.backend.binding.second_derivative`.
    """
    twice = _variant(problem, autograd=AutogradVariant("second"), between=())
    relation = Relation("second_derivative", "relations", (twice,), left=_nothing(passed))
    return problem.with_relations("relations", lambda: (relation,))


def with_changed_inputs(
    problem: Problem, names: Sequence[str], passed: Callable[[], None]
) -> Problem:
    """The problem with a call for each input `names`, which changes in place before the backward.

    Autograd refuses that, or the gradients are those of the old values. `passed` is called after
    the last call.
    """

    def relations() -> Iterator[Relation]:
        for name in names:
            variant = AutogradVariant("changed", (name,))
            yield Relation(
                "changed_input",
                "relations",
                (_variant(problem, autograd=variant, between=()),),
                because=f"{variant}; with ctx.save_for_backward autograd refuses such a backward",
                words="the call without the change",
            )
        passed()

    return problem.with_relations("relations", relations)


def with_two_streams(problem: Problem, passed: Callable[[], None]) -> Problem:
    """The problem with two calls on two simulated streams; `passed` is called if no race is found.

    See `tlmatrix.backend.binding.execution`.
    """
    both = _variant(problem, two_streams=True, between=())
    relation = Relation(
        "two_streams",
        "relations",
        (both,),
        left=_nothing(passed),
        because="the first of two calls on two streams, which nothing orders, races with the "
        "second, or with the copies that write its inputs and read its results",
    )
    return problem.with_relations("relations", lambda: (relation,))


_TARGETS = (2**10, 2**8, 2**12, 2**14)
"""What thresholds are lowered to, as the seed of a case selects: at most its elements."""


def with_thresholds(
    problem: Problem, names: Sequence[str], seed: int, *, all_ways: bool
) -> Problem:
    """The problem with a call that takes the host code's path for large sizes.

    `names` are constants of the host code that are lowered. An entry may refuse. Half of the calls
    leave out options that have their defaults, which the host code may decide by size; with
    `all_ways` there are both calls, with the lowest thresholds.
    """
    elements = sum(tensor.numel() for tensor in problem.inputs.values())
    targets = [each for each in _TARGETS if each <= elements] or [min(_TARGETS)]
    target = min(_TARGETS) if all_ways else targets[seed % len(targets)]
    ways = list(dict.fromkeys([(), problem.defaults]))
    if not all_ways:
        ways = [ways[seed // len(_TARGETS) % len(ways)]]
    relations = [
        Relation(
            "thresholds",
            "relations",
            (_variant(problem, thresholds=target, left_out=left_out),),
            because=f"called with lower thresholds of host code: {', '.join(names)} divided by a "
            f"power of two, to {target} or somewhat more; if that path needs large sizes, assert "
            "them there",
            words="the call with the thresholds as they are",
        )
        for left_out in ways
    ]
    return problem.with_relations("relations", lambda: relations)


# Memory layouts ---------------------------------------------------------------------------------


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
        if has_ranks(spec):
            return _variant(problem, layouts=layouts)
        return laid_out(_variant(problem), layouts)

    promises = promised_layouts(spec)
    relation = LayoutRelation(
        RELATION,
        "relations",
        layouts=layouts,
        laid_out=made,
        promises=promises - {"alignment"},
        words="a call with contiguous, aligned tensors",
    )
    yield relation
    if number is not None and not has_ranks(spec):
        # Autograd passes on what a slice, a transposition or a concatenation makes of gradients.
        cotangents = {id(each) for each in problem.cotangents.values()}
        chosen = {}
        for name in (name for name in movable if id(tensors[name]) in cotangents):
            offered = [each for each in layouts_of(tensors[name]) if each in _OF_AUTOGRAD]
            if offered:
                chosen[name] = offered[number % len(offered)]
        if chosen.items() - layouts.items():
            yield replace(relation, layouts=chosen)
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
