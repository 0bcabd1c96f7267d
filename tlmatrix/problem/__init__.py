"""Problems: inputs, reference, metamorphic relations and cost of a case, built by families.

`family_for` returns the family of a spec. Importing this package does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tlmatrix.problem.changed_arguments import with_changed_arguments
from tlmatrix.problem.model import (
    Cost,
    Dim,
    Family,
    Pair,
    PairRelation,
    Problem,
    Relation,
    RelationKind,
    TensorInfo,
    Tensors,
    UnusedRows,
)
from tlmatrix.spec.importing import load, refuse
from tlmatrix.tracebacks import unwinds
from tlmatrix.words import nearest

if TYPE_CHECKING:
    from tlmatrix.spec.model.spec import Spec

__all__ = [
    "Cost",
    "Dim",
    "Family",
    "Pair",
    "PairRelation",
    "Problem",
    "Relation",
    "RelationKind",
    "TensorInfo",
    "Tensors",
    "UnusedRows",
    "family_for",
    "with_changed_arguments",
]

BUILT_IN = {
    "attention": "tlmatrix.problem.attention:AttentionFamily",
    "collective": "tlmatrix.problem.collective:CollectiveFamily",
    "gemm": "tlmatrix.problem.gemm:GemmFamily",
}
_DECLARED = "tlmatrix.problem.declared:DeclaredFamily"
_PROTOCOL = ("lint", "compile_key", "problem")


def family_for(spec: Spec) -> Family:
    """The family of the `problem` of a spec: built in, declared in the spec, or a user's class.

    A user's `package.module:Class` is imported, from the folder of the spec if it is there, and
    called without arguments.

    Raises:
        SpecError: no family has that name, or the class cannot be imported or has not the methods
            of `Family`; located at `problem`.
    """
    name = spec.problem
    where = ("problem",)
    if not isinstance(name, str):
        target = _DECLARED
    elif name in BUILT_IN:
        target = BUILT_IN[name]
    elif ":" in name:
        target = name
    else:
        message = f"unknown problem {name!r}{nearest(name, BUILT_IN)}"
        raise refuse(spec, where, f"{message} Write your own family as package.module:Class")
    made = load(spec, where, target)
    if not callable(made):
        raise refuse(spec, where, f"{target!r} is not a class")
    try:
        family = made()
    except BaseException as error:
        if unwinds(error):
            raise
        raise refuse(spec, where, f"{target!r}() raised {type(error).__name__}: {error}") from error
    missing = [method for method in _PROTOCOL if not callable(getattr(family, method, None))]
    if missing:
        raise refuse(
            spec,
            where,
            f"{target!r} has no method {missing[0]}; a family has {', '.join(_PROTOCOL)}",
        )
    return cast("Family", family)
