"""From a case to a problem: inputs, references, relations and cost, by families.

`family_for` finds the family a spec names; importing this package imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from tlmatrix.problem.model import (
    Cost,
    Dim,
    Family,
    Problem,
    Relation,
    RelationKind,
    TensorInfo,
    Tensors,
)
from tlmatrix.problem.words import nearest
from tlmatrix.spec.issues import SpecError

if TYPE_CHECKING:
    from tlmatrix.spec.models import Spec

__all__ = [
    "Cost",
    "Dim",
    "Family",
    "Problem",
    "Relation",
    "RelationKind",
    "TensorInfo",
    "Tensors",
    "family_for",
]

_BUILT_IN = {
    "attention": "tlmatrix.problem.attention.family:AttentionFamily",
}
_DECLARED = "tlmatrix.problem.declared.family:DeclaredFamily"
_PROTOCOL = ("lint", "compile_key", "problem")


def family_for(spec: Spec) -> Family:
    """The family of a spec's `problem`: built in, declared in the spec, or a user's class.

    A user's `package.module:Class` is imported and called with no argument; its folder must be
    importable.

    Raises:
        SpecError: no family of that name, or the class cannot be imported or does not follow
            the protocol; the issue stands at `problem` in the file.
    """
    name = spec.problem
    if not isinstance(name, str):
        return _load(spec, _DECLARED)
    if name in _BUILT_IN:
        return _load(spec, _BUILT_IN[name])
    if ":" in name:
        return _load(spec, name)
    message = f"unknown problem {name!r}{nearest(name, _BUILT_IN)}"
    remedy = " A problem of your own is written package.module:Class."
    raise SpecError([spec.issue(("problem",), message + remedy)])


def _load(spec: Spec, target: str) -> Family:
    def wrong(message: str) -> SpecError:
        return SpecError([spec.issue(("problem",), f"problem {target!r}: {message}")])

    module_name, _, class_name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise wrong(f"cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, class_name):
        raise wrong(f"{module_name} has no {class_name!r}{nearest(class_name, vars(module))}")
    try:
        family = getattr(module, class_name)()
    except Exception as error:
        raise wrong(f"cannot be made: {type(error).__name__}: {error}") from error
    missing = [method for method in _PROTOCOL if not callable(getattr(family, method, None))]
    if missing:
        raise wrong(f"has no method {missing[0]}; a family has {', '.join(_PROTOCOL)}")
    return cast("Family", family)
