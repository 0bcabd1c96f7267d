"""Between a spec and the code it names: what is called, with which arguments, giving what.

An `entry` is called with keyword arguments, matched to its parameters by name. A `factory` is
TileLang's: called with the `compile` arguments it gives a kernel, which is called with the
tensors of `call`, in order. Either way `execute` gives named outputs and their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tlmatrix.backend.errors import BindingError, EntryError
from tlmatrix.backend.signature import parameters_of
from tlmatrix.check.poison import unwritten
from tlmatrix.spec.expressions import Expression, ExpressionError
from tlmatrix.spec.importing import load, make_importable
from tlmatrix.spec.values import canonical
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    import inspect
    from collections.abc import Iterable
    from pathlib import Path

    from tlmatrix.backend.backends import Backend
    from tlmatrix.problem.model import Problem, TensorInfo, Tensors
    from tlmatrix.spec.models import Spec
    from tlmatrix.spec.values import Value

__all__ = ["Binding", "Launch", "bind", "execute"]

Names = Mapping[str, Any]


@dataclass(frozen=True)
class Launch:
    """A call of the code under test, its arguments ready.

    `named` gives the outputs by name, from what the call returned.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    named: Callable[[object], dict[str, torch.Tensor]]

    def __call__(self) -> object:
        """Call it, as anyone would; whatever it raises is its own."""
        result: object = self.function(*self.arguments, **self.keywords)
        return result


class _Callee(Protocol):
    """Makes ready a call of the code under test with what `names` holds."""

    def launch(self, names: Names, problem: Problem) -> Launch: ...


@dataclass(frozen=True)
class Binding:
    """A spec tied to the code it names, on one backend.

    `differentiable` is true of an entry and false of a factory, whose kernels autograd does not
    see. `parameters` are the keyword names that an entry takes; None where it takes any.
    """

    spec: Spec
    backend: Backend
    callee: _Callee
    differentiable: bool
    parameters: frozenset[str] | None


def bind(spec: Spec, backend: Backend, *, roots: Iterable[Path] = ()) -> Binding:
    """Import what the spec names and check that it can be called; nothing is called yet.

    Raises:
        ArchitectureError: the spec's kernels are for other architectures than the backend's.
        SpecError: the entry or factory is not there.
        BindingError: it is not callable.
    """
    backend = backend.targeting(spec.architectures)
    make_importable(spec.path, roots)
    where = "entry" if spec.entry is not None else "factory"
    target = spec.entry if spec.entry is not None else spec.factory
    assert target is not None
    found = load(spec, (where,), target)
    if not callable(found):
        kind = type(found).__name__
        raise BindingError(
            [spec.issue((where,), f"{where}: {target!r} is not callable but of type {kind}")]
        )
    if where == "entry":
        parameters = parameters_of(found)
        entry = _Entry(spec, found, parameters)
        anything = parameters is None or any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
        )
        keywords = None if anything else frozenset(parameters or ())
        return Binding(spec, backend, entry, differentiable=True, parameters=keywords)
    factory = _Factory(spec, found)
    return Binding(spec, backend, factory, differentiable=False, parameters=frozenset(spec.call))


def execute(
    binding: Binding, problem: Problem, *, turn: int = 0, wait: bool = True
) -> dict[str, torch.Tensor]:
    """Run the code under test on a problem: its outputs, and the gradients the problem asks for.

    Gradients are those of the outputs in `problem.cotangents`, if the spec checks gradients and
    the code is differentiable. Tensors are given to the code as they are, not copied. `turn`
    counts the runs of a case (see `Backend.active`). Without `wait` a GPU may still be at it.

    Raises:
        EntryError: the code under test raised.
        BindingError: arguments or results do not fit what the spec says.
    """
    wanted: Mapping[str, str] = {}
    if binding.differentiable and problem.cotangents and "gradients" in binding.spec.checks:
        wanted = problem.gradient_of
    leaves = {name: problem.inputs[name].detach().requires_grad_() for name in set(wanted.values())}
    names = {**problem.names, **problem.inputs, **leaves}
    with binding.backend.active(turn):
        launch = binding.callee.launch(names, problem)
        try:
            results = launch()
        except Exception as error:
            raise EntryError(error) from error
        outputs = launch.named(results)
        if wanted:
            outputs |= _gradients(binding.spec, problem, outputs, wanted, leaves)
        if wait:
            try:
                binding.backend.synchronize()
            except Exception as error:
                raise EntryError(error) from error
    return {name: tensor.detach() for name, tensor in outputs.items()}


