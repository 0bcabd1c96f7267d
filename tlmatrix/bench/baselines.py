"""PyTorch's own implementations of a problem, by name; what one of them cannot do it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.backend.binding.entries import Entry
from tlmatrix.backend.signature import parameters_of
from tlmatrix.bench.attention import attention_run
from tlmatrix.bench.candidates import CannotError, Run
from tlmatrix.bench.products import product_run
from tlmatrix.spec.importing import load
from tlmatrix.spec.models import DeclaredProblem

if TYPE_CHECKING:
    from tlmatrix.backend.binding import Launch
    from tlmatrix.bench.candidates import Named
    from tlmatrix.problem import Problem
    from tlmatrix.spec.models import Spec

__all__ = ["torch_run"]


def torch_run(name: str, spec: Spec, problem: Problem) -> Run:
    """The implementation of that name for a problem.

    Raises:
        CannotError: PyTorch has none, or it has not what the case asks for.
    """
    if isinstance(spec.problem, DeclaredProblem):
        return _declared(name, spec, spec.problem, problem)
    match spec.problem:
        case "attention":
            return attention_run(name, problem)
        case "gemm":
            return product_run(name, problem)
    raise CannotError("knows attention, gemm and declared problems; name `package.module:name`")


def _declared(name: str, spec: Spec, declared: DeclaredProblem, problem: Problem) -> Run:
    """The reference, on the tensors that the entry gets."""
    if name not in ("torch", "reference_compiled"):
        raise CannotError("is attention")
    if declared.reference is None:
        raise CannotError("is the reference, and the problem has none")
    said = declared.reference
    reference: Any = load(spec, ("problem", "reference"), said.function)
    called = {"call": said.call, "returns": said.returns}
    alone = {"entry": said.function, "factory": None, "compile": {}, "constructor": {}, **called}
    function = reference if name == "torch" else torch.compile(reference, dynamic=False)
    entry = Entry(spec.model_copy(update=alone), function, parameters_of(reference))

    def ready(inputs: Named) -> Launch:
        return entry.launch({**problem.names, **problem.inputs, **inputs}, problem)

    return Run(ready, ready({}).named)
