"""Checks of the keys for several ranks: the axis `world`, `shards`, `context`, `cuda_graph`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.spec.issues import Fault
from tlmatrix.spec.lint.messages import show
from tlmatrix.spec.model.fields import ORDERS
from tlmatrix.spec.model.parts import DeclaredProblem
from tlmatrix.spec.model.sharding import WORLD, Shard
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value


def sharding_faults(
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
    lists: list[tuple[tuple[str | int, ...], Sequence[Value]]] = [
        (("axes", WORLD), spec.axes.get(WORLD, ()))
    ]
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
    path: tuple[str | int, ...] = ("shards", name)
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
    spec: Spec, order: str, path: tuple[str | int, ...], axes: Mapping[str, object]
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
    problem: DeclaredProblem, name: str, shard: Shard, path: tuple[str | int, ...]
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
