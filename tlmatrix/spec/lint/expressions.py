"""Checks of the expressions of a spec: unknown names, and values that raise errors."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from tlmatrix.spec.expr.expression import Expression, ExpressionError
from tlmatrix.spec.issues import Fault
from tlmatrix.spec.values import label
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

RUN_NAMES = ("arch", "backend")
"""Names of a run, which expressions may use besides the axes where a key allows it."""

_COMBINATIONS = 1000
"""Value combinations on which a constraint is evaluated; beyond them, every pair of values."""


def condition_faults(spec: Spec, axes: Collection[str]) -> Iterator[Fault]:
    """Faults of every constraint and `when`; `axes` are those in the file, even if malformed."""
    constraints = [each.expression for each in spec.constraints]
    for index, expression in enumerate(constraints):
        path = ("constraints", index, "require")
        unknown = list(unknown_names(expression, axes, spec, path))
        yield from unknown or _trial_faults(expression, spec, path)
        if expression in constraints[:index]:
            yield Fault(path, f"the constraint {spec.constraints[index].text!r} appears twice")
    for index, expression in enumerate(spec.compile_axes):
        where = ("compile_axes", index)
        unknown = list(unknown_names(expression, axes, spec, where))
        yield from unknown or _trial_faults(expression, spec, where)
    for key in ("determinism", "relations", "agree", "codegen", "known_bugs"):
        for index, each in enumerate(getattr(spec, key)):
            if each.when is not None:
                yield from unknown_names(each.when, axes, spec, (key, index, "when"), RUN_NAMES)
    if spec.cuda_graph is not None:
        when = spec.cuda_graph.when
        yield from unknown_names(when, axes, spec, ("cuda_graph", "when"), RUN_NAMES)
    for index, rule in enumerate(spec.codegen):
        if rule.model_fields_set <= {"when", "kernel"}:
            message = "the codegen rule expects nothing; add instructions, spills, registers, …"
            yield Fault(("codegen", index), message)


def unknown_names(
    expression: Expression,
    axes: Collection[str],
    spec: Spec,
    path: tuple[str | int, ...],
    others: Collection[str] = (),
) -> Iterator[Fault]:
    """Names of an expression that are neither axes nor `others`, each with a suggestion."""
    if not axes:
        return  # the axes are malformed, and reported
    known = [*axes, *others]
    for name in sorted(expression.names.difference(known), key=expression.offset_of):
        holders = [axis for axis, values in spec.axes.items() if name in values]
        if holders:
            hint = f"; it is a value of the axis {holders[0]!r}, so quote it: '{name}'"
        elif name in RUN_NAMES:
            hint = "; it is known only when a case runs, so it cannot be used here"
        else:
            hint = suggestion(name, known, "Names here")
        message = f"unknown name {name!r} in {expression.text!r}{hint}"
        yield Fault(path, message, offset=expression.offset_of(name))


def _trial_faults(
    expression: Expression, spec: Spec, path: tuple[str | int, ...]
) -> Iterator[Fault]:
    """The first values of the axes for which a constraint raises, such as none in `window < 3`."""
    names = sorted(expression.names)
    if not all(name in spec.axes for name in names):
        return
    axes = [spec.axes[name] for name in names]
    combinations: Iterable[tuple[Value, ...]] = itertools.product(*axes)
    if math.prod(map(len, axes)) > _COMBINATIONS:
        combinations = itertools.chain(
            itertools.islice(combinations, _COMBINATIONS), _pairs_of_values(axes)
        )
    for values in combinations:
        try:
            expression.evaluate(dict(zip(names, values, strict=True)))
        except ExpressionError as problem:
            example = ", ".join(
                f"{name}={label(value)}" for name, value in zip(names, values, strict=True)
            )
            message = f"{expression.text!r} has no value for {example}: {problem.reason}"
            yield Fault(path, message, offset=problem.offset)
            return


def _pairs_of_values(axes: Sequence[Sequence[Value]]) -> Iterator[tuple[Value, ...]]:
    """Every pair of values of two axes once, beside the first and the last values of the others."""
    for one, other in itertools.combinations(range(len(axes)), 2):
        for number, (left, right) in enumerate(itertools.product(axes[one], axes[other])):
            row = [values[-(number % 2)] for values in axes]
            row[one], row[other] = left, right
            yield tuple(row)


def never_faults(
    expression: Expression,
    spec: Spec,
    path: tuple[str | int, ...],
    explain: Callable[[object], str | None],
) -> Iterator[Fault]:
    """A fault if no values of the axes give the expression a valid value.

    `explain` returns why a value is invalid, or None. An expression that is invalid for some values
    only is accepted: constraints may exclude these.
    """
    names = sorted(expression.names)
    if not all(spec.axes.get(name) for name in names):
        return
    found: Fault | None = None
    combinations = itertools.product(*(spec.axes[name] for name in names))
    for values in itertools.islice(combinations, _COMBINATIONS):
        offset = 0
        try:
            reason = explain(expression.evaluate(dict(zip(names, values, strict=True))))
        except ExpressionError as problem:
            reason, offset = problem.reason, problem.offset
        if reason is None:
            return
        found = found or Fault(path, f"{expression.text!r}: {reason}", offset=offset)
    if found is not None:
        yield found
