"""Checks of a spec for its problem: names, optional axes, relations, floors of tolerances.

Optional axes are those that a case may have though its spec does not list them: the distribution of
inputs (`values`), their memory layout (`storage`), and bounds on sequence lengths larger than the
longest (`max_seqlen_q`, `max_seqlen_k`). They do not change the id of a case without them.

Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tlmatrix.dtypes import DTYPES
from tlmatrix.spec.expr.expression import Expression, ExpressionError
from tlmatrix.spec.model.calling import items_of, names_in, output_faults
from tlmatrix.spec.model.checks import FINITE
from tlmatrix.spec.model.fields import OPTIONAL_AXES
from tlmatrix.spec.model.spec import WORLD, DeclaredProblem
from tlmatrix.words import nearest, suggestion

if TYPE_CHECKING:
    from tlmatrix.problem.model import Family
    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.checks import AllowanceChange
    from tlmatrix.spec.model.fuzz import FuzzAxis
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

_SOME = 64
"""Numbers from the low end of a range that are looked at."""
_LARGEST = 128.0
"""A bound on the elements of inputs: 16 standard deviations of 8 (`values: large`)."""


def declared(spec: Spec) -> DeclaredProblem:
    """The declaration of a spec whose `problem` is a mapping."""
    assert isinstance(spec.problem, DeclaredProblem)
    return spec.problem


# Names --------------------------------------------------------------------------------------------


def lint_arguments(spec: Spec, names: Collection[str], tensors: Collection[str]) -> Iterator[Issue]:
    """An issue for each unknown name in `call`, `defaults` and `factory_args`.

    Known are `names`, `tensors` (not in `factory_args`), and the axes and `returns` of the spec.
    """
    known = {*names, *spec.axes}
    everything = {*known, *tensors}
    for key, item in items_of(spec.call):
        for name in sorted(names_in(item)):
            if name not in everything and name not in spec.results:
                hint = nearest(name, everything)
                yield spec.issue(("call", key), f"call: the problem has no {name!r}{hint}")
    for option, value in spec.defaults.items():
        for name in sorted(names_in(value) - known):
            hint = nearest(name, known)
            yield spec.issue(("defaults", option), f"defaults: the problem has no {name!r}{hint}")
    for argument, value in spec.factory_args.items():
        if not isinstance(value, str):
            continue
        try:
            used = Expression(value).names
        except ExpressionError:
            continue  # The spec loader reports it.
        for name in sorted(used - known):
            tensor = "a tensor, which has no value at compile time"
            what = tensor if name in tensors else f"unknown{nearest(name, known)}"
            yield spec.issue(
                ("factory_args", argument), f"factory_args: {argument}: the name {name!r} is {what}"
            )


def lint_results(spec: Spec, results: Collection[str]) -> Iterator[Issue]:
    """An issue for each name in `returns` and `tolerance` that is no output or gradient."""
    for fault in output_faults(spec.call, spec.returns, results, ()):
        yield spec.issue(fault.path, f"{fault.path[0]}: {fault.message}")
    for name in spec.tolerance.tensors:
        if name not in results:
            yield spec.issue(
                ("tolerance", name), f"tolerance: unknown tensor {name!r}{nearest(name, results)}"
            )
    for arch, changes in spec.tolerance.by_arch.items():
        for name in changes:
            if name != "default" and name not in results:
                yield spec.issue(
                    ("tolerance", "by_arch", arch, name),
                    f"tolerance: unknown tensor {name!r}{nearest(name, {*results, 'default'})}",
                )


# Shards -----------------------------------------------------------------------------------------


def sharded_axes(spec: Spec, family: Family) -> list[str]:
    """The axes, in order, whose sizes or lengths ranks share along a dimension of a tensor."""
    found = set(getattr(family, "sharded", ()))
    inputs = spec.problem.inputs if isinstance(spec.problem, DeclaredProblem) else {}
    for name, shard in spec.shards.items():
        if shard.own or shard.sum:
            continue
        if isinstance(shard.dim, str):
            along_lengths = shard.dim in ("seqlen", "position")
            found |= {"seqlen_q", "seqlen_k", "seqlens"} if along_lengths else {shard.dim}
        elif shard.dim is not None and name in inputs and shard.dim < len(inputs[name].sizes):
            found.add(str(inputs[name].sizes[shard.dim]))
    return [axis for axis in spec.axes if axis in found]


def lint_shares(spec: Spec, family: Family) -> Iterator[Issue]:
    """An issue for each axis that ranks share and of which no case has some kind of size.

    The kinds are fewer rows than ranks, and numbers that the ranks do not divide. A constraint may
    say that the entry refuses them; without `uneven` a case cannot have them.
    """
    drawn = spec.fuzz.axes if spec.fuzz is not None else {}
    worlds = [each for each in _numbers(spec, WORLD, drawn) if each > 1]
    shards = [*spec.shards.values()]
    if not any(shard.uneven for shard in shards) and not any(spec.axes.get("uneven", ())):
        return
    for axis in sharded_axes(spec, family) if worlds else ():
        sizes = _numbers(spec, axis, drawn)
        pairs = [(size, world) for size in sizes for world in worlds if size > 0]
        fewer = [(size, world) for size, world in pairs if size < world]
        uneven = [(size, world) for size, world in pairs if size > world and size % world]
        kinds = {
            "fewer than ranks": (fewer, [(size, w) for w in worlds for size in range(1, w)]),
            "that the ranks do not divide": (uneven, [(w * 2 + 1, w) for w in worlds]),
        }
        for words, (found, candidates) in kinds.items():
            if _permitted(spec, axis, found) or not _permitted(spec, axis, candidates):
                continue
            message = (
                f"no case has a number of {axis} {words}: list one in the axis or in 'fuzz', or "
                f"say in 'constraints' why there is none"
            )
            yield spec.issue(("axes", axis), message)


def _permitted(spec: Spec, axis: str, pairs: Sequence[tuple[int, int]]) -> bool:
    """Whether the constraints on an axis and the number of ranks alone permit one of the pairs."""
    rules = [
        each.expression
        for each in spec.constraints
        if each.expression.names and each.expression.names <= {axis, WORLD}
    ]
    return any(
        all(rule.evaluate({axis: size, WORLD: world}) for rule in rules) for size, world in pairs
    )


def _numbers(spec: Spec, axis: str, drawn: Mapping[str, FuzzAxis]) -> list[int]:
    """The numbers that an axis lists or generates: of a range, up to some from its low end."""
    listed: list[Value] = [*spec.axes.get(axis, ())]
    listed += [case[axis] for case in spec.extra_cases if axis in case]
    ranges = [drawn[axis].range] if axis in drawn else []
    if axis == "seqlens" and spec.fuzz is not None:
        ranges.append(spec.fuzz.seqlens.length)
    listed += drawn[axis].values if axis in drawn else ()
    found = {each for value in listed for each in _integers(value)}
    for span in ranges:
        found |= set(range(span.low, min(span.high, span.low + _SOME) + 1)) if span else set()
    return sorted(found)


def _integers(value: Value) -> Iterator[int]:
    """The integers of a value: a number, or lengths."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _integers(each)
    elif isinstance(value, dict):
        yield from _integers(list(value.values()))


