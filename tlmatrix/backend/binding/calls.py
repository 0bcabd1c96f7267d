"""Prepares calls of the code under test: its arguments, and the names of its results.

Entries that are classes of `nn.Module` are constructed for each case. The module's parameters, and
buffers with the name of an input, are inputs of the problem; dots in their names are written `_`.
`torch.func.functional_call` replaces them by the inputs, so that gradients reach these. Other
buffers are copied for each call, which makes calls independent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tlmatrix.backend.errors import BindingError, wrapping_entry_errors
from tlmatrix.check.memory import unwritten
from tlmatrix.problem.calling import (
    Arguments,
    ArgumentSource,
    arguments_of,
    by_name,
    named_results,
    parameters_of,
    takes_any_keyword,
)
from tlmatrix.problem.model import InapplicableError
from tlmatrix.spec.expr.expression import ExpressionError
from tlmatrix.spec.model.calling import expression, items_of, names_of
from tlmatrix.spec.values import canonical
from tlmatrix.words import listed, suggestion

if TYPE_CHECKING:
    import inspect
    from collections.abc import Collection, Iterator, Sequence

    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.issues import KeyPath
    from tlmatrix.spec.model.calling import Fill
    from tlmatrix.spec.model.spec import Spec


Names = Mapping[str, Any]


@dataclass(frozen=True)
class PreparedCall:
    """A call of the code under test with its arguments.

    `named` maps the returned value to outputs by name.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    named: Callable[[object], dict[str, torch.Tensor]]

    def __call__(self) -> object:
        """Call the function; its exceptions are not wrapped."""
        result: object = self.function(*self.arguments, **self.keywords)
        return result


class Callee(Protocol):
    """Code under test that can be called on a problem."""

    def prepare(self, names: Names, problem: Problem) -> PreparedCall:
        """Prepare the call on a problem; `names` are the values for its arguments."""


def prepared_call(
    spec: Spec,
    function: Callable[..., Any],
    arguments: Arguments,
    expected: Sequence[str],
) -> PreparedCall:
    """Prepare a call of `function`; the spec names its results, by default as `expected`."""
    error = error_at(spec)

    def named(results: object) -> dict[str, torch.Tensor]:
        returned = named_results(results, spec.returns, expected, arguments.written, error)
        return {**arguments.written, **returned}

    given = (*arguments.positional, *arguments.keywords.values())
    if not any(isinstance(value, list) for value in given):
        return PreparedCall(function, arguments.positional, arguments.keywords, named)
    parameters = parameters_of(function) or {}
    by_position = dict(zip(parameters, arguments.positional, strict=False))
    positional = [_as_declared(parameters[name], value) for name, value in by_position.items()]
    keywords = {
        name: _as_declared(parameters[name], value) if name in parameters else value
        for name, value in arguments.keywords.items()
    }
    rest = arguments.positional[len(positional) :]
    return PreparedCall(function, (*positional, *rest), keywords, named)


def _as_declared(parameter: inspect.Parameter, value: object) -> object:
    """A list of a spec as the tuple that a parameter declares."""
    text = str(getattr(parameter.annotation, "__name__", parameter.annotation)).lower()
    declared = text.startswith("tuple") or isinstance(parameter.default, tuple)
    return tuple(value) if isinstance(value, list) and declared else value


def argument_source(spec: Spec, names: Names, problem: Problem) -> ArgumentSource:
    """The values and buffers for the arguments of the spec's `call`."""

    def allocate(name: str, fill: Fill) -> torch.Tensor:
        info = problem.outputs[name]
        first = next(iter(problem.inputs.values()), None)
        device = first.device if first is not None else names.get("device")
        if fill == "nan":
            return unwritten(info.shape, info.dtype, device)
        make = torch.zeros if fill == "zeros" else torch.empty
        return make(info.shape, dtype=info.dtype, device=device)

    results = spec.results or problem.returns
    return ArgumentSource(names, problem.outputs, results, allocate, error_at(spec))


def error_at(spec: Spec) -> Callable[[KeyPath, str], BindingError]:
    """A function that makes an error at a key path of the spec; () is the entry or factory."""

    def error(path: KeyPath, message: str) -> BindingError:
        if not path:
            return binding_error(spec, message)
        return BindingError([spec.issue(path, f"{path[0]}: {message}")])

    return error


def dtype_name(value: object) -> object:
    """The name of a dtype, as TileLang and specs write it; other values unchanged."""
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value


def default_options(
    spec: Spec,
    parameters: Mapping[str, inspect.Parameter] | None,
    given: Mapping[str, object],
    problem: Problem,
) -> Iterator[str]:
    """Options to which a call gives the value of their default.

    Args:
        spec: the spec, whose key `defaults` says what a default stands for that code computes.
        parameters: those of the code; None if they are unknown.
        given: what the spec lists for them; without it an option gets the value of its name.
        problem: its names are the values.
    """
    names: dict[str, Any] = {**problem.values, **problem.names}
    for option, parameter in (parameters or {}).items():
        if parameter.default is parameter.empty or parameter.kind is parameter.POSITIONAL_ONLY:
            continue
        if option not in (given or names):
            continue
        own = _evaluated(given[option], names) if given else names[option]
        if isinstance(own, torch.Tensor):
            continue
        default = parameter.default
        if option in spec.defaults:
            own, default = dtype_name(own), stated_default(spec, option, problem)
        if type(own) is type(default) and own == default:
            yield option


