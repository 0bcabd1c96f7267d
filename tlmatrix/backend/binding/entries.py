"""Entries: functions, `Function.apply` of autograd, operators of `torch.library`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.backend.binding.launches import given, launch, misfit, wrong_of
from tlmatrix.problem.callables import by_name, takes_any_keyword
from tlmatrix.problem.calling import Arguments, arguments_of
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Mapping

    from tlmatrix.backend.binding.launches import Launch, Names
    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.model.spec import Spec

__all__ = ["Entry", "entry_arguments", "refuse_function_class"]


@dataclass(frozen=True)
class Entry:
    """A callable; `parameters` is None where nothing is known of them (some builtins)."""

    spec: Spec
    function: Callable[..., Any]
    parameters: Mapping[str, inspect.Parameter] | None

    def launch(self, names: Names, problem: Problem) -> Launch:
        """The call on a problem."""
        arguments = entry_arguments(self.spec, self.parameters, names, problem)
        return launch(self.spec, self.function, arguments, problem.returns)


def entry_arguments(
    spec: Spec,
    parameters: Mapping[str, inspect.Parameter] | None,
    names: Names,
    problem: Problem,
) -> Arguments:
    """Arguments as `call` lists them, or else those that parameters name.

    A parameter that has the name of an output, and neither a value nor a default, gets a buffer.
    """
    material = given(spec, names, problem)
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
        remedy = ". Say what it gets under `call`" if words.startswith(".") else ""
        return misfit(spec, f"no value for its parameter {name!r}{words}{remedy}")

    found = by_name(parameters, {**names, **written}, missing)
    others: dict[str, Any] = {}
    if takes_any_keyword(parameters):
        others = {name: names[name] for name in spec.axes if name in names}
        others = {name: value for name, value in others.items() if name not in parameters}
    return Arguments(found.positional, {**found.keywords, **others}, written)


def _in_order(
    spec: Spec, parameters: Mapping[str, inspect.Parameter] | None, found: Arguments
) -> Arguments:
    """Keywords of parameters that are taken by position alone (`Function.apply`) in their order."""
    if parameters is None or not found.keywords:
        return found
    if not takes_any_keyword(parameters):
        for name in found.keywords:
            if name not in parameters:
                words = f"{name!r}{suggestion(name, parameters, 'It takes')}"
                raise wrong_of(spec)(("call", name), f"{spec.entry!r} has no parameter {words}")

    def missing(name: str) -> Exception:
        return misfit(spec, f"`call` has no value for its parameter {name!r}")

    others = {name: value for name, value in found.keywords.items() if name not in parameters}
    inner = by_name(parameters, found.keywords, missing)
    return Arguments(inner.positional, {**inner.keywords, **others}, found.written)


def refuse_function_class(spec: Spec, found: object) -> None:
    """A class of autograd is called by its `apply`.

    Raises:
        BindingError: `found` is such a class.
    """
    if isinstance(found, type) and issubclass(found, torch.autograd.Function):
        raise misfit(spec, f"it is a class; name what calls it: {spec.entry}.apply")
