"""Calls the code under test on a problem and returns its outputs and gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tlmatrix.backend.binding.calls import binding_error
from tlmatrix.backend.errors import EntryError
from tlmatrix.check.results import Results

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.backend.binding.binding import Binding
    from tlmatrix.problem.model import Problem, Tensors
    from tlmatrix.spec.model.spec import Spec

__all__ = ["execute"]


def execute(
    binding: Binding, problem: Problem, *, run_index: int = 0, wait: bool = True
) -> Results:
    """Run the code under test on a problem and return its outputs and gradients.

    Gradients are those of the outputs in `problem.cotangents`, if the spec checks gradients and
    the code is differentiable. Inputs are not copied.

    Args:
        binding: the code.
        problem: its inputs.
        run_index: the number of this run of the case, see `Backend.active`.
        wait: wait until the GPU has finished.

    Raises:
        EntryError: the code under test raised.
        BindingError: arguments or results do not match the spec.
    """
    wanted: Mapping[str, str] = {}
    if binding.differentiable and problem.cotangents and "gradients" in binding.spec.checks:
        wanted = problem.gradient_of
    leaves = {name: problem.inputs[name].detach().requires_grad_() for name in set(wanted.values())}
    names = {**problem.names, **problem.inputs, **leaves}
    absent: dict[str, str] = {}
    with binding.backend.active(run_index):
        call = binding.callee.prepare(names, problem)
        try:
            results = call()
        except Exception as error:
            raise EntryError(error) from error
        outputs = call.named(results)
        if wanted:
            gradients, absent = _gradients(binding.spec, problem, outputs, wanted, leaves)
            outputs |= gradients
        if wait:
            try:
                binding.backend.synchronize()
            except Exception as error:
                raise EntryError(error) from error
    return Results({name: tensor.detach() for name, tensor in outputs.items()}, absent)


def _gradients(
    spec: Spec,
    problem: Problem,
    outputs: Tensors,
    wanted: Mapping[str, str],
    leaves: Tensors,
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The gradients, and for each missing one the reason."""
    for name in problem.cotangents:
        if name not in outputs:
            raise binding_error(spec, f"returns no {name!r}, whose gradients are checked")
    detached = [name for name in problem.cotangents if not outputs[name].requires_grad]
    attached = [name for name in problem.cotangents if name not in detached]
    grads: tuple[torch.Tensor | None, ...] = (None,) * len(wanted)
    if attached:
        try:
            grads = torch.autograd.grad(
                [outputs[name] for name in attached],
                [leaves[name] for name in wanted.values()],
                [problem.cotangents[name] for name in attached],
                allow_unused=True,
            )
        except Exception as error:
            raise EntryError(error) from error
    found, absent = {}, {}
    for (gradient, name), grad in zip(wanted.items(), grads, strict=True):
        if grad is not None:
            found[gradient] = grad
        elif _no_effect(problem, gradient):
            found[gradient] = torch.zeros_like(leaves[name])
        elif detached:
            absent[gradient] = f"the output {detached[0]} does not require grad"
        else:
            absent[gradient] = f"the backward pass gives None for the input {name}"
    return found, absent


def _no_effect(problem: Problem, gradient: str) -> bool:
    """Whether the gradient of the reference is zero; None from the entry then means zero."""
    if not problem.has_reference:
        return False
    expected = problem.reference().get(gradient)
    return expected is not None and not bool(expected.any())
