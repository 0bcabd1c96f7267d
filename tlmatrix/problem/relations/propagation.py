"""Relations of NaN and infinity: one in an input reaches the results that depend on it.

The float64 reference, given the same value, says how far it may reach: also to results that
multiply it by 0, such as masked products, or that add -inf to it, such as masked scores. Another
finite value in its place says which results depend on it: these must not be finite. Rows of NaN may
give any results, but no access outside of a tensor, as with an index that no comparison has set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.dtypes import is_float8
from tlmatrix.problem.declared.carried import as_products
from tlmatrix.problem.declared.operators import Call, OperatorMode
from tlmatrix.problem.distributions import seeded_random
from tlmatrix.problem.model import Reach, ReachRelation, ReferenceFailedError, Relation

if TYPE_CHECKING:
    from tlmatrix.problem.model import Dim, Problem, Tensors
    from tlmatrix.spec.model.spec import Spec

_TRIES = 8
"""Elements of inputs tried, until one is no padding and changes a result."""
_ROWS_OF_NAN = 0.5
"""The share of cases that are called with rows of NaN, too."""
_NOISE = 1e-9
"""Differences up to this part of a value are the rounding of float64 sums in another order."""
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_SELECTIONS = (
    *("max", "amax", "argmax", "min", "amin", "argmin", "topk", "sort"),
    *("max_pool2d_with_indices", "max_pool3d_with_indices"),
)
_MASK = -1e4
"""Scores below are masks."""
_ROWS = ("batch", "sequence", "position")
"""Names of axes along which a NaN may reach other rows by default."""
_NAMED_ROWS = (
    "name the axes of the output along which it may spread `batch`, `sequence` or `position`, as "
    "`outputs: {%s: {dims: [batch, position, head, dim]}}`"
)


def with_propagation(spec: Spec, problem: Problem, seed: int) -> Problem:
    """The problem with a relation that puts NaN or an infinity into one element of an input.

    The seed selects the input, the element and the value. There is no such relation without a
    reference, or if the problem cannot replace inputs.
    """
    if not problem.has_reference or problem.with_inputs is None:
        return problem
    return problem.with_relations(
        "propagation",
        lambda: (*_propagation(problem, seed, spec.propagation), *_rows_of_nan(problem, seed)),
    )


def _rows_of_nan(problem: Problem, seed: int) -> Iterator[Relation]:
    """A call with NaN in all of some rows of an input, in some cases; its results do not matter."""
    assert problem.with_inputs is not None
    pick = seeded_random(seed + 14)
    names = _changeable(problem)
    if not names or pick.random() >= _ROWS_OF_NAN:
        return
    name = pick.choice(names)
    tensor = problem.inputs[name]
    rows = torch.zeros((*tensor.shape[:-1], 1), dtype=torch.bool, device=tensor.device)
    count = rows.numel()
    rows.view(-1)[pick.sample(range(count), max(1, count // 4))] = True
    changed = tensor.float().masked_fill(rows, torch.nan).to(tensor.dtype)
    try:
        other = problem.with_inputs({name: changed})
    except ReferenceFailedError:
        return
    yield Relation(
        "rows_of_nan",
        "propagation",
        (other,),
        left=lambda _results: {},
        right=lambda _results: {},
        because=f"{name} has rows of NaN: is an index used that no comparison with them has set?",
    )


def _changeable(problem: Problem) -> list[str]:
    """The floating-point inputs of which one element can change alone."""
    return sorted(
        name
        for name, tensor in problem.inputs.items()
        if tensor.dtype.is_floating_point and tensor.numel() and not _expanded(tensor)
    )


def _propagation(problem: Problem, seed: int, extent: str | None) -> Iterator[ReachRelation]:
    pick = seeded_random(seed + 4)
    results = [info.dtype for info in problem.outputs.values() if info.dtype.is_floating_point]
    names = _changeable(problem)
    # GPUs convert an infinity to the largest float8.
    narrow = any(map(is_float8, results))
    values = (math.nan,) if narrow else (math.nan, math.nan, math.inf, -math.inf)
    if not names or not results:
        return
    for _ in range(_TRIES):
        name, value = pick.choice(names), pick.choice(values)
        tensor = problem.inputs[name]
        if is_float8(tensor.dtype):
            value = math.nan
        index = tuple(pick.randrange(size) for size in tensor.shape)
        try:
            relation = _relation(problem, name, index, value, extent)
        except ReferenceFailedError:
            return
        if relation is not None:
            yield relation
            return


def _relation(
    problem: Problem, name: str, index: Sequence[int], value: float, extent: str | None
) -> ReachRelation | None:
    """The relation of one element; None if it is padding, or no result depends on it."""
    assert problem.with_inputs is not None
    other = _changed(problem, name, index, value)
    if other.inputs[name].float().isfinite().all():
        return None
    before = float(problem.inputs[name][tuple(index)])
    finite = before if math.isfinite(before) else 0.0  # a sink may be -inf
    depends = _depends(problem, _changed(problem, name, index, 0.75 - finite / 2).reference())
    if not any(bool(each.any()) for each in depends.values()):
        return None
    reached = [other.reference()]
    if math.isinf(value):
        reached.append(_changed(problem, name, index, math.nan).reference())
    if extent in ("packed", None):
        reach = _reach(problem, reached, depends, partial(_added_masks, problem, name, index))
    else:
        remedy = "write `propagation: packed`" if extent == "exact" else "leave `propagation` out"
        reach = _reach(problem, reached, depends)
        reach = replace(reach, remedy=dict.fromkeys(reach.never, remedy))
    if not any(bool(each.any()) for each in reach.must.values()):
        return None
    if extent in ("selected", None):
        nothing = {name: torch.zeros_like(mask) for name, mask in reach.must.items()}
        reach = replace(reach, must=nothing)
        # Of an element that vanishes the gradient may vanish, too.
        for gradient in (gradient for gradient, of in problem.gradient_of.items() if of == name):
            reach.never[gradient][tuple(index)] = False
    reach = replace(reach, compared=partial(_compared, problem, name, index))
    if extent in ("packed", None):
        reach = replace(reach, mixed=partial(_mixed, problem, name, index))
    place = f"{name}[{', '.join(map(str, index))}]"
    return ReachRelation(
        "propagation",
        "propagation",
        (other,),
        because=f"{value} at {place} must reach the results that depend on it, and no others",
        words="the first call",
        reach=reach,
    )


def _changed(problem: Problem, name: str, index: Sequence[int], value: float) -> Problem:
    assert problem.with_inputs is not None
    changed = problem.inputs[name].clone(memory_format=torch.contiguous_format)
    changed[tuple(index)] = value
    return problem.with_inputs({name: changed})


def _compared(problem: Problem, name: str, index: Sequence[int]) -> Tensors:
    """The elements of each result that change if comparisons with NaN go the other way.

    Or if what selects an element passes over a NaN: `x == x.amax(0)` holds elsewhere then. What
    sorts by comparisons may leave a row with a NaN in any order.
    """
    expected = _changed(problem, name, index, math.nan).reference()
    found = _out_of_order(problem, name, index)
    for turned in (True, False):
        with as_products(), _OtherComparisons(turned=turned):
            others = _changed(problem, name, index, math.nan).reference()
        for of, each in expected.items():
            found[of] |= ~((others[of] - each).abs() <= each.abs() * _NOISE)
    return found


def _mixed(problem: Problem, name: str, index: Sequence[int]) -> Tensors:
    """The elements of each result that a NaN reaches from a row that is summed with this one.

    Causal products, as of attention without a softmax, multiply tiles of rows, those past a row by
    0, where a reference may go through them row by row. Along an axis of the input where a NaN
    elsewhere reaches the same element of a result, it may also reach what only that one reaches.
    So may a NaN among numbers that are sorted.
    """
    reached = _touched(problem, name, index)
    found = _out_of_order(problem, name, index)
    for axis, size in enumerate(problem.inputs[name].shape):
        own = index[axis]
        for place in sorted({0, own - 1, own + 1, size - 1} & {*range(size)} - {own}):
            others = _touched(problem, name, (*index[:axis], place, *index[axis + 1 :]))
            for of, mask in others.items():
                if bool((mask & reached[of]).any()):
                    found[of] |= mask
    return found


def _out_of_order(problem: Problem, name: str, index: Sequence[int]) -> Tensors:
    """The elements of each result that a NaN reaches if it may be anywhere where it is sorted."""
    with as_products(), _AnyOrder():
        return _touched(problem, name, index)


def _touched(problem: Problem, name: str, index: Sequence[int]) -> Tensors:
    """The elements of each result that are NaN with a NaN in this element of an input."""
    results = _changed(problem, name, index, math.nan).reference()
    return {of: each.isnan() for of, each in results.items()}


def _added_masks(problem: Problem, name: str, index: Sequence[int]) -> Tensors:
    """The reference with a NaN, and with masks that are added to scores where it may select.

    Both are right for a kernel: adding -inf to a NaN keeps it, selecting -inf hides it.
    """
    with as_products(), _AddedMasks():
        return _changed(problem, name, index, math.nan).reference()


def _depends(problem: Problem, moved: Tensors) -> Tensors:
    """The elements of each result that another finite value changes, from the reference with it."""
    expected = problem.reference()
    found = {}
    for name, info in problem.outputs.items():
        if info.dtype.is_floating_point:
            change = (moved[name] - expected[name]).abs_()
            found[name] = (change > expected[name].abs().mul_(_NOISE)) & (change < torch.inf)
    return found


def _reach(
    problem: Problem,
    reached: Sequence[Tensors],
    depends: Tensors,
    spread: Callable[[], Tensors] | None = None,
) -> Reach:
    """How far the value reaches, from the references with it, then with NaN instead of infinity.

    With `spread` it may reach other rows. Which axes of a result are rows is known by their names;
    without any, a NaN may spread as in the reference that `spread` computes.

    A score of -inf has the weight 0, so that only an infinite result shows that an infinity cannot
    vanish. Where a result depends on the element, as its finite change shows, a NaN may reach it
    though the reference masks the NaN.
    """
    must, never, masked, remedy = {}, {}, {}, {}
    masks: Tensors = {}
    expected = problem.reference()
    for name, depending in depends.items():
        before, after = expected[name], reached[0][name]
        size = before.abs()
        finite = size < torch.inf  # several times faster than `isfinite`
        allowed = size.mul_(_NOISE)
        lost = after.isinf() if len(reached) > 1 else ~(after.abs() < torch.inf)
        must[name] = finite & lost & depending
        masked[name] = int((finite & depending & ~reached[-1][name].isnan()).sum())
        touched = torch.zeros_like(finite)
        for each in reached:
            touched |= ~((each[name] - before).abs_() <= allowed)
        dims = problem.outputs[name].dims
        rows = [axis for axis, dim in enumerate(dims) if _along_rows(dim)]
        if spread is not None and not rows:
            remedy[name] = _NAMED_ROWS % name
            masks = masks or spread()
            touched |= ~masks[name].isfinite()
        elif spread is not None and touched.numel():
            touched = touched.amax(rows, keepdim=True).expand_as(touched)
        never[name] = finite & ~touched & ~depending
    return Reach(must, never, nan=len(reached) == 1, masked=masked, remedy=remedy)


def _along_rows(dim: Dim) -> bool:
    return dim.starts is not None or dim.name in _ROWS


class _AddedMasks(OperatorMode):  # type: ignore[no-untyped-call]
    """Keeps a NaN that a mask replaces with a large negative number, as if it were added."""

    def run(self, call: Call) -> Any:  # noqa: ANN401
        """Call the operator; if it selects, keep the NaN that it does not."""
        name, args = call.name.rstrip("_"), call.args
        if name == "where" and len(args) == 3:
            one, other = (torch.as_tensor(each).isnan() for each in args[1:])
            hidden = torch.where(args[0], other.to(args[0].device), one.to(args[0].device))
        elif name in ("masked_fill", "index_put"):
            hidden = args[0].isnan()
        else:
            return call.result()
        result = call.result()
        return result.masked_fill_(hidden & (result < _MASK), torch.nan) if hidden.any() else result


class _AnyOrder(OperatorMode):  # type: ignore[no-untyped-call]
    """Fills what is sorted beside a NaN with NaN."""

    def run(self, call: Call) -> Any:  # noqa: ANN401
        """Call the operator; of `sort` and `topk` rows with a NaN are NaN."""
        result, name = call.result(), call.name
        if name not in ("sort", "topk") or not call.args[0].is_floating_point():
            return result
        place = 2 if name == "topk" else 1
        dim = call.args[place] if len(call.args) > place else call.kwargs.get("dim", -1)
        numbers, order = result
        lost = call.args[0].isnan().any(dim, keepdim=True) if numbers.dim() else numbers.isnan()
        return numbers.masked_fill(lost, torch.nan), order


class _OtherComparisons(OperatorMode):  # type: ignore[no-untyped-call]
    """Takes the other answer of a comparison with NaN, as `not h > 0` does for `h <= 0`.

    What selects an element, as max pooling does, passes over a NaN, as `if value > best` does;
    unless `turned`, that alone.
    """

    def __init__(self, *, turned: bool) -> None:
        super().__init__()
        self.turned = turned

    def run(self, call: Call) -> Any:  # noqa: ANN401
        """Call the operator, and turn what it says of NaN."""
        name = call.name.rstrip("_")
        if name in _SELECTIONS and call.args[0].is_floating_point():
            least = torch.inf if name in ("argmin", "amin", "min") else -torch.inf
            first = call.args[0].masked_fill(call.args[0].isnan(), least)
            return call.func(first, *call.args[1:], **call.kwargs)
        result, args = call.result(), call.args
        if not self.turned:
            return result
        if name in _COMPARISONS and isinstance(result, torch.Tensor):
            for each in args[:2]:
                if isinstance(each, torch.Tensor) and each.is_floating_point():
                    result = result ^ each.isnan()
        elif name == "threshold_backward":
            result = torch.where(args[1].isnan(), args[0] - result, result)
        return result


def _expanded(tensor: torch.Tensor) -> bool:
    """Whether elements share memory, so that one cannot change alone."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return any(stride == 0 and size > 1 for size, stride in pairs)
