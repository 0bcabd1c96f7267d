"""Axes that nobody reads: a misspelt axis would double the matrix and test nothing new."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.backend.errors import BindingError
from tlmatrix.backend.signature import parameters_of
from tlmatrix.spec.calling import names_of
from tlmatrix.spec.expressions import Expression
from tlmatrix.spec.importing import load
from tlmatrix.spec.issues import Issue
from tlmatrix.spec.models import DeclaredProblem
from tlmatrix.spec.sharding import WORLD, has_ranks
from tlmatrix.words import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tlmatrix.backend.binding import Binding
    from tlmatrix.problem import Family
    from tlmatrix.spec.models import Spec

__all__ = ["refuse_unknown_axes"]


def refuse_unknown_axes(binding: Binding, family: Family) -> None:
    """Check that each axis of the spec is read by the family, the entry, its context, or the spec.

    A family that does not say which axes it reads, and an entry that takes any keyword, may read
    all of them.

    Raises:
        BindingError: an axis that nobody reads; names the nearest one that somebody does.
    """
    spec = binding.spec
    known = _read_by_family(spec, family)
    if known is None or binding.parameters is None:
        return
    read = known | binding.parameters | _read_by_context(spec) | frozenset(_read_by_spec(spec))
    issues = []
    for axis in spec.axes:
        if axis not in read:
            target = spec.entry or spec.factory
            words = nearest(axis, sorted(read))
            message = f"neither the problem nor {target} takes the axis {axis!r}{words}"
            line, column = spec.key_location("axes", axis)
            issues.append(Issue(spec.path, line, column, message))
    if issues:
        raise BindingError(issues)


def _read_by_family(spec: Spec, family: Family) -> frozenset[str] | None:
    if isinstance(spec.problem, DeclaredProblem):
        if spec.problem.reference is None:
            return frozenset({"values", "storage"})
        said = spec.problem.reference
        reference = load(spec, ("problem", "reference"), said.function)
        if not callable(reference):
            return None
        taken = names_of(said.call) or parameters_of(reference) or ()
        return frozenset([*taken, "values", "storage"])
    axes: Iterable[str] | None = getattr(family, "axes", None)
    return None if axes is None else frozenset(axes)


def _read_by_context(spec: Spec) -> frozenset[str]:
    """The parameters of what makes the entry's argument `context`."""
    if spec.context is None:
        return frozenset()
    make = load(spec, ("context",), spec.context)
    return frozenset((parameters_of(make) if callable(make) else None) or ())


def _read_by_spec(spec: Spec) -> Iterator[str]:
    """Names in expressions that shape the inputs or the kernel, and `$axis` dtypes and orders."""
    if has_ranks(spec):
        yield WORLD
    for shard in spec.shards.values():
        if shard.order.startswith("$"):
            yield shard.order[1:]
    expressions: list[object] = [*spec.tile.values()]
    expressions += [Expression(value) for value in spec.compile.values() if isinstance(value, str)]
    if isinstance(spec.problem, DeclaredProblem):
        outputs = spec.problem.outputs
        for decl in spec.problem.inputs.values():
            expressions += decl.sizes
        declared_outputs = outputs.values() if isinstance(outputs, dict) else ()
        for output in declared_outputs:
            expressions += output.shape or ()
        for declaration in (*spec.problem.inputs.values(), *declared_outputs):
            if declaration.dtype and declaration.dtype.startswith("$"):
                yield declaration.dtype[1:]
    for expression in expressions:
        if isinstance(expression, Expression):
            yield from expression.names
