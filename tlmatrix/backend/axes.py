"""Finds axes that nothing reads, such as misspelled ones: they multiply cases in vain."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from tlmatrix.backend.errors import BindingError
from tlmatrix.backend.signature import parameters_of
from tlmatrix.spec.expr.expression import Expression
from tlmatrix.spec.importing import load
from tlmatrix.spec.issues import Issue
from tlmatrix.spec.model.calling import names_of
from tlmatrix.spec.model.sharding import WORLD
from tlmatrix.spec.model.spec import DeclaredProblem, has_ranks
from tlmatrix.spec.sources import parameters_in_source
from tlmatrix.words import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tlmatrix.backend.binding import Binding
    from tlmatrix.problem import Family
    from tlmatrix.spec.model.spec import Spec

_ALIKE = 0.8
"""Similarity above which a name may be a misspelling of another (`difflib`)."""


def refuse_unknown_axes(binding: Binding, family: Family) -> None:
    """Check that each axis of the spec is read by the family, the entry, its context, or the spec.

    A family without a list of axes may read all of them. So may an entry that takes any keyword;
    then only axes with nearly the name of a known one are errors (`sinks` beside `sink`).

    Raises:
        BindingError: nothing reads an axis; names the nearest known one.
    """
    spec = binding.spec
    known = _read_by_family(spec, family)
    if known is None:
        return
    anything = binding.parameters is None
    parameters = binding.parameters
    if parameters is None:
        parameters = _named_parameters(spec)
        if parameters is None:
            return
    read = known | parameters | _read_by_context(spec) | frozenset(_read_by_spec(spec))
    issues = list(_unread(spec, read, anything=anything))
    if issues:
        raise BindingError(issues)


def unread_axes(spec: Spec, family: Family) -> Iterator[Issue]:
    """Find unread axes from the source of the spec's code, without importing it."""
    if spec.context is not None or (
        spec.entry is not None and (spec.call or spec.constructor_args)
    ):
        return
    folder = spec.path.resolve().parent
    known: set[str] = set(getattr(family, "optional_axes", ()))
    axes = getattr(family, "axes", None)
    anything = False
    if axes is not None:
        known |= set(axes)
    elif not isinstance(spec.problem, DeclaredProblem):
        return
    elif spec.problem.reference is not None:
        reference = spec.problem.reference
        named = names_of(reference.call)
        if not named:
            given = parameters_in_source(reference.function, folder)
            if given is None or given.anything:
                return
            named = given.names
        known |= named
    if spec.entry is not None:
        taken = parameters_in_source(spec.entry, folder)
        if taken is None:
            return
        known |= taken.names
        anything = taken.anything
    known |= {*names_of(spec.call), *_read_by_spec(spec)}
    yield from _unread(spec, frozenset(known), anything=anything)


def _unread(spec: Spec, read: frozenset[str], *, anything: bool) -> Iterator[Issue]:
    """Axes that are not read; with `anything`, only those that look misspelled."""
    target = spec.entry or spec.factory
    for axis in spec.axes:
        if axis in read:
            continue
        if anything:
            near = difflib.get_close_matches(axis, sorted(read - set(spec.axes)), 1, _ALIKE)
            if not near:
                continue
            message = (
                f"{target} has no parameter {axis!r} and takes this axis as any keyword; did you "
                f"mean {near[0]!r}? If not, rename the axis or add a parameter {axis!r}"
            )
        else:
            words = nearest(axis, sorted(read))
            message = f"neither the problem nor {target} takes the axis {axis!r}{words}"
        line, column = spec.key_location("axes", axis)
        yield Issue(spec.path, line, column, message)


def _named_parameters(spec: Spec) -> frozenset[str] | None:
    """Named parameters of an entry that takes any keyword; None if they are unknown."""
    assert spec.entry is not None
    found = load(spec, ("entry",), spec.entry)
    parameters = parameters_of(found) if callable(found) else None
    return None if parameters is None else frozenset(parameters)


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
    """The parameters of the function that creates the entry's `context`."""
    if spec.context is None:
        return frozenset()
    make = load(spec, ("context",), spec.context)
    return frozenset((parameters_of(make) if callable(make) else None) or ())


def _read_by_spec(spec: Spec) -> Iterator[str]:
    """Names in expressions for shapes and compile arguments, and in `$axis` dtypes and orders."""
    if has_ranks(spec):
        yield WORLD
    for shard in spec.shards.values():
        if shard.order.startswith("$"):
            yield shard.order[1:]
    expressions: list[object] = [*spec.tile.values()]
    expressions += [
        Expression(value) for value in spec.factory_args.values() if isinstance(value, str)
    ]
    if isinstance(spec.problem, DeclaredProblem):
        outputs = spec.problem.outputs
        for decl in spec.problem.inputs.values():
            expressions += (*decl.sizes, *(decl.between or ()))
        declared_outputs = outputs.values() if isinstance(outputs, dict) else ()
        for output in declared_outputs:
            expressions += output.shape or ()
        for declaration in (*spec.problem.inputs.values(), *declared_outputs):
            if declaration.dtype and declaration.dtype.startswith("$"):
                yield declaration.dtype[1:]
    for expression in expressions:
        if isinstance(expression, Expression):
            yield from expression.names
