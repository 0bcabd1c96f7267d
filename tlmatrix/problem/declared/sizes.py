"""The declaration of a problem, and lint of the sizes and bounds of its tensors."""

from __future__ import annotations

from itertools import islice, product
from typing import TYPE_CHECKING, Any

from tlmatrix.problem.case_setup import listed_axis_values
from tlmatrix.spec.expr.expression import Expression, ExpressionError, shorten
from tlmatrix.spec.model.spec import DeclaredProblem
from tlmatrix.spec.yaml.text import flow

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

_TRIED = 1000
"""Most combinations of other axes that are tried for one that gives a valid size."""


def declared(spec: Spec) -> DeclaredProblem:
    """The declaration of a spec whose `problem` is a mapping."""
    assert isinstance(spec.problem, DeclaredProblem)
    return spec.problem


def lint_sizes(spec: Spec, problem: DeclaredProblem) -> Iterator[Issue]:
    """An issue for each axis value that gives an invalid size or bound in every case.

    With `cols` in a shape, `cols: [-1]`, `[.nan]` and `[abc]` are such values.
    """
    reported: set[tuple[str | int, ...]] = set()
    for expression, what, least in _numbers(problem):
        if not all(name in spec.axes for name in expression.names):
            continue  # An unknown name, which the loader reports.
        for path, axis, value in listed_axis_values(spec):
            if axis not in expression.names or path in reported:
                continue
            reason = _reason(expression, {**spec.axes, axis: (value,)}, least)
            if reason is not None:
                reported.add(path)
                yield spec.issue(
                    path, f"{axis}: {flow(value)} makes {what} of {expression.text!r} {reason}"
                )


def _numbers(problem: DeclaredProblem) -> Iterator[tuple[Expression, str, int | None]]:
    """Expressions that must be integers, a description of each, and its minimum."""
    outputs = problem.outputs
    tensors: dict[str, Any] = {**problem.inputs, **(outputs if isinstance(outputs, dict) else {})}
    for name, tensor in tensors.items():
        for size in tensor.shape or ():
            if isinstance(size, Expression):
                yield size, f"the size of {name}", 0
        for bound in getattr(tensor, "between", None) or ():
            if isinstance(bound, Expression):
                yield bound, f"the bound of {name}", None


def _reason(
    expression: Expression, axes: Mapping[str, tuple[Value, ...]], least: int | None
) -> str | None:
    """Why no combination of values gives a valid integer; None if one does."""
    names = sorted(expression.names)
    reason = None
    for values in islice(product(*(axes[name] for name in names)), _TRIED):
        try:
            found = expression.evaluate(dict(zip(names, values, strict=True)))
        except ExpressionError as error:
            reason = reason or f"impossible: {error.reason}"
            continue
        if type(found) is int and (least is None or found >= least):
            return None
        wanted = "a whole number" if least is None else f"a whole number of at least {least}"
        reason = reason or f"{shorten(flow(found), 40)}; write {wanted}"
    return reason
