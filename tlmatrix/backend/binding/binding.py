"""Binds a spec to the code that it names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.binding.calls import Entry, binding_error, module_entry, refuse_function_class
from tlmatrix.backend.binding.factories import Factory, JitEntry
from tlmatrix.backend.errors import BindingError
from tlmatrix.backend.signature import is_tilelang_factory, parameters_of
from tlmatrix.problem.calling import takes_any_keyword
from tlmatrix.spec.importing import load, make_importable
from tlmatrix.spec.model.calling import names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from tlmatrix.backend.backends import Backend
    from tlmatrix.backend.binding.calls import Callee
    from tlmatrix.spec.model.spec import Spec


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


def _entry(spec: Spec, found: Callable[..., Any]) -> tuple[Callee, bool, frozenset[str] | None]:
    """The callee of an entry, whether autograd records it, and the names that it takes."""
    import torch

    refuse_function_class(spec, found)
    named = names_of(spec.call)
    if isinstance(found, type) and issubclass(found, torch.nn.Module):
        module = module_entry(spec, found)
        taken = module.parameters
        return module, True, taken if taken is None or not spec.call else taken | named
    if spec.constructor_args:
        message = "constructor_args: the entry is not a class of nn.Module; remove the key"
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
