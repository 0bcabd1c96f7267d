"""Problems that a spec declares: inputs, outputs and reference.

The family; torch is imported when a problem is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice, product
from typing import TYPE_CHECKING, Any

from tlmatrix.dtypes import DTYPES
from tlmatrix.problem.distributions import OF_PARTS, SAFE, explain_distribution
from tlmatrix.problem.family import CaseSetup, compile_key, listed_axis_values
from tlmatrix.problem.lint import declared, lint_arguments
from tlmatrix.problem.names import STORAGE, VALUES, Names
from tlmatrix.spec.expr.expression import Expression, ExpressionError, shorten
from tlmatrix.spec.model.packed import packed_axes
from tlmatrix.spec.yaml.text import flow

if TYPE_CHECKING:
    import torch

    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.issues import Issue, KeyPath
    from tlmatrix.spec.model.spec import DeclaredProblem, Spec
    from tlmatrix.spec.values import Value

NAMES = Names("declared", axes=VALUES, settings=STORAGE, others=frozenset({"device"}))


class DeclaredFamily:
    """Declared problems: inputs by shape and dtype, outputs by name, a reference in PyTorch."""

    optional_axes = frozenset({*NAMES.axes, *NAMES.settings})
    special_values = (*SAFE, *OF_PARTS.values())

    def lint(self, spec: Spec) -> Iterable[Issue]:
        """See `Family.lint`; the spec loader checks names and dtypes."""
        return list(_lint(spec))

    def compile_key(self, spec: Spec, values: Mapping[str, Value]) -> str:
        """See `Family.compile_key`; for an entry, only packed and optional axes are data."""
        kept = tuple(sorted({decl.dtype_text[1:] for decl in declared(spec).inputs.values()}))
        return compile_key(
            spec, values, values, data=self.optional_axes.union(packed_axes(spec)), kept=kept
        )

    def problem(
        self, spec: Spec, values: Mapping[str, Value], *, seed: int, device: torch.device
    ) -> Problem:
        """The problem of a case.

        Raises:
            SpecError: the reference cannot be imported, has a parameter that is neither input nor
                axis, or does not return the declared outputs.
            ReferenceFailedError: the reference raised.
        """
        from tlmatrix.problem.declared.build import declared_case
        from tlmatrix.problem.declared.relations import DeclaredRelations

        case = declared_case(CaseSetup(spec, values, seed, device))
        return replace(case.problem(), relations=DeclaredRelations(case))


def _lint(spec: Spec) -> Iterator[Issue]:
    for path, axis, value in listed_axis_values(spec):
        if reason := NAMES.explain(axis, value):
            yield spec.issue(path, f"{axis}: {reason}")
    problem = declared(spec)
    yield from lint_sizes(spec, problem)
    cotangents = {f"d{name}" for name in problem.output_names}
    tensors = {*problem.inputs, *problem.tensors, *cotangents}
    yield from lint_arguments(spec, NAMES.others.union(NAMES.axes), tensors)
    for name, decl in problem.inputs.items():
        path = ("problem", "inputs", name)
        if decl.fill is not None and (reason := explain_distribution(decl.fill)):
            yield spec.issue((*path, "fill"), f"fill: {reason}")
        dtype = decl.dtype_text
        named = spec.axes.get(dtype[1:], ()) if dtype[:1] == "$" else (dtype,)
        for each in named:
            if decl.grad and each in DTYPES and not DTYPES[str(each)].floating:
                yield spec.issue(
                    (*path, "grad"),
                    f"grad: {name} has dtype {each}; only floating-point inputs have gradients",
                )
                break


# Sizes -------------------------------------------------------------------------------------------

_TRIED = 1000
"""Most combinations of other axes that are tried for one that gives a valid size."""


def lint_sizes(spec: Spec, problem: DeclaredProblem) -> Iterator[Issue]:
    """An issue for each axis value that gives an invalid size or bound in every case.

    With `cols` in a shape, `cols: [-1]`, `[.nan]` and `[abc]` are such values.
    """
    reported: set[KeyPath] = set()
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
