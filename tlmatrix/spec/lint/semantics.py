"""Checks across the keys of a spec: unknown names, duplicate values, keys that exclude each other.

Each check yields faults with a path of keys; the loader finds line and column. Problem families
check the names in `factory_args`, `call` and `tolerance` themselves; those of declared problems
are checked here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tlmatrix.spec.expr.expression import FUNCTIONS, WORDS
from tlmatrix.spec.issues import Fault, KeyPath
from tlmatrix.spec.lint.messages import show
from tlmatrix.spec.lint.problem import (
    RUN_NAMES,
    condition_faults,
    oracle_faults,
    problem_faults,
    returns_faults,
    tolerance_faults,
)
from tlmatrix.spec.model.calling import call_faults, names_of
from tlmatrix.spec.model.fields import BASELINES, OPTIONAL_AXES, ORDERS, TARGET
from tlmatrix.spec.model.fuzz import MAX_CONSTRAINED
from tlmatrix.spec.model.spec import DEFAULT_TIERS, WORLD, DeclaredProblem, Shard
from tlmatrix.spec.values import canonical, explain_lengths, label
from tlmatrix.words import suggestion

if TYPE_CHECKING:
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
    yield from _sharding_faults(spec, axes, given.broken)
    if "problem" not in given.broken and isinstance(spec.problem, DeclaredProblem):
        yield from returns_faults(spec, spec.problem)
        yield from tolerance_faults(spec, spec.problem)


def _packed_axis_faults(spec: Spec, axis: str, drawn: FuzzAxis, path: KeyPath) -> Iterator[Fault]:
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
    keys: dict[KeyPath, Iterable[str]] = {
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


def _empty_faults(axes: Mapping[str, Any], path: KeyPath) -> Iterator[Fault]:
    for axis, values in axes.items():
        if values in ([], ()):
            yield Fault((*path, axis), f"the axis {axis!r} has no values", at_key=True)


def _axis_faults(axes: Mapping[str, Sequence[Value]], path: KeyPath) -> Iterator[Fault]:
    for axis, values in axes.items():
        if axis in RUN_NAMES:
            message = f"an axis cannot be called {axis!r}: expressions use that name for the run"
            yield Fault((*path, axis), message, at_key=True)
        if axis in RESERVED:
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


RESERVED = frozenset([*WORDS, *FUNCTIONS, "and", "or", "not", "in", "is", "if", "else", "for"])
"""Words of expressions that are no names of axes."""


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


def _unknown_axes(names: Collection[str], axes: Collection[str], path: KeyPath) -> Iterator[Fault]:
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


# Ranks: the axis `world`, `shards`, `context`, `cuda_graph` -------------------------------------


def _sharding_faults(
    spec: Spec, axes: Mapping[str, object], broken: Collection[str]
) -> Iterator[Fault]:
    """Faults of the axis `world`, `shards`, `context` and `cuda_graph`.

    `axes` are those in the file, even if malformed; `broken` the root keys with malformed values.
    """
    yield from _world_faults(spec)
    if axes and WORLD not in axes:
        for key in ("shards", "context", "cuda_graph"):
            if key in spec.model_fields_set:
                message = f"'{key}' needs several ranks; add the axis world: [1, 2, 4]"
                yield Fault((key,), message, at_key=True)
    if WORLD in axes and spec.factory is not None:
        message = (
            "the kernel of a factory runs on one rank; with the axis 'world', give 'entry', a "
            "function that every rank calls"
        )
        yield Fault(("factory",), message, at_key=True)
    if spec.cuda_graph is not None and "repeat" not in spec.checks and "checks" not in broken:
        message = "'cuda_graph' has no effect: 'checks' leaves out 'repeat'; add it"
        yield Fault(("cuda_graph",), message, at_key=True)
    for name, shard in spec.shards.items():
        yield from _shard_faults(spec, name, shard, axes, whole="shards" not in broken)


def _world_faults(spec: Spec) -> Iterator[Fault]:
    lists: list[tuple[KeyPath, Sequence[Value]]] = [(("axes", WORLD), spec.axes.get(WORLD, ()))]
    for name, tier in spec.tiers.items():
        lists.append((("tiers", name, "axes", WORLD), (tier.axes or {}).get(WORLD, ())))
    drawn = spec.fuzz.axes.get(WORLD) if spec.fuzz is not None else None
    if drawn is not None:
        lists.append((("fuzz", "axes", WORLD, "values"), drawn.values))
        if drawn.range is not None and drawn.range.low < 1:
            message = "'world' is a number of ranks, 1 or more; the range begins at 0"
            yield Fault(("fuzz", "axes", WORLD, "range"), message)
    written = [((*path, at), value) for path, values in lists for at, value in enumerate(values)]
    regressions = tuple(each.case for each in spec.regressions)
    for key, cases in (("extra_cases", spec.extra_cases), ("regressions", regressions)):
        written += [((key, at, WORLD), case.get(WORLD, 1)) for at, case in enumerate(cases)]
    for path, value in written:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            yield Fault(path, f"'world' is a number of ranks, 1 or more; got {show(value)}")


def _shard_faults(
    spec: Spec, name: str, shard: Shard, axes: Mapping[str, object], *, whole: bool
) -> Iterator[Fault]:
    path: KeyPath = ("shards", name)
    if shard.sum and (shard.dim is not None or shard.own):
        message = (
            f"{name!r} has 'sum' beside 'dim' or 'own': results of ranks are either summed or "
            "concatenated; remove one"
        )
        yield Fault((*path, "sum"), message, at_key=True)
    elif whole and shard.dim is None and not shard.sum:
        message = (
            f"the key 'dim' is missing: give the dimension along which {name!r} is split, or "
            f"remove {name!r} if every rank has the whole tensor"
        )
        yield Fault(path, message, at_key=True)
    if shard.order.startswith("$"):
        yield from _order_axis_faults(spec, shard.order, (*path, "order"), axes)
    for key in ("order", "uneven"):
        if key in shard.model_fields_set and (shard.own or shard.sum):
            message = f"'{key}' needs a split dimension; remove it, or remove 'own' or 'sum'"
            yield Fault((*path, key), message, at_key=True)
    if isinstance(spec.problem, DeclaredProblem):
        yield from _declared_faults(spec.problem, name, shard, path)


def _order_axis_faults(
    spec: Spec, order: str, path: KeyPath, axes: Mapping[str, object]
) -> Iterator[Fault]:
    axis = order[1:]
    if axes and axis not in axes:
        known = [f"${each}" for each in axes]
        yield Fault(path, f"unknown axis {order!r}{suggestion(order, known, 'Axes')}")
    for index, value in enumerate(spec.axes.get(axis, ())):
        if value not in ORDERS:
            hint = suggestion(str(value), ORDERS, "Orders")
            message = f"{show(value)} is not an order{hint}; 'shards' uses the axis as an order"
            yield Fault(("axes", axis, index), message)


def _declared_faults(
    problem: DeclaredProblem, name: str, shard: Shard, path: KeyPath
) -> Iterator[Fault]:
    gradients = {f"d{each}": each for each, decl in problem.inputs.items() if decl.grad}
    cotangents = [f"d{each}" for each in problem.output_names]
    known: Collection[str] = [*problem.inputs, *problem.output_names, *gradients, *cotangents]
    if name not in known:
        yield Fault(path, f"unknown tensor {name!r}{suggestion(name, known, 'Tensors')}", True)
        return
    if shard.sum and (name in problem.inputs or name in cotangents):
        message = f"{name!r} is an argument of the entry; 'sum' is for results, so remove it"
        yield Fault((*path, "sum"), message, at_key=True)
    decl = problem.inputs.get(gradients.get(name, name))
    if decl is not None and isinstance(shard.dim, int) and shard.dim >= len(decl.sizes):
        count = len(decl.sizes)
        yield Fault(
            (*path, "dim"), f"{name!r} has {count} dimensions: 'dim' must be {_below(count)}"
        )
    elif decl is not None and isinstance(shard.dim, str):
        words = [str(size) for size in decl.sizes]
        if shard.dim not in words:
            hint = suggestion(shard.dim, words, "Dimensions")
            yield Fault((*path, "dim"), f"{name!r} has no dimension {shard.dim!r}{hint}")


def _below(count: int) -> str:
    """The indices below a count as text: `0, 1 or 2` of 3."""
    numbers = [str(each) for each in range(count)]
    return " or ".join(filter(None, [", ".join(numbers[:-1]), *numbers[-1:]])) or "nothing"
