"""Parameters of callables: functions, `torch.autograd.Function`s, PyTorch operators."""

from __future__ import annotations

import inspect
from inspect import Parameter
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.problem.calling import Arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def parameters_of(function: Callable[..., Any]) -> Mapping[str, Parameter] | None:
    """Parameters by name; None if neither Python nor PyTorch knows them (some builtins)."""
    kind = autograd_function(function)
    if kind is not None:
        return _forward_parameters(kind)
    schema = _schema(function)
    if schema is not None:
        return _schema_parameters(schema)
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def autograd_function(function: object) -> type[Any] | None:
    """The `torch.autograd.Function` whose `apply` is `function`; None for other callables."""
    owner = getattr(function, "__self__", None)
    if getattr(function, "__name__", "") != "apply" or not isinstance(owner, type):
        return None
    return owner if issubclass(owner, torch.autograd.Function) else None


def _forward_parameters(kind: type[Any]) -> Mapping[str, Parameter]:
    """The parameters of `forward` without `ctx`, positional-only as those of `apply`."""
    named = list(inspect.signature(kind.forward).parameters.values())
    if kind.setup_context is torch.autograd.Function.setup_context:
        named = named[1:]
    positional = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return {
        each.name: each.replace(kind=Parameter.POSITIONAL_ONLY) if each.kind in positional else each
        for each in named
    }


def _schema(function: object) -> Any:  # noqa: ANN401 - PyTorch's, without a type
    """The schema of a PyTorch operator: an overload, a packet or a `custom_op`."""
    function = getattr(function, "_opoverload", function)
    if isinstance(function, torch._ops.OpOverloadPacket):  # noqa: SLF001 - its only name
        overloads = function.overloads()  # type: ignore[no-untyped-call]
        name = overloads[0] if len(overloads) == 1 else "default"
        function = getattr(function, name, None)
    return getattr(function, "_schema", None)


def _schema_parameters(schema: Any) -> Mapping[str, Parameter]:  # noqa: ANN401 - as above
    return {
        each.name: Parameter(
            each.name,
            Parameter.KEYWORD_ONLY if each.kwarg_only else Parameter.POSITIONAL_OR_KEYWORD,
            default=each.default_value if each.has_default_value() else Parameter.empty,
        )
        for each in schema.arguments
    }


def takes_any_keyword(parameters: Mapping[str, Parameter]) -> bool:
    """Whether there is a `**kwargs` parameter."""
    return any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())


def by_name(
    parameters: Mapping[str, Parameter],
    values: Mapping[str, Any],
    missing: Callable[[str], Exception],
) -> Arguments:
    """Arguments from `values`, by the names of the parameters.

    Raises `missing(name)` for a parameter that has neither a value nor a default.
    """
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if parameter.kind in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL):
            continue
        by_position = parameter.kind is Parameter.POSITIONAL_ONLY
        if name in values:
            value = values[name]
        elif parameter.default is Parameter.empty:
            raise missing(name)
        elif by_position:
            value = parameter.default
        else:
            continue
        if by_position:
            positional.append(value)
        else:
            keywords[name] = value
    return Arguments(tuple(positional), keywords)
