"""Relations of calls with the same inputs: a given output, another CUDA stream, two derivatives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.problem.model import AutogradVariant, Relation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tlmatrix.problem.model import Problem, Tensors


def with_given_output(problem: Problem, output: str) -> Problem:
    """The problem with a call that gives the entry a tensor for `output` as its argument `out`.

    The tensor holds NaN before. It is what the results have as `output`, not what the call returns.
    """
    given = replace(
        problem, cotangents={}, gradient_of={}, given_output=output, relations=lambda _kind: ()
    )
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
        (replace(problem, side_stream=True, relations=lambda _kind: ()),),
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

    def nothing(_results: Tensors) -> Tensors:
        passed()
        return {}

    twice = replace(
        problem, autograd=AutogradVariant("second"), between=(), relations=lambda _kind: ()
    )
    relation = Relation("second_derivative", "relations", (twice,), left=nothing)
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
                (replace(problem, autograd=variant, between=(), relations=lambda _kind: ()),),
                because=f"{variant}; with ctx.save_for_backward autograd refuses such a backward",
                words="the call without the change",
            )
        passed()

    return problem.with_relations("relations", relations)


def with_two_streams(problem: Problem, passed: Callable[[], None]) -> Problem:
    """The problem with two calls on two simulated streams; `passed` is called if no race is found.

    See `tlmatrix.backend.binding.two_streams`.
    """

    def nothing(_results: Tensors) -> Tensors:
        passed()
        return {}

    both = replace(problem, two_streams=True, between=(), relations=lambda _kind: ())
    relation = Relation(
        "two_streams",
        "relations",
        (both,),
        left=nothing,
        because="the first of two calls on two streams, which nothing orders, races with the "
        "second, or with the copies that write its inputs and read its results",
    )
    return problem.with_relations("relations", lambda: (relation,))
