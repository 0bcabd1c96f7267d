"""Binds a spec to the code that it names: an entry, or a factory.

Factories are TileLang functions that return kernels, lazy or eager, or PrimFuncs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.binding.calls import (
    Entry,
    ModuleEntry,
    argument_source,
    binding_error,
    dtype_name,
    entry_arguments,
    error_at,
    module_entry,
    prepared_call,
    refuse_function_class,
)
from tlmatrix.backend.errors import BindingError, wrapping_entry_errors
from tlmatrix.backend.signature import is_tilelang_factory, parameters_of
from tlmatrix.problem.calling import Arguments, arguments_of, takes_any_keyword
from tlmatrix.spec.expr.expression import ExpressionError
from tlmatrix.spec.importing import load, make_importable
from tlmatrix.spec.model.calling import expression, names_of, written_by
from tlmatrix.spec.values import canonical
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import torch

    from tlmatrix.backend.backends import Backend
    from tlmatrix.backend.binding.calls import Callee, Names, PreparedCall
    from tlmatrix.problem.calling import ArgumentSource
    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value


@dataclass(frozen=True)
class Factory:
    """A TileLang factory; its kernels are cached by compile arguments."""

    spec: Spec
    function: Callable[..., Any]
    kernels: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def prepare(self, names: Names, problem: Problem) -> PreparedCall:
        """Prepare the call of the case's kernel."""
        arguments = arguments_of(self.spec.call, argument_source(self.spec, names, problem))
        kernel = self._kernel(names)
        if arguments.keywords and hasattr(kernel, "prim_func"):
            arguments = _by_position(self.spec, kernel, arguments)
        return prepared_call(self.spec, kernel, arguments, problem.returns)

    def _kernel(self, names: Names) -> Callable[..., Any]:
        arguments = {name: self._compiled(name, names) for name in self.spec.factory_args}
        key = canonical({name: _plain(value) for name, value in arguments.items()})
        if key not in self.kernels:
            self.kernels[key] = self._build(arguments)
        return self.kernels[key]

    def _compiled(self, name: str, names: Names) -> object:
        value = self.spec.factory_args[name]
        if not isinstance(value, str):
            return value
        try:
            return expression(value).evaluate(names)
        except ExpressionError as error:
            raise BindingError(
                [self.spec.issue(("factory_args", name), f"factory_args: {name}: {error}")]
            ) from error

    def _build(self, arguments: dict[str, Any]) -> Callable[..., Any]:
        # TileLang accepts only what has a hash.
        arguments = {name: _without_lists(value) for name, value in arguments.items()}
        if type(self.function).__name__ == "JITKernel":
            return self.function
        parameters = parameters_of(self.function)
        if parameters is not None:
            self._check_names(arguments, parameters)
            needed = [
                name
                for name, parameter in parameters.items()
                if parameter.default is parameter.empty
                and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
                and name not in arguments
            ]
            given = names_of(self.spec.call)
            lacks = [name for name in needed if name in self.spec.axes and name not in given]
            if lacks:
                added = ", ".join(f"{name}: {name}" for name in lacks)
                message = f"factory: {self.spec.factory!r} takes the axes {', '.join(lacks)}"
                remedy = f"; add them: factory_args: {{{added}}}"
                raise BindingError([self.spec.issue(("factory",), message + remedy)])
            if needed and self.spec.call:
                # An eager kernel takes tensors and compile arguments in one call.
                return partial(self.function, **arguments)
        with wrapping_entry_errors():
            made: Any = self.function(**arguments)
        return self._compile(made) if not callable(made) or _is_prim_func(made) else made

    def _check_names(
        self, arguments: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
    ) -> None:
        if any(item.kind is item.VAR_KEYWORD for item in parameters.values()):
            return
        for name in arguments:
            if name not in parameters:
                raise BindingError(
                    [
                        self.spec.issue(
                            ("factory_args", name),
                            f"factory_args: {self.spec.factory!r} has no parameter {name!r}"
                            + suggestion(name, parameters, "It takes"),
                        )
                    ]
                )

    def _compile(self, made: object) -> Callable[..., Any]:
        if not _is_prim_func(made):
            kind = type(made).__name__
            raise binding_error(self.spec, f"returns a value of type {kind}, not a kernel")
        import tilelang

        written = written_by(self.spec.call, self.spec.results)
        results = [name for name in self.spec.results if name not in written]
        count = len(made.params)  # type: ignore[attr-defined]
        outputs = list(range(count - len(results), count)) if results else None
        with wrapping_entry_errors():
            kernel: Callable[..., Any] = tilelang.compile(made, out_idx=outputs)
        return kernel


