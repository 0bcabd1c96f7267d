"""A spec tied to the code that it names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tlmatrix.backend.binding.entries import Entry, refuse_function_class
from tlmatrix.backend.binding.factories import Factory
from tlmatrix.backend.binding.launches import misfit
from tlmatrix.backend.signature import parameters_of
from tlmatrix.problem.callables import takes_any_keyword
from tlmatrix.spec.calling import names_of
from tlmatrix.spec.importing import load, make_importable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tlmatrix.backend.backends import Backend
    from tlmatrix.backend.binding.launches import Callee
    from tlmatrix.spec.models import Spec

__all__ = ["Binding", "bind"]


@dataclass(frozen=True)
class Binding:
    """A spec tied to the code it names, on one backend.

    `differentiable` is true of an entry and false of a factory, whose kernels autograd does not
    see. `parameters` are the names of the problem that the code takes; None where it takes any.
    """

    spec: Spec
    backend: Backend
    callee: Callee
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
        raise misfit(spec, f"it is not callable but of type {type(found).__name__}")
    if where == "factory":
        factory = Factory(spec, found)
        return Binding(spec, backend, factory, differentiable=False, parameters=names_of(spec.call))
    refuse_function_class(spec, found)
    parameters = parameters_of(found)
    entry = Entry(spec, found, parameters)
    taken = None
    if spec.call:
        taken = names_of(spec.call)
    elif parameters is not None and not takes_any_keyword(parameters):
        taken = frozenset(parameters)
    return Binding(spec, backend, entry, differentiable=True, parameters=taken)
