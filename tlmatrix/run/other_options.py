"""Problems of a case with another value of one option, and the same inputs.

If the results are those of such a problem, the code under test takes another value of the option: a
default, another corner of a mask, a window of one key more. They are built only for wrong results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.backend.axes import read_by_family
from tlmatrix.problem.model import OtherOption
from tlmatrix.spec.model.sharding import WORLD
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

    from tlmatrix.matrix import Case
    from tlmatrix.problem import Family, Problem
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

KEPT = frozenset({WORLD, "values", "storage"})
"""Axes that are no options of a call."""

_MOST = 24
"""Problems that are built for one case."""

_LARGEST = 2**22
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
    if sum(tensor.numel() for tensor in problem.inputs.values()) > _LARGEST:
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
