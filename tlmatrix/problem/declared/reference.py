"""Imports and calls the reference of a declared problem."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.problem.calling import (
    Arguments,
    ArgumentSource,
    arguments_of,
    by_name,
    named_results,
    parameters_of,
    takes_any_keyword,
)
from tlmatrix.problem.declared.inputs import dtype_declared, sizes_of
from tlmatrix.problem.model import ReferenceFailedError
from tlmatrix.spec.importing import load, refuse
from tlmatrix.spec.model.spec import OutputDecl
from tlmatrix.tracebacks import unwinds
from tlmatrix.words import nearest

if TYPE_CHECKING:
    from tlmatrix.problem.family import CaseSetup
    from tlmatrix.spec.issues import KeyPath
    from tlmatrix.spec.model.calling import Fill
    from tlmatrix.spec.model.spec import DeclaredProblem, Reference

_NEEDS_A_GPU = re.compile(r"not compiled with CUDA|No CUDA GPU|NVIDIA driver")
"""What PyTorch says of a tensor on `cuda` where there is none."""
REFERENCE = ("problem", "reference")
"""The path of the reference in a spec."""


@dataclass(frozen=True)
class ReferenceCall:
    """A reference function, and how to call it."""

    setup: CaseSetup
    declaration: DeclaredProblem
    decl: Reference
    function: Callable[..., Any]
    parameters: Mapping[str, inspect.Parameter] | None

    @property
    def exact_dtype(self) -> torch.dtype | None:
        """The dtype of floating-point inputs for the exact reference; None for their own."""
        return {"float64": torch.float64, "float32": torch.float32}.get(self.decl.dtype)

    @property
    def roundoff(self) -> float:
        """The unit roundoff of exact results; 0 for float64."""
        dtype = self.exact_dtype
        if dtype is None:
            inputs = self.declaration.inputs.values()
            dtypes = {dtype_declared(self.setup, each.dtype_text) for each in inputs}
            return max((torch.finfo(d).eps / 2 for d in dtypes if d.is_floating_point), default=0.0)
        return 0.0 if dtype == torch.float64 else torch.finfo(dtype).eps / 2

    @property
    def operands(self) -> torch.dtype | None:
        """The dtype that a kernel rounds the operands of products to; None if it does not."""
        if self.decl.operands is None:
            return None
        dtype = dtype_declared(self.setup, self.decl.operands)
        return dtype if dtype.is_floating_point else None

    def __call__(
        self, tensors: Mapping[str, torch.Tensor], others: Mapping[str, Any]
    ) -> dict[str, torch.Tensor]:
        """Call the reference with inputs (`tensors`) and axes (`others`); outputs by name.

        Raises:
            SpecError: arguments do not fit the parameters, or results do not fit the outputs.
            ReferenceFailedError: the function raised.
        """
        arguments = self._arguments(tensors, others)
        try:
            results = self._results(arguments)
        except BaseException as error:
            if unwinds(error):
                raise
            raise ReferenceFailedError(self.decl.function, error) from error
        outputs = self.declaration.output_names
        found = {
            **arguments.written,
            **named_results(results, self.decl.returns, outputs, arguments.written, self._error),
        }
        for name in outputs:
            if name not in found:
                message = f"returned {len(found)} tensors; outputs are {', '.join(outputs)}"
                raise self._error((), message)
        return {name: found[name] for name in outputs}

    def _results(self, arguments: Arguments) -> Any:  # noqa: ANN401 - what the function returns
        """What it returns; tensors that it makes on `cuda` are on the CPU if there is no GPU."""
        try:
            return self.function(*arguments.positional, **arguments.keywords)
        except (AssertionError, RuntimeError) as error:
            if torch.cuda.is_available() or not _NEEDS_A_GPU.search(str(error)):
                raise
        from tlmatrix.interpreter.frontend.device import stand_in

        with stand_in():
            return self.function(*arguments.positional, **arguments.keywords)

    def _arguments(
        self, tensors: Mapping[str, torch.Tensor], others: Mapping[str, Any]
    ) -> Arguments:
        known = {**others, **tensors}
        if self.decl.call:
            return arguments_of(self.decl.call, self._given(known, tensors))
        if self.parameters is None:
            return Arguments((), dict(tensors))
        for name in tensors:
            if name not in self.parameters and not takes_any_keyword(self.parameters):
                raise self._error(
                    (),
                    f"the reference has no parameter {name!r}{nearest(name, self.parameters)}; "
                    "inputs are passed by name. To pass them otherwise, add `call`: "
                    "reference: {function: …, call: […]}",
                )

        def missing(name: str) -> Exception:
            words = f"the parameter {name!r} is neither an input nor an axis{nearest(name, known)}"
            return self._error((), words)

        found = by_name(self.parameters, known, missing)
        if not takes_any_keyword(self.parameters):
            return found
        return Arguments(found.positional, {**tensors, **found.keywords})

    def _given(
        self, names: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
    ) -> ArgumentSource:
        outputs = self.declaration.outputs
        device = next(iter(tensors.values())).device

        def allocate(name: str, fill: Fill) -> torch.Tensor:
            path = ("problem", "outputs", name, "shape")
            decl = outputs[name] if isinstance(outputs, dict) else OutputDecl()
            if decl.shape is None:
                message = f"the reference writes the output {name!r}; declare its shape here"
                raise refuse(self.setup.spec, path, message)
            dtype = self._buffer_dtype(decl, tensors)
            value = float("nan") if fill == "nan" and dtype.is_floating_point else 0
            shape = sizes_of(self.setup, decl.shape, path)
            return torch.full(shape, value, dtype=dtype, device=device)

        declared = self.declaration.output_names
        return ArgumentSource(names, declared, declared, allocate, self._error)

    def _buffer_dtype(self, decl: OutputDecl, tensors: Mapping[str, torch.Tensor]) -> torch.dtype:
        floating = [each.dtype for each in tensors.values() if each.is_floating_point()]
        if decl.dtype is not None:
            dtype = dtype_declared(self.setup, decl.dtype)
            return floating[0] if dtype.is_floating_point and floating else dtype
        return (floating or [each.dtype for each in tensors.values()])[0]

    def _error(self, path: KeyPath, message: str) -> Exception:
        return refuse(self.setup.spec, (*REFERENCE, *path), f"{self.decl.function}: {message}")


def reference_of(setup: CaseSetup, declaration: DeclaredProblem) -> ReferenceCall | None:
    """The reference of the declaration; None if it has none.

    Raises:
        SpecError: the reference cannot be imported, or is not callable.
    """
    decl = declaration.reference
    if decl is None:
        return None
    function = load(setup.spec, REFERENCE, decl.function)
    if not callable(function):
        raise refuse(setup.spec, REFERENCE, f"{decl.function!r} is not a function")
    return ReferenceCall(setup, declaration, decl, function, parameters_of(function))