def stated_default(spec: Spec, option: str, problem: Problem) -> Any:  # noqa: ANN401 - a value
    """What the default of an option stands for in a problem, as the spec says; None if nothing."""
    names = {name: dtype_name(value) for name, value in {**problem.values, **problem.names}.items()}
    text = spec.defaults[option]
    found = _evaluated(text, names)
    return None if found is text and isinstance(text, str) else found


def _evaluated(item: object, names: Names) -> object:
    """The value of an argument; buffers, and expressions without a value, unchanged."""
    if not isinstance(item, str):
        return item
    try:
        return expression(item).evaluate(names)
    except ExpressionError:
        return item


def binding_error(spec: Spec, message: str) -> BindingError:
    """An error at the entry or factory of the spec."""
    where = "entry" if spec.entry is not None else "factory"
    target = spec.entry or spec.factory
    return BindingError([spec.issue((where,), f"{where}: {target!r}: {message}")])


# Entries: functions, `Function.apply` of autograd, operators of `torch.library` ----------------


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
        for name in problem.left_out:
            parameter = (self.parameters or {}).get(name)
            if name in problem.inputs and (parameter is None or parameter.default is not None):
                raise InapplicableError(())  # the entry needs this tensor
        arguments = _without(arguments, (*problem.left_out, *self._absent(problem)))
        call = prepared_call(self.spec, self.function, arguments, problem.returns)
        if (output := problem.given_output) is None:
            return call
        buffer = argument_source(self.spec, names, problem).buffer(output, "nan", ())

        def named(results: object) -> dict[str, torch.Tensor]:
            returned = {} if results is None else call.named(results)
            return {**returned, output: buffer}

        return replace(call, keywords={**call.keywords, _OUT: buffer}, named=named)

    def _absent(self, problem: Problem) -> Iterator[str]:
        """The parameters for inputs that the call leaves out.

        Raises:
            InapplicableError: the entry needs one of them.
        """
        given = dict(items_of(self.spec.call))
        for name in problem.absent:
            taken = [option for option, item in given.items() if item == name]
            for option in taken if given else [name]:
                parameter = (self.parameters or {}).get(str(option))
                if (
                    parameter is None
                    or parameter.default is not None
                    or parameter.kind is parameter.POSITIONAL_ONLY
                ):
                    raise InapplicableError(())
                yield str(option)
            if given and not taken:
                raise InapplicableError(())

    def default_options(self, problem: Problem) -> tuple[str, ...]:
        """Options to which a problem gives the value of their default."""
        given = dict(items_of(self.spec.call))
        if 0 in given:
            return ()  # by position
        named = {str(name): item for name, item in given.items()}
        return tuple(default_options(self.spec, self.parameters, named, problem))

    def optional_output(self, returned: Sequence[str]) -> str | None:
        """The output that the optional parameter `out=None` takes a tensor for; None if none."""
        parameter = (self.parameters or {}).get(_OUT)
        if parameter is None or parameter.default is not None or _OUT in names_of(self.spec.call):
            return None
        if parameter.kind is parameter.POSITIONAL_ONLY:
            return None
        return _OUT if _OUT in returned else returned[0] if len(returned) == 1 else None


def _without(arguments: Arguments, left_out: Collection[str]) -> Arguments:
    """The arguments without some keywords."""
    kept = {name: each for name, each in arguments.keywords.items() if name not in left_out}
    return replace(arguments, keywords=kept)


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


@dataclass(frozen=True)
class ModuleEntry:
    """A class, of `nn.Module` or of another kind; objects are cached by constructor arguments."""

    spec: Spec
    kind: type[Any]
    constructor: Mapping[str, inspect.Parameter] | None
    forward: Mapping[str, inspect.Parameter] | None
    modules: dict[str, Any] = field(default_factory=dict)

    def prepare(self, names: Names, problem: Problem) -> PreparedCall:
        """Prepare the call of the case's module."""
        if problem.absent:
            raise InapplicableError(())  # it may be a parameter
        arguments = self._constructor_arguments(names)
        arguments = {n: each for n, each in arguments.items() if n not in problem.left_out}
        device = next(iter(problem.inputs.values())).device
        key = canonical({name: repr(value) for name, value in arguments.items()}) + str(device)
        if key not in self.modules:
            self.modules[key] = self._make(arguments, device)
        module = self.modules[key]
        call = module
        if isinstance(module, torch.nn.Module):
            state = self._state(module, names, problem)

            def call(*positional: object, **keywords: object) -> object:
                return torch.func.functional_call(module, state, positional, keywords)

        found = entry_arguments(self.spec, self.forward, names, problem)
        return prepared_call(self.spec, call, _without(found, problem.left_out), problem.returns)

    def default_options(self, problem: Problem) -> tuple[str, ...]:
        """Options of the constructor to which a problem gives the value of their default."""
        given: dict[str, object] = {name: name for name in self.spec.axes}
        if self.spec.constructor_args:
            given = {**self.spec.constructor_args}
        return tuple(default_options(self.spec, self.constructor, given, problem))

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

    def _make(self, arguments: dict[str, Any], device: torch.device) -> Any:  # noqa: ANN401
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


def module_entry(spec: Spec, kind: type[Any]) -> ModuleEntry:
    """Make the entry of a class, whose call is its `forward` if it has one."""
    method = getattr(kind, "forward", kind.__call__)
    forward = parameters_of(method)
    if forward is not None:
        forward = dict(list(forward.items())[1:])
    return ModuleEntry(spec, kind, parameters_of(kind), forward)