@dataclass(frozen=True)
class JitEntry:
    """A function of `@tilelang.jit` as an entry.

    An eager function is called like any other. A lazy one returns a kernel, which is called with
    the problem's tensors of the names of its parameters. If `call` is a mapping, keys that are not
    parameters of the function are arguments of the kernel.
    """

    spec: Spec
    function: Callable[..., Any]
    parameters: Mapping[str, inspect.Parameter]

    def prepare(self, names: Names, problem: Problem) -> PreparedCall:
        """Prepare the call of the function, and of the kernel that it may return."""
        names = {name: dtype_name(value) for name, value in names.items()}
        material = argument_source(self.spec, names, problem)
        own, rest = self._arguments(names, problem, material)
        written = dict(own.written)

        def call(*positional: object, **keywords: object) -> object:
            made = self.function(*positional, **keywords)
            if not hasattr(made, "prim_func"):
                return made
            tensors = self._tensors(made, rest, material, written)
            return made(*tensors)

        return prepared_call(self.spec, call, replace(own, written=written), problem.returns)

    def _arguments(
        self, names: Names, problem: Problem, material: ArgumentSource
    ) -> tuple[Arguments, dict[str, Any]]:
        """Arguments of the function, and those of `call` for the kernel."""
        if not isinstance(self.spec.call, dict):
            return entry_arguments(self.spec, self.parameters, names, problem), {}
        found = arguments_of(self.spec.call, material)
        own = {name: value for name, value in found.keywords.items() if name in self.parameters}
        rest = {name: value for name, value in found.keywords.items() if name not in own}
        return Arguments((), own, found.written), rest

    def _tensors(
        self,
        kernel: Any,  # noqa: ANN401 - compiled, interpreted or traced
        rest: Mapping[str, Any],
        material: ArgumentSource,
        written: dict[str, torch.Tensor],
    ) -> list[Any]:
        found = []
        for name in _inputs_of(kernel):
            if name in rest:
                found.append(rest[name])
            elif name in material.names or name not in material.outputs:
                found.append(material.value(name, ()))
            else:
                written[name] = material.buffer(name, "nan", ())
                found.append(written[name])
        return found


def _by_position(spec: Spec, kernel: Any, found: Arguments) -> Arguments:  # noqa: ANN401 - as above
    """Turn keywords into positional arguments, in the order of the kernel's parameters."""
    order = _inputs_of(kernel)
    for name in found.keywords:
        if name not in order:
            words = f"the kernel has no input {name!r}{suggestion(name, order, 'It takes')}"
            raise error_at(spec)(("call", name), words)
    for name in order:
        if name not in found.keywords:
            raise binding_error(spec, f"`call` has no value for the kernel's input {name!r}")
    return Arguments(tuple(found.keywords[name] for name in order), {}, found.written)


def _inputs_of(kernel: Any) -> list[str]:  # noqa: ANN401 - as above
    """Names of a kernel's arguments, in order: its parameters without those it allocates."""
    function = kernel.prim_func
    allocated = {int(index) % len(function.params) for index in kernel.out_idx or ()}
    return [
        str(function.buffer_map[each].name if each in function.buffer_map else each.name)
        for index, each in enumerate(function.params)
        if index not in allocated
    ]


def _is_prim_func(value: object) -> bool:
    return any(kind.__name__ == "PrimFunc" for kind in type(value).__mro__)


def _without_lists(value: object) -> object:
    return tuple(map(_without_lists, value)) if isinstance(value, list) else value


def _plain(value: object) -> Value:
    """A compile argument as plain data, for the key of its kernel."""
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


@dataclass(frozen=True)
class Binding:
    """A spec bound to the code it names, on one backend.

    Attributes:
        spec: the spec.
        backend: the backend, for the architectures of the spec.
        callee: prepares calls of the code.
        differentiable: whether autograd records the code: True for entries, False for factories.
        parameters: names of the problem that the code takes; None if it takes any.
    """

    spec: Spec
    backend: Backend
    callee: Callee
    differentiable: bool
    parameters: frozenset[str] | None

    def optional_output(self, returned: Sequence[str]) -> str | None:
        """The output that an optional argument `out` takes a tensor for; None if none."""
        return self.callee.optional_output(returned) if isinstance(self.callee, Entry) else None

    def default_options(self, problem: Problem) -> tuple[str, ...]:
        """Options of the code to which a problem gives the value of their default."""
        if not isinstance(self.callee, Entry | ModuleEntry):
            return ()  # a kernel would be compiled again
        return self.callee.default_options(problem)


def bind(spec: Spec, backend: Backend, *, roots: Iterable[Path] = ()) -> Binding:
    """Import the code that the spec names and check that it is callable, without calling it.

    Raises:
        ArchitectureError: the spec's kernels do not support the backend's architecture.
        SpecError: the entry or factory does not exist.
        BindingError: it is not callable.
    """
    backend = backend.targeting(spec.architectures)
    make_importable(spec.path, roots)
    where = "entry" if spec.entry is not None else "factory"
    target = spec.entry if spec.entry is not None else spec.factory
    assert target is not None
    with backend.importing():
        found = load(spec, (where,), target)
    if not callable(found):
        raise binding_error(spec, f"it is not callable: its type is {type(found).__name__}")
    if where == "factory":
        return Binding(spec, backend, Factory(spec, found), False, names_of(spec.call))
    return Binding(spec, backend, *_entry(spec, found))


def _makes_callables(kind: type) -> bool:
    """Whether objects of a class can be called."""
    return any("__call__" in vars(base) for base in kind.__mro__)


def _entry(spec: Spec, found: Callable[..., Any]) -> tuple[Callee, bool, frozenset[str] | None]:
    """The callee of an entry, whether autograd records it, and the names that it takes."""
    import torch

    refuse_function_class(spec, found)
    named = names_of(spec.call)
    if isinstance(found, type) and (issubclass(found, torch.nn.Module) or _makes_callables(found)):
        module = module_entry(spec, found)
        taken = module.parameters
        return module, True, taken if taken is None or not spec.call else taken | named
    if spec.constructor_args:
        message = (
            "constructor_args: the entry is not a class whose objects are called; remove the key"
        )
        raise BindingError([spec.issue(("constructor_args",), message)])
    parameters = parameters_of(found)
    if is_tilelang_factory(found):
        callee: Callee = JitEntry(spec, found, parameters or {})
    else:
        callee = Entry(spec, found, parameters)
    if spec.call:
        return callee, True, named
    if parameters is None or takes_any_keyword(parameters):
        return callee, True, None
    return callee, True, frozenset(parameters)
