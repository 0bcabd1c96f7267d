"""Prepares calls of the code under test: its arguments, and the names of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tlmatrix.backend.errors import BindingError
from tlmatrix.check.memory import unwritten
from tlmatrix.problem.calling import ArgumentSource, named_results

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.problem.calling import Arguments, Path
    from tlmatrix.problem.model import Problem
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

    return PreparedCall(function, arguments.positional, arguments.keywords, named)


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


def error_at(spec: Spec) -> Callable[[Path, str], BindingError]:
    """A function that makes an error at a key path of the spec; () is the entry or factory."""

    def error(path: Path, message: str) -> BindingError:
        if not path:
            return binding_error(spec, message)
        return BindingError([spec.issue(path, f"{path[0]}: {message}")])

    return error


def binding_error(spec: Spec, message: str) -> BindingError:
    """An error at the entry or factory of the spec."""
    where = "entry" if spec.entry is not None else "factory"
    target = spec.entry or spec.factory
    return BindingError([spec.issue((where,), f"{where}: {target!r}: {message}")])
