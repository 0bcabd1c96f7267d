"""Entries that are functions, `Function.apply` of autograd, or operators of `torch.library`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.backend.binding.calls import argument_source, binding_error, error_at, prepared_call
from tlmatrix.problem.calling import Arguments, arguments_of, by_name, takes_any_keyword
from tlmatrix.spec.model.calling import names_of
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Mapping, Sequence

    from tlmatrix.backend.binding.calls import Names, PreparedCall
    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.model.spec import Spec

_OUT = "out"
"""The parameter that takes a tensor for the result, by PyTorch's convention."""


@dataclass(frozen=True)
class Entry:
    """A callable; `parameters` is None if they are unknown, as for some builtins."""

    spec: Spec
    function: Callable[..., Any]
    parameters: Mapping[str, inspect.Parameter] | None

    def prepare(self, names: Names, problem: Problem) -> PreparedCall:
        """Prepare the call on a problem."""
        arguments = entry_arguments(self.spec, self.parameters, names, problem)
        call = prepared_call(self.spec, self.function, arguments, problem.returns)
        if (output := problem.given_output) is None:
            return call
        buffer = argument_source(self.spec, names, problem).buffer(output, "nan", ())

        def named(results: object) -> dict[str, torch.Tensor]:
            returned = {} if results is None else call.named(results)
            return {**returned, output: buffer}

        return replace(call, keywords={**call.keywords, _OUT: buffer}, named=named)

    def optional_output(self, returned: Sequence[str]) -> str | None:
        """The output that the optional parameter `out=None` takes a tensor for; None if none."""
        parameter = (self.parameters or {}).get(_OUT)
        if parameter is None or parameter.default is not None or _OUT in names_of(self.spec.call):
            return None
        if parameter.kind is parameter.POSITIONAL_ONLY:
            return None
        return _OUT if _OUT in returned else returned[0] if len(returned) == 1 else None


def entry_arguments(
    spec: Spec,
    parameters: Mapping[str, inspect.Parameter] | None,
    names: Names,
    problem: Problem,
) -> Arguments:
    """Arguments as `call` lists them, by default one for each parameter.

    A parameter with the name of an output, no value and no default, gets a buffer to write to.
    """
    material = argument_source(spec, names, problem)
    if spec.call:
        return _in_order(spec, parameters, arguments_of(spec.call, material))
    if parameters is None:
        return Arguments((), dict(problem.inputs))
    written = {
        name: material.buffer(name, "nan", ())
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and name in material.outputs and name not in names
    }

    def missing(name: str) -> Exception:
        words = suggestion(name, sorted(names), "Known names")
        remedy = ". Give its value under `call`" if words.startswith(".") else ""
        return binding_error(spec, f"no value for its parameter {name!r}{words}{remedy}")

    found = by_name(parameters, {**names, **written}, missing)
    others: dict[str, Any] = {}
    if takes_any_keyword(parameters):
        others = {name: names[name] for name in spec.axes if name in names}
        others = {name: value for name, value in others.items() if name not in parameters}
    return Arguments(found.positional, {**found.keywords, **others}, written)


def _in_order(
    spec: Spec, parameters: Mapping[str, inspect.Parameter] | None, found: Arguments
) -> Arguments:
    """Turn keywords into positional arguments, as `Function.apply` takes them."""
    if parameters is None or not found.keywords:
        return found
    if not takes_any_keyword(parameters):
        for name in found.keywords:
            if name not in parameters:
                words = f"{name!r}{suggestion(name, parameters, 'It takes')}"
                raise error_at(spec)(("call", name), f"{spec.entry!r} has no parameter {words}")

    def missing(name: str) -> Exception:
        return binding_error(spec, f"`call` has no value for its parameter {name!r}")

    others = {name: value for name, value in found.keywords.items() if name not in parameters}
    inner = by_name(parameters, found.keywords, missing)
    return Arguments(inner.positional, {**inner.keywords, **others}, found.written)


def refuse_function_class(spec: Spec, found: object) -> None:
    """Check that the entry is not a class of `torch.autograd.Function`.

    Raises:
        BindingError: it is; its `apply` is the entry.
    """
    if isinstance(found, type) and issubclass(found, torch.autograd.Function):
        raise binding_error(spec, f"it is a class of autograd.Function; write {spec.entry}.apply")
