"""Calls before, within and around a call: with other options, or with other data and lengths.

An entry that prepares calls, keeps workspaces or saves options for its backward pass may take those
of another call. The other call is another case of the spec, which differs in one axis if the
constraints allow that. It comes before the call and, if that has gradients, again between its
forward and its backward pass. So does, in other cases, the call with other data. In a few, up to
three calls of the two have their passes in an order that the case's seed selects.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from tlmatrix.backend.axes import read_by_family
from tlmatrix.backend.binding.calls import stated_default
from tlmatrix.matrix import known_bug
from tlmatrix.problem.model import (
    CapturedRelation,
    History,
    HistoryRelation,
    ManyCallsRelation,
    OtherOption,
    ReferenceFailedError,
    Relation,
    judged_alone,
)
from tlmatrix.problem.relations import repeated
from tlmatrix.problem.sharding import Sharding
from tlmatrix.spec.expr.expression import Expression, ExpressionError
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.calling import expression
from tlmatrix.spec.model.spec import WORLD, has_ranks
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tlmatrix.backend import Backend
    from tlmatrix.matrix import Case
    from tlmatrix.problem import Family, Problem, RelationKind
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value


_Step = Literal["forward", "backward", "free"]

_ATTEMPTS = 8
"""Other cases that are tried: constraints exclude some, and some cannot be sharded."""

_OF_OTHER_SHAPES = 4
"""Of this many cases, one takes any other case, and others one with inputs of the same shapes."""

_MANY_RANKS = 4
"""Ranks above which a case has many."""

_LARGEST = 4
"""How many times larger the tensors of the other call may be."""


_CONDITIONAL = re.compile(r"(.+?) if (.+?) else (.+)")


def another_case(
    spec: Spec,
    case: Case,
    problem: Problem,
    make: Callable[[Mapping[str, Value]], Problem],
    environment: Mapping[str, object],
    *,
    allowed: Callable[[Mapping[str, Value]], bool],
    transposed: bool = True,
) -> tuple[str, Problem] | None:
    """A case with other values of one axis, or two, and how it differs; None if there is none.

    Mostly one whose inputs have the same shapes, if there is one: what an entry keeps may be found
    again by these alone. Where an input is square, it may be one that stores it transposed.

    Args:
        spec: the spec.
        case: the case.
        problem: its problem.
        make: builds the problem of another case.
        environment: the names `arch` and `backend`.
        allowed: whether a case may be the other one.
        transposed: whether it may be any that stores a square input transposed.
    """
    if transposed and (square := _transposed_case(spec, case, problem, make, environment)):
        return square
    pick = random.Random(case.seed ^ 0x5A9E)  # noqa: S311 - test data, not secrets
    offered = {}
    for axis in spec.axes.keys() - KEPT:
        own = canonical(case.values[axis])
        others = [
            value
            for value in spec.axes[axis]
            if canonical(value) != own and allowed({**case.values, axis: value})
        ]
        if others:
            offered[axis] = others
    order = pick.sample(sorted(offered), len(offered))
    found: tuple[str, Problem] | None = None
    for attempt in range(_ATTEMPTS if offered else 0):
        # Constraints may tie axes to each other.
        count = min(1 + attempt // 4, len(offered))
        axes = pick.sample(order, count) if count > 1 else [order[attempt % len(order)]]
        changed = {axis: pick.choice(offered[axis]) for axis in axes}
        values = {**case.values, **changed}
        another = replace(case, values=values)
        try:
            if not spec.allows(values) or known_bug(spec, another, environment) is not None:
                continue
            made = make(values)
        except (ExpressionError, SpecError, ValueError, ReferenceFailedError):
            continue  # a case of its own
        too_large = _elements(made) > _LARGEST * _elements(problem)
        if too_large or _devices(made) != _devices(problem):
            continue
        differing = ", ".join(f"{axis}={value}" for axis, value in changed.items()), made
        if case.seed // 3 % _OF_OTHER_SHAPES == 0 or _shapes(made) == _shapes(problem):
            return differing
        found = found or differing
    return found


def _transposed_case(
    spec: Spec,
    case: Case,
    problem: Problem,
    make: Callable[[Mapping[str, Value]], Problem],
    environment: Mapping[str, object],
) -> tuple[str, Problem] | None:
    """A case with an option that changes the order of an input's dimensions, and not its shape.

    Sizes seldom hide that order: shapes are then all that a cached call has of the option.
    """
    own = _local_shapes(spec, problem)
    sizes = [[size for size in shape if size > 1] for shape in own.values()]
    if all(len({*each}) == len(each) for each in sizes):
        return None
    dims = _orders(problem)
    for axis in sorted(spec.axes.keys() - KEPT):
        if not isinstance(case.values[axis], bool | str):
            continue
        for value in spec.axes[axis]:
            values = {**case.values, axis: value}
            if canonical(value) == canonical(case.values[axis]) or not spec.allows(values):
                continue
            if known_bug(spec, replace(case, values=values), environment) is not None:
                continue
            try:
                made = make(values)
                same = _local_shapes(spec, made) == own
            except (ExpressionError, SpecError, ValueError, ReferenceFailedError):
                continue  # a case of its own
            if same and _orders(made) != dims and _devices(made) == _devices(problem):
                return f"{axis}={value}", made
    return None


def _local_shapes(spec: Spec, problem: Problem) -> dict[str, tuple[int, ...]]:
    """The shapes of the inputs, on ranks those of the first one."""
    shapes = {name: tuple(each.shape) for name, each in problem.inputs.items()}
    if not has_ranks(spec):
        return shapes
    splits = Sharding.of(spec, problem).splits
    return {n: splits[n].shape(each, 0) if n in splits else each for n, each in shapes.items()}


def _orders(problem: Problem) -> dict[str, tuple[str, ...]]:
    """The names of the dimensions of each input."""
    return {
        name: tuple(_taken(dim.name, problem.values) for dim in dims)
        for name, dims in problem.dims.items()
    }


def _taken(name: str, values: Mapping[str, Value]) -> str:
    """The name of a dimension; of `a if condition else b` that which the case has."""
    parts = _CONDITIONAL.fullmatch(name)
    if parts is None:
        return name
    try:
        condition = Expression(parts[2]).evaluate(values)
    except ExpressionError:
        return name
    return _taken(parts[1] if condition else parts[3], values)


def _shapes(problem: Problem) -> list[tuple[str, torch.Size, torch.dtype]]:
    return [(name, each.shape, each.dtype) for name, each in problem.inputs.items()]


def with_other_options(
    problem: Problem,
    another: Callable[[], tuple[str, Problem] | None],
    *,
    stale: Callable[[], Problem] | None,
) -> Problem:
    """Add the relation to a problem, if its spec has another case (`another_case`).

    `stale` builds the problem whose results a call with options of its own may repeat. Without it,
    as on several ranks, the other call comes before only, and not between two passes.
    """

    def relations() -> Iterator[Relation]:
        if (found := another()) is not None:
            changed, call = found
            again = replace(problem, between=(call,) if problem.cotangents and stale else ())
            because = f"a call with {changed} came before"
            if again.between:
                because += ", and between the forward and the backward pass"
            yield repeated(
                call,
                again,
                because,
                name="other_options",
                judge=(0,) if problem.has_reference else (),
                stale=stale,
            )

    return problem.with_relations("repeat", relations)


def with_default_values(
    spec: Spec,
    case: Case,
    problem: Problem,
    make: Callable[[Mapping[str, Value]], Problem],
    done: set[str],
) -> Problem:
    """Add calls without options whose defaults the code computes (`defaults` of the spec).

    Each is a call on the problem with the value that the spec states, judged by the reference, once
    for all values of the axes that the statement names, and in half of the cases: it may need a
    kernel of its own. Where the case has that value itself, equal calls leave the option out
    (`Problem.defaults`).

    Args:
        spec: the spec.
        case: the case.
        problem: its problem.
        make: builds the problem of other axis values from the same seed.
        done: what was checked in this process; the relations add to it.
    """

    def relations() -> Iterator[Relation]:
        for option, said in spec.defaults.items():
            if option not in spec.axes or not isinstance(said, str):
                continue
            read = sorted((expression(said).names & case.values.keys()) - {option})
            key = canonical([option, *(case.values[axis] for axis in read)])
            if key in done or option in problem.defaults:
                done.add(key)
                continue
            if case.seed // 13 % 2:
                continue
            value = stated_default(spec, option, problem)
            values = {**case.values, option: value}
            try:
                if value is None or not spec.allows(values):
                    continue
                other = replace(make(values), left_out=(option,))
            except (ExpressionError, SpecError, ValueError):
                continue
            done.add(key)
            yield judged_alone(
                "default_value",
                other,
                because=f"called without {option}, which stands for {value}",
            )

    return problem.with_relations("relations", relations) if spec.defaults else problem


def many_ranks(spec: Spec, case: Case) -> bool:
    """Whether a case has many ranks, and others of its spec have fewer.

    Calls whose outcome hardly depends on the number of ranks take time in proportion to it.
    """
    world = case.values.get(WORLD, 1)
    fewer = [value for value in spec.axes.get(WORLD, ()) if isinstance(value, int) and value > 1]
    return isinstance(world, int) and world > max(_MANY_RANKS, min(fewer, default=_MANY_RANKS))


def with_one_relation(problem: Problem, seed: int) -> Problem:
    """The problem with one relation of each kind, as `seed` selects: on many ranks."""

    def relations(kind: RelationKind) -> Iterator[Relation]:
        found = list(problem.relations(kind))
        if found:
            yield found[seed // 5 % len(found)]

    return replace(problem, relations=relations)


def with_many_calls(spec: Spec, case: Case, problem: Problem) -> Problem:
    """Calls after so many that epochs and flags pass 2^31 and 2^32, on several ranks."""
    if spec.context is None or case.values.get(WORLD) == 1 or many_ranks(spec, case):
        return problem
    relation = ManyCallsRelation(
        "many_calls",
        "repeat",
        (problem,) * 2,
        because="what the context counts was advanced to just below 2^31, or 2^32; advanced by a "
        "few calls, the results are right: compare flags by their signed difference, in 32 bits",
    )
    return problem.with_relations("repeat", lambda: (relation,))


def with_call_between(problem: Problem, seed: int) -> Problem:
    """Repeat the other call of `repeat` between the forward and the backward pass.

    The calls get refilled tensors, or new ones at the same addresses, as `seed` selects.
    """

    def between(relation: Relation) -> Relation:
        other, again = relation.problems
        again = replace(again, renewed=bool(seed & 8))
        if not problem.cotangents:
            return replace(relation, problems=(other, again))
        again = replace(again, between=(other,))
        because = f"{relation.because}; it came between forward and backward, too"
        return replace(relation, problems=(other, again), because=because)

    return _with_repeat(problem, between)


def _with_repeat(problem: Problem, change: Callable[[Relation], Relation]) -> Problem:
    """The problem with its relation `repeat` changed."""

    def relations(kind: RelationKind) -> Iterator[Relation]:
        for relation in problem.relations(kind):
            yield change(relation) if relation.name == "repeat" else relation

    return replace(problem, relations=relations)


def with_history(
    problem: Problem,
    seed: int,
    another: Callable[[], tuple[str, Problem] | None],
    *,
    backward: bool,
    exact: bool,
) -> Problem:
    """Make the calls of `repeat` in an order that `seed` selects.

    In half of the cases the other call has another option or shape.

    Args:
        problem: the problem.
        seed: the seed of the case.
        another: another case and how it differs (`another_case`).
        backward: whether calls have a backward pass.
        exact: whether equal calls give equal bits.
    """

    def in_order(relation: Relation) -> Relation:
        first, again = relation.problems
        difference, other = "other data", replace(first, renewed=bool(seed & 8))
        if found := another() if seed & 16 else None:
            difference, other = found
        calls, steps = _drawn_steps(seed, backward=backward)
        history = History(other, calls, steps, exact, difference)
        because = relation.because
        return repeated(first, again, because, of=HistoryRelation, name="history", history=history)

    return _with_repeat(problem, in_order)


def _drawn_steps(
    seed: int, *, backward: bool
) -> tuple[tuple[Literal["a", "b"], ...], tuple[tuple[_Step, int], ...]]:
    """The problems of two or three calls, and the order of their passes."""
    pick = random.Random(seed ^ 0x415)  # noqa: S311 - test data, not secrets
    calls: list[Literal["a", "b"]] = ["a", "b"]
    if not backward or pick.randrange(2):
        calls.append(pick.choice(("a", "b")))
    pick.shuffle(calls)
    steps: list[tuple[_Step, int]] = []
    begun, pending = 0, list[int]()
    while begun < len(calls) or pending:
        if begun < len(calls) and (len(pending) < 2 or pick.randrange(2)):
            steps.append(("forward", begun))
            if backward:
                pending.append(begun)
            begun += 1
            continue
        # Calls within others come in `with_call_between`: mostly, the first to begin ends first.
        number = pending.pop(0 if pick.randrange(3) else -1)
        dropped = calls[number] == "b" and pick.randrange(4) == 0
        steps.append(("free" if dropped else "backward", number))
    while steps[-1][0] == "free":
        steps.pop()
    return tuple(calls), tuple(steps)


def _devices(problem: Problem) -> set[str]:
    """Types of the devices of the inputs; checks of a large case are made on the GPU."""
    return {tensor.device.type for tensor in problem.inputs.values()}


def _elements(problem: Problem) -> int:
    return sum(tensor.numel() for tensor in problem.inputs.values())


# Other values of one option, with the same inputs ----------------------------------------------
#
# If the results are those of such a problem, the code under test takes another value of the option:
# a default, another corner of a mask, a window of one key more. They are built only for wrong
# results.


KEPT = frozenset({WORLD, "values", "storage"})
"""Axes that are no options of a call."""

_MOST = 24
"""Problems that are built for one case."""

_LARGEST_INPUTS = 2**22
"""Elements of inputs above which none are built."""


def other_options(
    spec: Spec,
    case: Case,
    family: Family,
    problem: Problem,
    make: Callable[[Mapping[str, Value]], Problem],
) -> Iterator[OtherOption]:
    """The problems of a case with another value of one option, and bitwise the same inputs.

    Constraints need not hold: a bug may do what no case asks for.

    Args:
        spec: the spec.
        case: the case.
        family: its family, which may know more values of its axes.
        problem: the problem of the case.
        make: builds the problem of other axis values from the same seed.
    """
    if sum(tensor.numel() for tensor in problem.inputs.values()) > _LARGEST_INPUTS:
        return
    left = _MOST
    for axis, values in _values(spec, case, family).items():
        for value in values:
            left -= 1
            if left < 0:
                return
            try:
                other = make({**case.values, axis: value})
            except Exception:  # noqa: BLE001, S112 - such as a window without a causal mask
                continue
            if not _same_inputs(problem, other):
                break  # a size, or another option of the inputs
            yield OtherOption(axis, value, case.values.get(axis), other)


def _values(spec: Spec, case: Case, family: Family) -> dict[str, Sequence[Value]]:
    """Other values of each axis: those that the spec lists or the family knows, and neighbors."""
    known: Mapping[str, tuple[Value, ...]] = getattr(family, "option_values", {})
    read = read_by_family(spec, family)
    found: dict[str, Sequence[Value]] = {}
    for axis in dict.fromkeys((*spec.axes, *known)):
        if axis in KEPT or (read is not None and axis not in read):
            continue  # the reference is the same for all its values
        own = case.values.get(axis)
        values: list[Value] = [*spec.axes.get(axis, ()), *known.get(axis, ())]
        if isinstance(own, bool):
            values.append(not own)
        elif isinstance(own, int):
            values += (own - 1, own + 1)
        distinct = {canonical(value): value for value in values}
        if axis in case.values:
            distinct.pop(canonical(own), None)
        found[axis] = list(distinct.values())
    return found


def _same_inputs(problem: Problem, other: Problem) -> bool:
    """Whether all inputs of the other problem are inputs of the first, bit for bit."""
    from tlmatrix.check.memory import same_bits

    def known(name: str, tensor: torch.Tensor) -> bool:
        own = problem.inputs.get(name)
        return own is not None and same_bits(own, tensor)

    shared = problem.outputs.keys() & other.outputs.keys()
    return (
        bool(shared)
        and all(known(name, tensor) for name, tensor in other.inputs.items())
        and all(other.outputs[name].shape == problem.outputs[name].shape for name in shared)
    )


# Calls captured to a CUDA graph, and replayed with other data ----------------------------------


CUDA_GRAPH = "cuda_graph"
"""The name of the relation in findings."""


def with_cuda_graph(spec: Spec, case: Case, problem: Problem, backend: Backend) -> Problem:
    """Add a captured and replayed call to the problem's relations, if the spec has `cuda_graph`."""
    rule = spec.cuda_graph
    if rule is None or not backend.captures_graphs:
        return problem
    names = {**case.values, "arch": backend.arch, "backend": backend.name}
    allowed = bool(rule.when.evaluate(names))
    refusal = None if allowed else rule.otherwise
    if not allowed and refusal is None:
        return problem

    def relations() -> Iterator[Relation]:
        other: Problem | None = problem  # an expected refusal is never replayed
        if refusal is None:
            repeats = (each for each in problem.relations("repeat") if each.name == "repeat")
            other = next((each.problems[0] for each in repeats), None)
        if other is not None and _differ_in_data_alone(problem, other):
            because = "the call was captured to a CUDA graph once, and replayed with other data"
            yield repeated(
                other,
                problem,
                because,
                of=CapturedRelation,
                name=CUDA_GRAPH,
                refused=None if refusal is None else (refusal.raises, refusal.message),
                exact=rule.mode != "bounded",
            )

    return problem.with_relations("repeat", relations)


def _differ_in_data_alone(problem: Problem, other: Problem) -> bool:
    """Whether only tensor data differ: a replay uses the capture's other arguments."""
    if problem.names.keys() != other.names.keys():
        return False
    return all(_compatible(value, other.names[name]) for name, value in problem.names.items())


def _compatible(one: Any, other: Any) -> bool:  # noqa: ANN401 - any argument of an entry
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return bool(one == other) if type(one) is type(other) else False
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and one.stride() == other.stride()