def _gradients(
    spec: Spec,
    problem: Problem,
    outputs: Tensors,
    wanted: Mapping[str, str],
    leaves: Tensors,
) -> dict[str, torch.Tensor]:
    for name in problem.cotangents:
        if name not in outputs:
            raise _misfit(spec, f"returns no {name!r}, whose gradients are checked")
        if not outputs[name].requires_grad:
            raise _misfit(
                spec,
                f"its output {name!r} does not require grad, so there is no gradient to check; "
                "make the entry differentiable, or list `checks` without gradients",
            )
    try:
        grads = torch.autograd.grad(
            [outputs[name] for name in problem.cotangents],
            [leaves[name] for name in wanted.values()],
            list(problem.cotangents.values()),
            allow_unused=True,
        )
    except Exception as error:
        raise EntryError(error) from error
    for name, grad in zip(wanted.values(), grads, strict=True):
        if grad is None:
            raise _misfit(spec, f"no gradient reaches the input {name!r}")
    return dict(zip(wanted, grads, strict=True))


def _misfit(spec: Spec, message: str) -> BindingError:
    where = "entry" if spec.entry is not None else "factory"
    target = spec.entry or spec.factory
    return BindingError([spec.issue((where,), f"{where}: {target!r}: {message}")])


def _named(spec: Spec, results: object, returns: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Name what a call gave back: one tensor, or several in the order of `returns`."""
    found = results if isinstance(results, tuple | list) else (results,)
    if results is None:
        found = ()
    if len(found) > len(returns) or (spec.returns and len(found) < len(returns)):
        raise _misfit(
            spec,
            f"gave {len(found)} results, but {len(returns)} have names: {', '.join(returns)}. "
            "List what it returns under `returns`",
        )
    if not found:
        raise _misfit(spec, "returned nothing; it must return a tensor or a tuple of tensors")
    named = dict(zip(returns, found, strict=False))
    for name, value in named.items():
        if not isinstance(value, torch.Tensor):
            kind = type(value).__name__
            raise _misfit(spec, f"its result {name!r} is not a tensor but of type {kind}")
    return named


@dataclass(frozen=True)
class _Entry:
    spec: Spec
    function: Callable[..., Any]
    parameters: Mapping[str, inspect.Parameter] | None

    def launch(self, names: Names, problem: Problem) -> Launch:
        returns = self.spec.returns or problem.returns
        return Launch(
            self.function,
            (),
            self._arguments(names, problem),
            lambda results: _named(self.spec, results, returns),
        )

    def _arguments(self, names: Names, problem: Problem) -> dict[str, Any]:
        if self.parameters is None:
            return dict(problem.inputs)
        arguments: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments |= {
                    axis: names[axis]
                    for axis in self.spec.axes
                    if axis in names and axis not in self.parameters
                }
            elif name in names and parameter.kind is not parameter.POSITIONAL_ONLY:
                arguments[name] = names[name]
            elif parameter.default is parameter.empty and parameter.kind in (
                parameter.POSITIONAL_OR_KEYWORD,
                parameter.KEYWORD_ONLY,
            ):
                raise _misfit(
                    self.spec,
                    f"no value for its parameter {name!r}"
                    + suggestion(name, sorted(names), "Known names"),
                )
        return arguments


@dataclass(frozen=True)
class _Factory:
    """A TileLang factory; the kernels it made are kept, by their compile arguments."""

    spec: Spec
    function: Callable[..., Any]
    kernels: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def launch(self, names: Names, problem: Problem) -> Launch:
        kernel = self._kernel(names)
        returns = self.spec.returns or problem.returns[:1]
        buffers = {
            name: _buffer(self._info(name, problem), names, problem)
            for name in self.spec.call
            if name in returns
        }
        arguments = [buffers[name] if name in buffers else names[name] for name in self.spec.call]
        given = tuple(name for name in returns if name not in buffers)

        def named(results: object) -> dict[str, torch.Tensor]:
            return {**buffers, **_named(self.spec, results, given)} if given else dict(buffers)

        return Launch(kernel, tuple(arguments), {}, named)

    def _info(self, name: str, problem: Problem) -> TensorInfo:
        if name not in problem.outputs:
            raise BindingError(
                [
                    self.spec.issue(
                        ("returns",),
                        f"returns: the problem has no output {name!r}"
                        + suggestion(name, problem.outputs, "Its outputs"),
                    )
                ]
            )
        return problem.outputs[name]

    def _kernel(self, names: Names) -> Callable[..., Any]:
        written = self.spec.returns or ()
        unknown = [name for name in self.spec.call if name not in names and name not in written]
        if unknown:
            name = unknown[0]
            index = self.spec.call.index(name)
            raise BindingError(
                [
                    self.spec.issue(
                        ("call", index),
                        f"call: the problem has no {name!r}"
                        + suggestion(name, sorted(names), "Known names"),
                    )
                ]
            )
        arguments = {name: self._compiled(name, names) for name in self.spec.compile}
        key = canonical({name: _plain(value) for name, value in arguments.items()})
        if key not in self.kernels:
            self.kernels[key] = self._build(arguments)
        return self.kernels[key]

    def _compiled(self, name: str, names: Names) -> object:
        value = self.spec.compile[name]
        if not isinstance(value, str):
            return value
        try:
            return Expression(value).evaluate(names)
        except ExpressionError as error:
            raise BindingError(
                [self.spec.issue(("compile", name), f"compile: {name}: {error}")]
            ) from error

    def _build(self, arguments: dict[str, Any]) -> Callable[..., Any]:
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
            if needed and self.spec.call:
                # An eager kernel takes tensors and compile arguments in one call.
                return lambda *tensors: self.function(*tensors, **arguments)
        try:
            made = self.function(**arguments)
            if not callable(made) or _is_prim_func(made):
                made = self._compile(made)
        except BindingError:
            raise
        except Exception as error:
            raise EntryError(error) from error
        kernel: Callable[..., Any] = made
        return kernel

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
                            ("compile", name),
                            f"compile: {self.spec.factory!r} has no parameter {name!r}"
                            + suggestion(name, parameters, "It takes"),
                        )
                    ]
                )

    def _compile(self, made: object) -> Callable[..., Any]:
        if not _is_prim_func(made):
            kind = type(made).__name__
            raise _misfit(self.spec, f"gave no kernel but a value of type {kind}")
        import tilelang

        results = [name for name in self.spec.returns if name not in self.spec.call]
        count = len(made.params)  # type: ignore[attr-defined]
        outputs = list(range(count - len(results), count)) if results else None
        kernel: Callable[..., Any] = tilelang.compile(made, out_idx=outputs)
        return kernel


def _is_prim_func(value: object) -> bool:
    return any(kind.__name__ == "PrimFunc" for kind in type(value).__mro__)


def _plain(value: object) -> Value:
    """A compile argument as plain data, to tell kernels apart."""
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def _buffer(info: TensorInfo, names: Names, problem: Problem) -> torch.Tensor:
    """A buffer for the kernel to write, full of what no kernel would write."""
    first = next(iter(problem.inputs.values()), None)
    device = first.device if first is not None else names.get("device")
    return unwritten(info.shape, info.dtype, device)
