"""Checks across the keys of a spec: unknown names, duplicate values, keys that exclude each other.

Each check yields faults with a path of keys; the loader finds line and column. Problem families
check the names in `factory_args`, `call` and `tolerance` themselves; those of declared problems
are checked here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tlmatrix.spec.expr.expression import FUNCTIONS, WORDS
from tlmatrix.spec.issues import Fault
from tlmatrix.spec.lengths import explain_lengths
from tlmatrix.spec.lint.checks import oracle_faults
from tlmatrix.spec.lint.declared import problem_faults, returns_faults, tolerance_faults
from tlmatrix.spec.lint.expressions import RUN_NAMES, condition_faults
from tlmatrix.spec.lint.messages import show
from tlmatrix.spec.lint.ranks import sharding_faults
from tlmatrix.spec.model.calling import call_faults, names_of
from tlmatrix.spec.model.fields import BASELINES, OPTIONAL_AXES, TARGET
from tlmatrix.spec.model.fuzz import MAX_CONSTRAINED
from tlmatrix.spec.model.parts import DEFAULT_TIERS
from tlmatrix.spec.model.spec import DeclaredProblem
from tlmatrix.spec.values import canonical, label
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from tlmatrix.spec.model.fuzz import FuzzAxis
    from tlmatrix.spec.model.spec import Fuzz, Spec
    from tlmatrix.spec.values import Value

__all__ = ["Fault", "GivenNames", "faults"]


@dataclass(frozen=True)
class GivenNames:
    """The names in a file, including those whose values are malformed and absent from the spec.

    With them, one malformed value does not make other names unknown or keys missing.
    """

    keys: frozenset[str]
    axes: Mapping[str, Any]
    tiers: tuple[str, ...]
    broken: frozenset[str]
    """The root keys with malformed values."""

    @classmethod
    def of(cls, data: Mapping[str, Any], broken: frozenset[str]) -> GivenNames:
        """The names in the plain data of a file."""
        axes, tiers = (_mapping(data.get(key)) for key in ("axes", "tiers"))
        names = dict.fromkeys((*tiers, *DEFAULT_TIERS))
        return cls(frozenset(data), axes, tuple(names), broken)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def faults(spec: Spec, given: GivenNames) -> Iterator[Fault]:
    """All faults of a spec that was built from the well-formed parts of a file."""
    axes = given.axes
    yield from _callable_faults(spec, given.keys)
    yield from _empty_faults(axes, ("axes",))
    yield from _axis_faults(spec.axes, ("axes",))
    yield from condition_faults(spec, axes)
    yield from _tier_faults(spec, axes)
    yield from _case_faults(spec, axes)
    for index, check in enumerate(spec.checks):
        if check in spec.checks[:index]:
            yield Fault(("checks", index), f"the check {check!r} appears twice")
    for index, arch in enumerate(spec.architectures):
        if arch in spec.architectures[:index]:
            yield Fault(("architectures", index), f"the architecture {arch!r} appears twice")
    if spec.fuzz is not None:
        yield from _fuzz_faults(spec, spec.fuzz, given)
    yield from problem_faults(spec, axes)
    yield from oracle_faults(spec, axes, given.broken)
    yield from sharding_faults(spec, axes, given.broken)
    if "problem" not in given.broken and isinstance(spec.problem, DeclaredProblem):
        yield from returns_faults(spec, spec.problem)
        yield from tolerance_faults(spec, spec.problem)


def _packed_axis_faults(
    spec: Spec, axis: str, drawn: FuzzAxis, path: tuple[str | int, ...]
) -> Iterator[Fault]:
    """Faults of `sequences` and `length`, which need a packed axis."""
    for index, value in enumerate(spec.axes.get(axis, ())):
        if reason := explain_lengths(value, axis):
            message = f"'sequences' and 'length' need a packed axis; value {index + 1}: {reason}"
            yield Fault(path, message, at_key=True)
            return
    if drawn.range is not None or drawn.values:
        message = "a packed axis has 'sequences' and 'length', no 'range' or 'values'"
        yield Fault(path, message, at_key=True)
    if drawn.sequences is not None and not drawn.sequences.low:
        yield Fault(
            (*path, "sequences"), "a batch needs at least 1 sequence; the range begins at 0"
        )


def _callable_faults(spec: Spec, keys: Collection[str]) -> Iterator[Fault]:
    if "entry" in keys and "factory" in keys:
        message = "a spec has an entry or a factory, not both; remove one"
        yield Fault(("factory",), message, at_key=True)
    elif "factory" in keys:
        if "call" not in keys:
            message = "a factory needs 'call', the names its kernel is called with: call: [q, k, v]"
            yield Fault(("factory",), message, at_key=True)
        if "constructor_args" in keys:
            message = "'constructor_args' belongs to an entry; write 'factory_args' for a factory"
            yield Fault(("constructor_args",), message, at_key=True)
    elif "entry" in keys:
        if "factory_args" in keys:
            message = "'factory_args' belongs to a factory; write arguments of an entry in 'call'"
            yield Fault(("factory_args",), message, at_key=True)
    else:
        message = "the key 'entry' or 'factory' is missing; name the code under test"
        yield Fault((), message)
    yield from call_faults(spec.call, spec.returns, ())
    if spec.entry is not None and spec.call:
        yield from _unpassed_faults(spec)


def _unpassed_faults(spec: Spec) -> Iterator[Fault]:
    """Arguments that `agree` or `bench` sets and `call` does not pass."""
    passed = names_of(spec.call)
    keys: dict[tuple[str | int, ...], Iterable[str]] = {
        ("agree", index, "set"): side.set or () for index, side in enumerate(spec.agree)
    }
    if spec.bench is not None:
        keys["bench", "configs"] = spec.bench.configs
    for path, names in keys.items():
        for name in names:
            if name not in spec.axes and name not in passed:
                message = (
                    f"{name!r} is not passed to the entry: 'call' does not list it; make it an "
                    "axis and add it to 'call'"
                )
                yield Fault((*path, name), message, at_key=True)


def _empty_faults(axes: Mapping[str, Any], path: tuple[str | int, ...]) -> Iterator[Fault]:
    for axis, values in axes.items():
        if values in ([], ()):
            yield Fault((*path, axis), f"the axis {axis!r} has no values", at_key=True)


def _axis_faults(
    axes: Mapping[str, Sequence[Value]], path: tuple[str | int, ...]
) -> Iterator[Fault]:
    for axis, values in axes.items():
        if axis in RUN_NAMES:
            message = f"an axis cannot be called {axis!r}: expressions use that name for the run"
            yield Fault((*path, axis), message, at_key=True)
        if axis in _RESERVED:
            message = f"an axis cannot be called {axis!r}: that is a reserved word of expressions"
            yield Fault((*path, axis), message, at_key=True)
        by_text: dict[str, int] = {}
        by_label: dict[str, int] = {}
        for index, value in enumerate(values):
            place = (*path, axis, index)
            first = by_text.setdefault(canonical(value), index)
            alike = by_label.setdefault(label(value), index)
            if first != index:
                yield Fault(place, f"the axis {axis!r} has {show(value)} twice")
            elif alike != index:
                message = (
                    f"{show(value)} and {show(values[alike])} of the axis {axis!r} both read "
                    f"{label(value)!r} in a case id; make them differ"
                )
                yield Fault(place, message)


_RESERVED = frozenset([*WORDS, *FUNCTIONS, "and", "or", "not", "in", "is", "if", "else", "for"])


# The matrix ---------------------------------------------------------------------------------


def _tier_faults(spec: Spec, axes: Collection[str]) -> Iterator[Fault]:
    for name, tier in spec.tiers.items():
        path = ("tiers", name)
        if tier.strategy == "sample" and tier.size is None:
            message = f"the tier {name!r} samples, so it needs 'size', the number of cases"
            yield Fault(path, message, at_key=True)
        if tier.size is not None and tier.strategy not in ("sample", "first"):
            message = f"'size' belongs to sample and first; {name!r} is {tier.strategy}"
            yield Fault((*path, "size"), message, at_key=True)
        if "seed" in tier.model_fields_set and tier.strategy in ("product", "zip", "first"):
            message = f"'seed' has no effect in the tier {name!r}: {tier.strategy} is not random"
            yield Fault((*path, "seed"), message, at_key=True)
        if tier.axes is not None:
            yield from _unknown_axes(tier.axes, axes, (*path, "axes"))
            known = {axis: values for axis, values in tier.axes.items() if axis in axes}
            yield from _empty_faults(known, (*path, "axes"))
            yield from _axis_faults(known, (*path, "axes"))


def _case_faults(spec: Spec, axes: Collection[str]) -> Iterator[Fault]:
    regressions = tuple(each.case for each in spec.regressions)
    for key, cases in (("extra_cases", spec.extra_cases), ("regressions", regressions)):
        seen: set[str] = set()
        for index, values in enumerate(cases):
            own = [name for name in values if name not in OPTIONAL_AXES]
            yield from _unknown_axes(own, axes, (key, index))
            if canonical(values) in seen:
                yield Fault((key, index), f"the case {show(values)} appears twice")
            seen.add(canonical(values))
    if spec.bench is not None:
        for index, values in enumerate(spec.bench.cases):
            yield from _unknown_axes(values, axes, ("bench", "cases", index))
        for index, name in enumerate(spec.bench.baselines):
            if name not in BASELINES and not re.match(TARGET, name):
                hint = suggestion(name, BASELINES, "Baselines")
                message = f"unknown baseline {name!r}{hint}, or package.module:name"
                yield Fault(("bench", "baselines", index), message)


def _unknown_axes(
    names: Collection[str], axes: Collection[str], path: tuple[str | int, ...]
) -> Iterator[Fault]:
    for name in names:
        if axes and name not in axes:
            message = f"unknown axis {name!r}{suggestion(name, axes, 'Axes')}"
            yield Fault((*path, name), message, at_key=True)


def _fuzz_faults(spec: Spec, fuzz: Fuzz, given: GivenNames) -> Iterator[Fault]:
    axes = given.axes
    for tier in fuzz.examples:
        if tier not in given.tiers:
            message = f"unknown tier {tier!r}{suggestion(tier, given.tiers, 'Tiers')}"
            yield Fault(("fuzz", "examples", tier), message, at_key=True)
    whole = "fuzz" not in given.broken
    if whole and axes and "seqlens" not in axes and "seqlens" in fuzz.model_fields_set:
        message = "'fuzz.seqlens' needs the axis 'seqlens', which the spec does not have"
        yield Fault(("fuzz", "seqlens"), message, at_key=True)
    if not fuzz.seqlens.sequences.low:
        yield Fault(
            ("fuzz", "seqlens", "sequences"),
            "a batch needs at least 1 sequence; the range begins at 0",
        )
    for index, name in enumerate(fuzz.storage):
        if name in fuzz.storage[:index]:
            yield Fault(("fuzz", "storage", index), f"the storage {name!r} appears twice")
    yield from _unknown_axes(fuzz.axes, axes, ("fuzz", "axes"))
    constrained = {name for each in spec.constraints for name in each.expression.names}
    for axis, drawn in fuzz.axes.items():
        path = ("fuzz", "axes", axis)
        if drawn.range is not None and axis in constrained and drawn.range.count > MAX_CONSTRAINED:
            message = (
                f"a range of {drawn.range.count:,} numbers; a constraint names {axis!r}, and such "
                f"an axis has at most {MAX_CONSTRAINED:,} values: narrow the range"
            )
            yield Fault((*path, "range"), message)
        if axis == "seqlens":
            message = "the lengths of 'seqlens' are described in 'fuzz.seqlens'; move them there"
            yield Fault(path, message, at_key=True)
        elif drawn.lengths is not None:
            yield from _packed_axis_faults(spec, axis, drawn, path)
        elif whole and drawn.range is None and drawn.around:
            message = "'around' needs 'range', such as range: 1..300"
            yield Fault((*path, "around"), message, at_key=True)
        elif whole and drawn.range is None and not drawn.values:
            message = "the key 'range' or 'values' is missing: give the values to generate"
            yield Fault(path, message, at_key=True)
        elif drawn.range is not None and axis in spec.axes:
            numbers = [each for each in spec.axes[axis] if type(each) in (int, float)]
            if not numbers:
                message = f"the axis {axis!r} has no number among its values, so 'range' is invalid"
                yield Fault(path, message, at_key=True)
        known = {canonical(value) for value in spec.axes.get(axis, ())}
        for index, value in enumerate(drawn.values):
            if canonical(value) in known:
                message = f"the axis {axis!r} has {show(value)} already"
                yield Fault((*path, "values", index), message)
            known.add(canonical(value))
