"""Checks that gradients can be differentiated, or refuse to be.

With `create_graph=True` the gradients g of output gradients dy must depend on dy and on the inputs
as autograd records it. An autograd function whose backward pass launches kernels gives gradients
without a graph: a penalty of gradients in a loss then has no effect, silently. PyTorch's
`once_differentiable` makes it an error. A backward pass of operators of PyTorch has a graph, which
lacks what the forward pass saved as a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tlmatrix.check.finding import Finding, FindingsError
from tlmatrix.problem.model import InapplicableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tlmatrix.problem.model import Problem, Tensors

_WRONG = 0.2
"""Relative errors that no rounding explains."""

_STEP = 1e-3
"""The step of finite differences, relative to the inputs."""

_HINT = (
    "decorate `backward` with torch.autograd.function.once_differentiable, which makes a second "
    "derivative an error"
)


def check_second_derivative(
    problem: Problem,
    outputs: Tensors,
    wanted: Mapping[str, str],
    leaves: Tensors,
    *,
    on_ranks: bool = False,
) -> None:
    """Differentiate the gradients of a call: `wanted` names them, with the inputs in `leaves`.

    An entry that raises refuses, which is right. The gradients of one of several ranks must have a
    graph; its derivative is not compared, since it depends on the output gradients of the others.

    Raises:
        FindingsError: the second derivative is wrong.
        InapplicableError: the gradients are 0 or not finite, so that nothing can be said.
    """
    attached = {n: t for n, t in problem.cotangents.items() if outputs[n].requires_grad}
    if not attached:
        raise InapplicableError(())
    given = {name: each.detach().clone().requires_grad_() for name, each in attached.items()}
    inputs = list(dict.fromkeys(wanted.values()))
    try:
        found = torch.autograd.grad(
            [outputs[name] for name in given],
            [leaves[name] for name in inputs],
            list(given.values()),
            create_graph=True,
            allow_unused=True,
        )
    except Exception:  # noqa: BLE001 - of the code under test, which refuses
        return
    gradients = {
        name: each
        for name, of in wanted.items()
        if (each := found[inputs.index(of)]) is not None and bool(each.any())
    }
    norm = sum(float(each.detach().double().square().sum()) for each in gradients.values()) ** 0.5
    if not 0 < norm < float("inf"):
        raise InapplicableError(())
    # Linear in dy: a gradient that is not 0 depends on it.
    lost = [name for name, each in gradients.items() if not each.requires_grad]
    if lost:
        title = f"{', '.join(lost)} without a graph, with create_graph=True"
        detail = "a loss that contains them, such as a penalty of gradients, ignores them silently"
        raise _finding(title, lost[0], detail)
    if on_ranks:
        return
    weights = {name: each.detach().double() / norm for name, each in gradients.items()}
    total = torch.stack([(each.double() * weights[n]).sum() for n, each in gradients.items()]).sum()
    try:
        # Not `autograd.grad`, which does not reach the error of `once_differentiable`.
        torch.autograd.backward(total)
    except Exception:  # noqa: BLE001 - of the code under test, which refuses
        return
    second = [each.grad for each in given.values()]
    derivative = _dot(second, given.values())
    if abs(derivative - norm) > _WRONG * norm:
        title = (
            f"{', '.join(gradients)} differentiated by {', '.join(f'd{name}' for name in given)}: "
            f"the derivative in their direction is {derivative:.6g}, expected {norm:.6g}"
        )
        raise _finding(title, next(iter(gradients)), "gradients are linear in output gradients")
    of_inputs = {name: leaves[name].grad for name in inputs}
    _compare_with_differences(problem, weights, norm, of_inputs)


def _compare_with_differences(
    problem: Problem,
    weights: Tensors,
    norm: float,
    second: Mapping[str, torch.Tensor | None],
) -> None:
    """Compare the derivative by the inputs with differences of the reference's gradients."""
    if problem.with_inputs is None or not problem.has_reference:
        return
    generator = torch.Generator().manual_seed(0x5EC0)
    exact = {name: problem.inputs[name].detach().double() for name in second}
    directions = {
        name: (torch.randint(0, 2, each.shape, generator=generator) * 2.0 - 1).to(each)
        * each.abs().mean()
        for name, each in exact.items()
    }
    make = problem.with_inputs

    def value(step: float) -> float:
        moved = {name: each + step * directions[name] for name, each in exact.items()}
        reference = make(moved).reference()
        return _dot([reference[name] for name in weights], weights.values())

    def difference(step: float) -> float:
        return (value(step) - value(-step)) / (2 * step)

    try:
        if abs(value(0.0) - norm) > _WRONG * norm:
            return
        expected, nearer = difference(_STEP), difference(_STEP / 2)
    except Exception:  # noqa: BLE001 - the problem cannot be made of these inputs
        return
    got = _dot(second.values(), directions.values())
    size = max(abs(expected), abs(got))
    rounding = sum(
        float(each.double().square().sum()) * float(directions[name].square().mean())
        for name, each in second.items()
        if each is not None
    )
    smooth = abs(expected - nearer) <= 0.1 * _WRONG * abs(expected)
    if smooth and size > 1e-3 * norm and abs(got - expected) > _WRONG * max(size, rounding**0.5):
        title = (
            f"{', '.join(weights)} differentiated by {', '.join(second)}: the derivative in a "
            f"direction is {got:.6g}, expected {expected:.6g}"
        )
        detail = (
            "expected are finite differences of the reference; the backward pass takes something "
            "for a constant that depends on an input"
        )
        raise _finding(title, next(iter(weights)), detail)


def _dot(some: Iterable[torch.Tensor | None], others: Iterable[torch.Tensor]) -> float:
    pairs = zip(some, others, strict=True)
    return sum(
        float((one.detach().double() * other.detach().double()).sum())
        for one, other in pairs
        if one is not None
    )


def _finding(title: str, tensor: str, detail: str) -> FindingsError:
    return FindingsError(
        [
            Finding(
                "relations",
                title,
                tensor=tensor,
                pattern="second derivative",
                hint=_HINT,
                detail=detail,
            )
        ]
    )
