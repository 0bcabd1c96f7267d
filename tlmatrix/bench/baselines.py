"""PyTorch's implementations of a problem, by name, as baselines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.backend.binding.entries import Entry
from tlmatrix.backend.signature import parameters_of
from tlmatrix.bench.attention import attention_run
from tlmatrix.bench.candidates import NotApplicableError, Run
from tlmatrix.bench.products import product_run
from tlmatrix.spec.importing import load
from tlmatrix.spec.model.spec import DeclaredProblem

if TYPE_CHECKING:
    from tlmatrix.backend.binding import PreparedCall
    from tlmatrix.bench.candidates import Named
    from tlmatrix.problem import Problem
    from tlmatrix.spec.model.spec import Spec


def torch_run(name: str, spec: Spec, problem: Problem) -> Run:
    """Return the implementation of this name for a problem.

    Raises:
        NotApplicableError: PyTorch has none, or it does not support the case.
    """
    if isinstance(spec.problem, DeclaredProblem):
        return _declared(name, spec, spec.problem, problem)
    match spec.problem:
        case "attention":
            return attention_run(name, problem)
        case "gemm":
            return product_run(name, problem)
    raise NotApplicableError(
        "exists for attention, gemm and declared problems; give `package.module:name` instead"
    )


def _declared(name: str, spec: Spec, declared: DeclaredProblem, problem: Problem) -> Run:
    """The problem's reference, called with the entry's inputs."""
    if name not in ("torch", "reference_compiled"):
        raise NotApplicableError("implements attention only")
    if declared.reference is None:
        raise NotApplicableError("is the problem's reference, and there is none")
    said = declared.reference
    reference: Any = load(spec, ("problem", "reference"), said.function)
    called = {"call": said.call, "returns": said.returns}
    alone = {
        "entry": said.function,
        "factory": None,
        "factory_args": {},
        "constructor_args": {},
        **called,
    }
    function = reference if name == "torch" else torch.compile(reference, dynamic=False)
    entry = Entry(spec.model_copy(update=alone), function, parameters_of(reference))

    def ready(inputs: Named) -> PreparedCall:
        return entry.prepare({**problem.names, **problem.inputs, **inputs}, problem)

    return Run(ready, ready({}).named)
