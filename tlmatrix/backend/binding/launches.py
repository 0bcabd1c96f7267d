"""A call of the code under test, made ready: its arguments, and the names of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tlmatrix.backend.errors import BindingError
from tlmatrix.check.poison import unwritten
from tlmatrix.problem.calling import ArgumentSource, named_results

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.problem.calling import Arguments, Path
    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.model.calling import Fill
    from tlmatrix.spec.model.spec import Spec

__all__ = ["Callee", "Launch", "Names", "given", "launch", "misfit", "wrong_of"]

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


class Callee(Protocol):
    """Makes ready a call of the code under test with what `names` holds."""

    def launch(self, names: Names, problem: Problem) -> Launch:
        """The call on a problem."""


def launch(
    spec: Spec,
    function: Callable[..., Any],
    arguments: Arguments,
    expected: Sequence[str],
) -> Launch:
    """The call of `function`, whose results are named as the spec says, else as `expected`."""
    wrong = wrong_of(spec)

    def named(results: object) -> dict[str, torch.Tensor]:
        returned = named_results(results, spec.returns, expected, arguments.written, wrong)
        return {**arguments.written, **returned}

    return Launch(function, arguments.positional, arguments.keywords, named)


def given(spec: Spec, names: Names, problem: Problem) -> ArgumentSource:
    """What the arguments of the spec's `call` are made from."""

    def allocate(name: str, fill: Fill) -> torch.Tensor:
        info = problem.outputs[name]
        first = next(iter(problem.inputs.values()), None)
        device = first.device if first is not None else names.get("device")
        if fill == "nan":
            return unwritten(info.shape, info.dtype, device)
        make = torch.zeros if fill == "zeros" else torch.empty
        return make(info.shape, dtype=info.dtype, device=device)

    results = spec.results or problem.returns
    return ArgumentSource(names, problem.outputs, results, allocate, wrong_of(spec))


def wrong_of(spec: Spec) -> Callable[[Path, str], BindingError]:
    """What makes an error of a place in the spec and words; of no place, at what is called."""

    def wrong(path: Path, message: str) -> BindingError:
        if not path:
            return misfit(spec, message)
        return BindingError([spec.issue(path, f"{path[0]}: {message}")])

    return wrong


def misfit(spec: Spec, message: str) -> BindingError:
    """An error at the entry or factory of the spec."""
    where = "entry" if spec.entry is not None else "factory"
    target = spec.entry or spec.factory
    return BindingError([spec.issue((where,), f"{where}: {target!r}: {message}")])
