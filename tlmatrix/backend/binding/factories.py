"""Factories: TileLang's functions that make kernels, lazy or eager, and functions of PrimFuncs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.binding.launches import given, launch, misfit
from tlmatrix.backend.errors import BindingError, EntryError
from tlmatrix.backend.signature import parameters_of
from tlmatrix.problem.calling import arguments_of
from tlmatrix.spec.calling import expression, written_by
from tlmatrix.spec.expressions import ExpressionError
from tlmatrix.spec.values import canonical
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Mapping

    from tlmatrix.backend.binding.launches import Launch, Names
    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.models import Spec
    from tlmatrix.spec.values import Value

__all__ = ["Factory"]


@dataclass(frozen=True)
class Factory:
    """A TileLang factory; the kernels it made are kept, by their compile arguments."""

    spec: Spec
    function: Callable[..., Any]
    kernels: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def launch(self, names: Names, problem: Problem) -> Launch:
        """The call of the case's kernel."""
        arguments = arguments_of(self.spec.call, given(self.spec, names, problem))
        kernel = self._kernel(names)
        return launch(self.spec, kernel, arguments, problem.returns[:1])

    def _kernel(self, names: Names) -> Callable[..., Any]:
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
            return expression(value).evaluate(names)
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
            raise misfit(self.spec, f"gave no kernel but a value of type {kind}")
        import tilelang

        written = written_by(self.spec.call, self.spec.results)
        results = [name for name in self.spec.results if name not in written]
        count = len(made.params)  # type: ignore[attr-defined]
        outputs = list(range(count - len(results), count)) if results else None
        kernel: Callable[..., Any] = tilelang.compile(made, out_idx=outputs)
        return kernel


def _is_prim_func(value: object) -> bool:
    return any(kind.__name__ == "PrimFunc" for kind in type(value).__mro__)


def _plain(value: object) -> Value:
    """A compile argument as plain data, to tell kernels apart."""
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
