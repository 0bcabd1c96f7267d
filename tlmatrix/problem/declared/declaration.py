"""The declaration of a problem, as its spec writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.spec.model.spec import DeclaredProblem

if TYPE_CHECKING:
    from tlmatrix.spec.model.spec import Spec

__all__ = ["declared"]


def declared(spec: Spec) -> DeclaredProblem:
    """The declaration of a spec whose `problem` is a mapping."""
    assert isinstance(spec.problem, DeclaredProblem)
    return spec.problem