# Optional axes ------------------------------------------------------------------------------------


def optional_axes(family: Family) -> frozenset[str]:
    """The optional axes that a family reads; none without the attribute `optional_axes`."""
    return frozenset(getattr(family, "optional_axes", ())) & frozenset(OPTIONAL_AXES)


def lint_optional_axes(spec: Spec, family: Family) -> Iterator[Issue]:
    """An issue for each optional axis, in a case or in `fuzz`, that the family does not read."""
    known = optional_axes(family)
    regressions = tuple(each.case for each in spec.regressions)
    for key, cases in (("extra_cases", spec.extra_cases), ("regressions", regressions)):
        for number, case in enumerate(cases):
            for axis in case:
                if axis not in spec.axes and axis not in known:
                    hint = nearest(axis, [*spec.axes, *known])
                    message = f"neither the spec nor its problem has the axis {axis!r}{hint}"
                    yield spec.issue((key, number, axis), message)
    for index, name in enumerate(spec.fuzz.storage if spec.fuzz else ()):
        path = ("fuzz", "storage", index)
        if "storage" not in known:
            yield spec.issue(
                path, f"storage {name!r} has no effect: the problem has no axis `storage`"
            )
        elif name == "expanded" and not getattr(family, "cotangents", True):
            yield spec.issue(
                path, "storage 'expanded' has no effect: the problem has no cotangents"
            )
        elif name == "expanded" and "gradients" not in spec.checks:
            message = "storage 'expanded' has no effect: it needs the check 'gradients'"
            yield spec.issue(path, message)


