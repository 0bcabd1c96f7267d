"""The spec language: YAML text in, a checked `Spec` out. Imports neither torch nor tilelang."""

from tlmatrix.spec.expr.expression import Expression, ExpressionError
from tlmatrix.spec.issues import Issue, SpecError
from tlmatrix.spec.loader import find_specs, load_spec, parse_spec
from tlmatrix.spec.model.spec import Spec

__all__ = [
    "Expression",
    "ExpressionError",
    "Issue",
    "Spec",
    "SpecError",
    "find_specs",
    "load_spec",
    "parse_spec",
]
