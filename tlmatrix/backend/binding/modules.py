"""Entries that are classes of `nn.Module`, constructed for each case.

The module's parameters, and buffers with the name of an input, are inputs of the problem; dots in
their names are written `_`. `torch.func.functional_call` replaces them by the inputs, so that
gradients reach these. Other buffers are copied for each call, which makes calls independent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.backend.binding.calls import binding_error, entry_arguments, error_at, prepared_call
from tlmatrix.backend.errors import wrapping_entry_errors
from tlmatrix.problem.calling import by_name, parameters_of, takes_any_keyword
from tlmatrix.spec.expr.expression import ExpressionError
from tlmatrix.spec.model.calling import expression
from tlmatrix.spec.values import canonical
from tlmatrix.words import listed, suggestion

if TYPE_CHECKING:
    import inspect
    from collections.abc import Mapping

    from tlmatrix.backend.binding.calls import Names, PreparedCall
    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.model.spec import Spec


@dataclass(frozen=True)
class ModuleEntry:
    """A class of `nn.Module`; modules are cached by constructor arguments."""

    spec: Spec
    kind: type[torch.nn.Module]
    constructor: Mapping[str, inspect.Parameter] | None
    forward: Mapping[str, inspect.Parameter] | None
    modules: dict[str, torch.nn.Module] = field(default_factory=dict)

    def prepare(self, names: Names, problem: Problem) -> PreparedCall:
        """Prepare the call of the case's module."""
        arguments = self._constructor_arguments(names)
        device = next(iter(problem.inputs.values())).device
        key = canonical({name: repr(value) for name, value in arguments.items()}) + str(device)
        if key not in self.modules:
            self.modules[key] = self._make(arguments, device)
        module = self.modules[key]
        state = self._state(module, names, problem)

        def call(*positional: object, **keywords: object) -> object:
            return torch.func.functional_call(module, state, positional, keywords)

        found = entry_arguments(self.spec, self.forward, names, problem)
        return prepared_call(self.spec, call, found, problem.returns)

    @property
    def parameters(self) -> frozenset[str] | None:
        """Names that the constructor and `forward` take; None if they take any."""
        read: set[str] = set()
        for taken in (self.constructor, self.forward):
            if taken is None or takes_any_keyword(taken):
                return None
            read |= taken.keys()
        return frozenset(read)

    def _constructor_arguments(self, names: Names) -> dict[str, Any]:
        found = {name: self._constant(name, names) for name in self.spec.constructor_args}
        if found or self.constructor is None:
            return found
        axes = {name: names[name] for name in self.spec.axes if name in names}

        def missing(name: str) -> Exception:
            words = suggestion(name, axes, "Axes")
            return binding_error(
                self.spec,
                f"no axis for {name!r} of its constructor{words}; or give "
                f"its value under `constructor_args`: {{{name}: …}}",
            )

        return dict(by_name(self.constructor, axes, missing).keywords)

    def _constant(self, name: str, names: Names) -> Any:  # noqa: ANN401 - an argument
        value = self.spec.constructor_args[name]
        taken = self.constructor
        if taken is not None and not takes_any_keyword(taken) and name not in taken:
            words = suggestion(name, taken, "It takes")
            message = f"the constructor has no parameter {name!r}{words}"
            raise error_at(self.spec)(("constructor_args", name), message)
        if not isinstance(value, str):
            return value
        try:
            return expression(value).evaluate(names)
        except ExpressionError as error:
            raise error_at(self.spec)(("constructor_args", name), f"{name}: {error}") from error

    def _make(self, arguments: dict[str, Any], device: torch.device) -> torch.nn.Module:
        gpus = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(gpus), torch.device(device):
            torch.manual_seed(0)
            with wrapping_entry_errors():
                return self.kind(**arguments)

    def _state(
        self, module: torch.nn.Module, names: Names, problem: Problem
    ) -> dict[str, torch.Tensor]:
        """The tensors that replace the module's parameters and buffers in a call."""
        state: dict[str, torch.Tensor] = {}
        absent = []
        for name, parameter in module.named_parameters():
            flat = name.replace(".", "_")
            if flat not in problem.inputs:
                absent.append(flat)
                continue
            tensor: torch.Tensor = names[flat]
            if tensor.shape != parameter.shape:
                shapes = f"{list(parameter.shape)}, but the input {flat!r} has {list(tensor.shape)}"
                raise binding_error(self.spec, f"its parameter {name!r} has the shape {shapes}")
            state[name] = tensor
        if absent:
            verb = "is not an input" if len(absent) == 1 else "are not inputs"
            raise binding_error(
                self.spec,
                f"its parameter{'s' * (len(absent) > 1)} {listed(absent)} {verb} of the problem; "
                f"declare {absent[0]!r} under `inputs`, or construct the module without it",
            )
        dtypes = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
        typed = "dtype" in (self.constructor or ())
        for name, buffer in module.named_buffers():
            flat = name.replace(".", "_")
            if flat in problem.inputs:
                state[name] = names[flat]
            elif buffer.is_floating_point() and len(dtypes) == 1 and not typed:
                # As `module.to(dtype)` would.
                state[name] = buffer.to(next(iter(dtypes)), copy=True)
            else:
                state[name] = buffer.clone()
        return state


def module_entry(spec: Spec, kind: type[torch.nn.Module]) -> ModuleEntry:
    """Make the entry of a class of `nn.Module`."""
    forward = parameters_of(kind.forward)
    if forward is not None:
        forward = dict(list(forward.items())[1:])
    return ModuleEntry(spec, kind, parameters_of(kind), forward)
