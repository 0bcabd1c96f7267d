"""Finds axes that nothing reads, such as misspelled ones, and options that no axis varies."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from tlmatrix.backend.errors import BindingError
from tlmatrix.backend.signature import parameters_of
from tlmatrix.spec.expr.expression import Expression
from tlmatrix.spec.importing import load
from tlmatrix.spec.issues import Issue
from tlmatrix.spec.model.calling import items_of, names_of
from tlmatrix.spec.model.fields import OPTIONAL_AXES
from tlmatrix.spec.model.spec import WORLD, DeclaredProblem, has_ranks
from tlmatrix.spec.sources import parameters_in_source
from tlmatrix.spec.values import canonical, label
from tlmatrix.words import nearest

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from tlmatrix.backend.binding import Binding
    from tlmatrix.problem import Family
    from tlmatrix.spec.model.calling import Call
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.sources import Parameters
    from tlmatrix.spec.values import Value

_ALIKE = 0.8
"""Similarity above which a name may be a misspelling of another (`difflib`)."""
_OF_FACTORIES = frozenset({"device", "dtype"})
"""Parameters of constructors for their tensors, as of `torch.nn`: a spec need not vary them."""


def refuse_unknown_axes(binding: Binding, family: Family) -> None:
    """Check that each axis of the spec is read by the family, the entry, its context, or the spec.

    A family without a list of axes may read all of them. So may an entry that takes any keyword;
    then only axes with nearly the name of a known one are errors (`sinks` beside `sink`).

    Raises:
        BindingError: nothing reads an axis; names the nearest known one.
    """
    spec = binding.spec
    known = read_by_family(spec, family)
    if known is None:
        return
    anything = binding.parameters is None
    parameters = binding.parameters
    if parameters is None:
        parameters = _named_parameters(spec)
        if parameters is None:
            return
    read = known | parameters | read_by_context(spec) | frozenset(_read_by_spec(spec))
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


def unvaried_options(plans: Iterable[tuple[Spec, Family]]) -> Iterator[Issue]:
    """Optional parameters of entries, and their values, that no case of any spec passes.

    Specs of one entry count together. If some of them check gradients, an option has to vary in
    one that does: the backward pass may ignore it. Sources are read, not imported.
    """
    entries: dict[str, list[tuple[Spec, Family]]] = {}
    for spec, family in plans:
        if spec.entry is not None:
            target = f"{spec.entry}.__init__" if spec.constructor_args else spec.entry
            entries.setdefault(target, []).append((spec, family))
    for entry, of_entry in entries.items():
        spec = of_entry[0][0]
        given = parameters_in_source(entry, spec.path.resolve().parent)
        backward = [each for each in of_entry if _checks_gradients(*each)]
        line, column = spec.key_location("entry")
        if given is None:
            continue
        for option, allowed in given.options.items():
            if spec.constructor_args and option in _OF_FACTORIES - spec.constructor_args.keys():
                continue
            if not any(_uses_default(option, *each, given) for each in of_entry):
                default = given.defaults[option]
                message = (
                    f"no case uses the default of {option} of {entry}, {label(default)}: list it "
                    f"in the axis, or write what it stands for, defaults: {{{option}: EXPRESSION}}"
                )
                yield Issue(spec.path, line, column, message)
            for checked, where in ((of_entry, ""), (backward, " that checks gradients")):
                words = _unvaried(option, allowed, checked, given) if checked else ""
                if words:
                    place = "constructor_args" if spec.constructor_args else "call"
                    remedy = f"pass it in {place!r} and " if _arguments(spec) else ""
                    message = (
                        f"no case{where} passes {words} to {entry}: {remedy}list its values in an "
                        f"axis {option!r}, or only one to say that others are not supported"
                    )
                    yield Issue(spec.path, line, column, message)
                    break


def unsampled_options(spec: Spec, tier: str, cases: Iterable[Mapping[str, Value]]) -> list[Issue]:
    """Values of an entry's options that an axis lists and no case of a tier that samples has.

    `cases` are the axis values of the tier's cases. Sources are read, not imported.
    """
    if spec.entry is None:
        return []
    given = parameters_in_source(spec.entry, spec.path.resolve().parent)
    options = spec.axes.keys() & (given.options.keys() if given is not None else ())
    held: dict[str, set[str]] = {option: set() for option in options}
    for values in cases:
        for option in options:
            held[option].add(canonical(values[option]))
    found = []
    for option in sorted(options):
        missing = [value for value in spec.axes[option] if canonical(value) not in held[option]]
        if missing:
            words = " or ".join(f"{option}={label(value)}" for value in missing)
            message = (
                f"no case that the tier {tier!r} samples has {words}: sample more, or use the "
                "strategy 1-wise, which has each value"
            )
            found.append(spec.issue(("axes", option), message))
    return found


def _unvaried(
    option: str,
    allowed: tuple[Value, ...],
    specs: Sequence[tuple[Spec, Family]],
    given: Parameters,
) -> str:
    """What no case passes for an option: `scale`, or `backward='split'`; empty if all is.

    An axis with a single value says that the option is meant to keep it.
    """
    listed: dict[str, Value] = {}
    for spec, family in specs:
        axis = option
        if _arguments(spec):
            item = _passed(option, spec, given)
            if item is None:
                continue  # the call leaves the default
            if not isinstance(item, str) or item not in spec.axes:
                return ""
            axis = item
        elif axis not in spec.axes and _is_given(axis, spec, family):
            return ""
        if spec.fuzz is not None and axis in spec.fuzz.axes:
            return ""
        values = [*spec.axes.get(axis, ())]
        values += [case[axis] for case in spec.extra_cases if axis in case]
        if len(values) == 1 and axis in spec.axes:
            return ""
        listed |= {canonical(value): value for value in values}
    if not listed:
        return option
    missing = [value for value in allowed if canonical(value) not in listed]
    return " or ".join(f"{option}={value!r}" for value in missing)


def _uses_default(option: str, spec: Spec, family: Family, given: Parameters) -> bool:
    """Whether some cases give an option its default, as far as the spec and the source say."""
    if option not in given.defaults or option in spec.defaults:
        return True
    default, axis = given.defaults[option], option
    if _arguments(spec):
        item = _passed(option, spec, given)
        if not isinstance(item, str) or item not in spec.axes:
            return True
        axis = item
    elif axis not in spec.axes:
        return not _is_always_given(axis, family)
    if spec.fuzz is not None and axis in spec.fuzz.axes and default is not None:
        return True
    values = [*spec.axes[axis], *(case[axis] for case in spec.extra_cases if axis in case)]
    return len(values) == 1 or default in values


def _is_always_given(option: str, family: Family) -> bool:
    """Whether a problem of a family has a number of this name, which the entry gets."""
    names = getattr(family, "names", ())
    return option in names and option not in (*getattr(family, "tensors", ()), "context", "device")


def _arguments(spec: Spec) -> Call:
    """What a spec lists for the constructor of its module, or for its function."""
    constructor: Call = {**spec.constructor_args}
    return constructor or spec.call


def _passed(option: str, spec: Spec, given: Parameters) -> object:
    """What a spec lists for an option; None if it leaves the default."""
    items = dict(items_of(_arguments(spec)))
    if option in items:
        return items[option]
    if option in given.positional:
        return items.get(given.positional.index(option))
    return None


def _is_given(option: str, spec: Spec, family: Family) -> bool:
    """Whether cases without an axis of this name pass an option: tensors, sizes, a context."""
    if isinstance(spec.problem, DeclaredProblem):
        names: Container[str] | None = {*spec.problem.inputs, *spec.problem.output_names}
    else:
        names = getattr(family, "names", None)
    if names is None or option in ("context", "out", *OPTIONAL_AXES):
        return True
    return option in names and option not in getattr(family, "axes", ())


def _checks_gradients(spec: Spec, family: Family) -> bool:
    """Whether cases have gradients: of a declared problem, those of inputs with `grad`."""
    if isinstance(spec.problem, DeclaredProblem):
        return any(each.grad for each in spec.problem.inputs.values())
    return "gradients" in spec.checks and getattr(family, "cotangents", True)


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
        elif spec.factory is None:
            words = nearest(axis, sorted(read))
            message = f"neither the problem nor {target} takes the axis {axis!r}{words}"
        else:
            given = parameters_in_source(spec.factory, spec.path.resolve().parent)
            words = nearest(axis, sorted(read))
            if given is not None and axis in given.names:
                words = f"; {target} takes it: factory_args: {{{axis}: {axis}}}"
            message = f"neither the problem nor 'factory_args' takes the axis {axis!r}{words}"
        line, column = spec.key_location("axes", axis)
        yield Issue(spec.path, line, column, message)


def _named_parameters(spec: Spec) -> frozenset[str] | None:
    """Named parameters of an entry that takes any keyword; None if they are unknown."""
    assert spec.entry is not None
    found = load(spec, ("entry",), spec.entry)
    parameters = parameters_of(found) if callable(found) else None
    return None if parameters is None else frozenset(parameters)


def read_by_family(spec: Spec, family: Family) -> frozenset[str] | None:
    """The axes that problems of a spec may depend on; None if that is not known."""
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


def read_by_context(spec: Spec) -> frozenset[str]:
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