# Relations --------------------------------------------------------------------------------------


def lint_relations(spec: Spec, family: Family) -> Iterator[Issue]:
    """An issue for each name under `relations:` that the family does not have.

    Any name passes if the family has no attribute `relation_names`.
    """
    known: Iterable[str] | None = getattr(family, "relation_names", None)
    for number, each in enumerate(spec.relations):
        name = each.name
        if known is None or name is None or ":" in name or name in (FINITE, *known):
            continue
        hint = suggestion(name, [FINITE, *known], "There are")
        message = f"unknown relation {name!r}{hint}, or package.module:name"
        yield spec.issue(("relations", number), message)


# Floors -------------------------------------------------------------------------------------------


def lint_floors(spec: Spec) -> Iterator[Issue]:
    """An issue for each floor that is at least the largest possible error of its tensors."""
    most = {name: 2 * largest for name, largest in _largest(spec).items()}
    if not most:
        return
    for path, name, change in _changes(spec):
        bound = max(most.values()) if name == "default" else most.get(name)
        if isinstance(change.floor, float | int) and bound is not None and change.floor >= bound:
            whose = "a result" if name == "default" else name
            yield spec.issue(
                (*path, "floor"),
                f"with the floor {change.floor:g} every finite result passes, even zeros: errors "
                f"of {whose} are at most {bound:g}; remove the floor to allow rounding errors only",
            )


def _changes(spec: Spec) -> Iterator[tuple[tuple[str, ...], str, AllowanceChange]]:
    tolerance = spec.tolerance
    yield ("tolerance", "default"), "default", tolerance.default
    for name, change in tolerance.tensors.items():
        yield ("tolerance", name), name, change
    for arch, changes in tolerance.by_arch.items():
        for name, change in changes.items():
            yield ("tolerance", "by_arch", arch, name), name, change


def _largest(spec: Spec) -> Mapping[str, float]:
    """The largest magnitude of each result, if the problem or its dtypes bound it."""
    if isinstance(spec.problem, DeclaredProblem):
        outputs = spec.problem.outputs
        declared = outputs if isinstance(outputs, dict) else {}
        found = {}
        for name in spec.problem.output_names:
            dtype = declared[name].dtype if name in declared else None
            of_inputs = {each.dtype_text for each in spec.problem.inputs.values()}
            found[name] = max(
                (_range_of(spec, each) for each in ({dtype} if dtype else of_inputs)),
                default=float("inf"),
            )
        return found
    dtypes = max((_range_of(spec, name) for name in ("$dtype", "$out_dtype")), default=0.0)
    match spec.problem:
        case "attention":
            # out is a weighted mean of values; gradients are sums, bounded by their dtype.
            return {"out": _LARGEST, "dq": dtypes, "dk": dtypes, "dv": dtypes}
        case "gemm":
            terms = max(
                (each for each in spec.axes.get("k", ()) if isinstance(each, int)), default=0
            )
            return {"c": min(dtypes or float("inf"), (1 + terms) * _LARGEST**2)}
        case "collective":
            ranks = max(
                (each for each in spec.axes.get("world", ()) if isinstance(each, int)), default=1
            )
            return {"y": ranks * _LARGEST}
    return {}


def _range_of(spec: Spec, dtype: str) -> float:
    """The largest finite value of a dtype, or of the dtypes of an axis: `$dtype`."""
    names = spec.axes.get(dtype[1:], ()) if dtype.startswith("$") else (dtype,)
    known = [DTYPES[name] for name in names if isinstance(name, str) and name in DTYPES]
    # No bound for integers, which are compared exactly.
    return max((each.largest if each.floating else float("inf") for each in known), default=0.0)
