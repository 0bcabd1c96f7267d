"""Arguments of a call from `call:` or from parameters, and the names of its results by `returns:`.

Serves the code under test and references: functions, `torch.autograd.Function`s, PyTorch operators.
Errors are raised as `wrong(path, message)`, with the path of the key: `("call", 2)`,
`("returns", "lse")`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.spec.expr.expression import ExpressionError
from tlmatrix.spec.issues import KeyPath
from tlmatrix.spec.model.calling import (
    SKIPPED,
    Inout,
    OutputBuffer,
    expression,
    is_name,
    items_of,
)
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from tlmatrix.spec.model.calling import Call, Fill, Returns

Wrong = Callable[[KeyPath, str], Exception]


@dataclass(frozen=True)
class ArgumentSource:
    """The values and buffers that arguments may name.

    `names` are values by name; `allocate` makes buffers for the names in `outputs`. An output name
    alone in `call` is a buffer if it is in `results`, or if no value has that name.
    """

    names: Mapping[str, Any]
    outputs: Collection[str]
    results: Collection[str]
    allocate: Callable[[str, Fill], torch.Tensor]
    wrong: Wrong

    def buffer(self, name: str, fill: Fill, path: KeyPath) -> torch.Tensor:
        """A buffer for an output; `path` locates the name in the spec."""
        if name not in self.outputs:
            message = f"the problem has no output {name!r}"
            raise self.wrong(path, message + suggestion(name, self.outputs, "Its outputs"))
        return self.allocate(name, fill)

    def value(self, name: str, path: KeyPath) -> Any:  # noqa: ANN401 - an argument
        """The value of a name; `path` locates the name in the spec."""
        if name not in self.names:
            words = suggestion(name, sorted(self.names), "Known names")
            raise self.wrong(path, f"the problem has no {name!r}{words}")
        return self.names[name]

    def is_buffer(self, name: str) -> bool:
        """Whether a name alone stands for a buffer."""
        return name in self.results or (name in self.outputs and name not in self.names)


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call; `written` are those that hold outputs after the call."""

    positional: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, torch.Tensor] = field(default_factory=dict)


def arguments_of(call: Call, given: ArgumentSource) -> Arguments:
    """The arguments that `call` lists.

    Raises `given.wrong(path, message)` for an unknown name, an expression that cannot be
    evaluated, and an output that the problem does not have.
    """
    written: dict[str, torch.Tensor] = {}
    values = {key: _argument(item, ("call", key), given, written) for key, item in items_of(call)}
    if isinstance(call, dict):
        return Arguments((), {str(key): value for key, value in values.items()}, written)
    return Arguments(tuple(values.values()), {}, written)


def _argument(
    item: object, path: KeyPath, given: ArgumentSource, written: dict[str, torch.Tensor]
) -> Any:  # noqa: ANN401 - an argument
    match item:
        case list() | tuple():
            return [_argument(each, path, given, written) for each in item]
        case OutputBuffer():
            written[item.output] = buffer = given.buffer(item.output, item.fill, path)
            return buffer
        case Inout():
            value = given.value(item.inout, path)
            if not isinstance(value, torch.Tensor):
                message = f"{item.inout!r} is not a tensor: a call cannot change it in place"
                raise given.wrong(path, message)
            copy = _copy(value)
            if item.output != SKIPPED:
                written[item.output] = copy
            return copy
        case str() if is_name(item):
            if given.is_buffer(item):
                written[item] = buffer = given.buffer(item, "nan", path)
                return buffer
            return given.value(item, path)
        case str():
            try:
                return expression(item).evaluate(given.names)
            except ExpressionError as error:
                raise given.wrong(path, str(error)) from error
    return item


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the same sizes and strides, differentiable."""
    if tensor.numel() and any(
        stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        # Elements of an expanded tensor share memory; an operator cannot write them.
        return torch.empty_like(tensor, memory_format=torch.contiguous_format).copy_(tensor)
    made = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return made.copy_(tensor)


# Results ------------------------------------------------------------------------------------------


def named_results(
    results: object,
    returns: Returns,
    expected: Sequence[str],
    written: Collection[str],
    wrong: Wrong,
) -> dict[str, torch.Tensor]:
    """The tensors that a call returned, by name.

    Args:
        results: the returned value.
        returns: `returns` of the spec. If it is empty, the results are the first names of
            `expected` that are not in `written`, as many as there are.
        expected: the outputs of the problem.
        written: names of the outputs in buffers, which are no results.
        wrong: makes the exception for results that do not fit.
    """
    if isinstance(returns, dict):
        return {
            name: _tensor(name, _found(results, name, path, wrong), wrong)
            for name, path in returns.items()
        }
    order = [name for name in (returns or expected) if name not in written]
    if not order:
        return {}
    found = results if isinstance(results, tuple | list) else (results,)
    if results is None:
        found = ()
    if len(found) > len(order) or (returns and len(found) < len(order)):
        raise wrong(
            (),
            f"returned {len(found)} results, expected {len(order)}: {', '.join(order)}. "
            "List its results under `returns`, with _ for a result that is not checked",
        )
    if not found:
        if written and not returns:
            return {}
        raise wrong((), "returned None; it must return a tensor or a tuple of tensors")
    return {
        name: _tensor(name, value, wrong)
        for name, value in zip(order, found, strict=False)
        if name != SKIPPED
    }


def _tensor(name: str, value: object, wrong: Wrong) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    words = f"its result {name!r} is not a tensor but of type {type(value).__name__}"
    parts = _parts(value)
    if parts:
        words += f"; pick a part of it under `returns`: {{{name}: {parts[0]}}}"
        words += f" ({', '.join(parts)})" if len(parts) > 1 else ""
    raise wrong((), words)


def _found(results: object, name: str, path: str, wrong: Wrong) -> object:
    """The value at a path of keys, indices and attributes."""
    value, walked = results, "the result"
    for part in path.split("."):
        value = _part(value, part, name, walked, wrong)
        walked = f"{walked}.{part}"
    return value


def _part(value: object, part: str, name: str, walked: str, wrong: Wrong) -> object:
    number = int(part) if part.lstrip("-").isdecimal() else None
    if isinstance(value, Mapping):
        for key in (part, number):
            if key in value:
                return value[key]
    elif isinstance(value, Sequence) and not isinstance(value, str) and number is not None:
        if -len(value) <= number < len(value):
            return value[number]
    elif not isinstance(value, torch.Tensor) and number is None and hasattr(value, part):
        return getattr(value, part)
    kind = "a tensor" if isinstance(value, torch.Tensor) else f"of type {type(value).__name__}"
    parts = _parts(value)
    known = suggestion(part, parts, "It has") if parts else ""
    raise wrong(("returns", name), f"{walked} has no {part!r}: it is {kind}{known}")


def _parts(value: object) -> list[str]:
    """The parts that may continue a path: keys, indices or attributes."""
    if isinstance(value, torch.Tensor) or value is None:
        return []
    if isinstance(value, Mapping):
        return [str(key) for key in value]
    names = list(getattr(value, "_fields", None) or _attributes(value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return names or [str(index) for index in range(len(value))]
    return names


def _attributes(value: object) -> list[str]:
    """The public instance attributes of an object."""
    return [name for name in getattr(value, "__dict__", ()) if not name.startswith("_")]


# Parameters ---------------------------------------------------------------------------------------


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
