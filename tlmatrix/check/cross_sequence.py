"""Tests whether results depend on rows of other sequences that a kernel reads.

Blocks read whole tiles, past the end of their sequence, and mask these rows afterwards; that is
correct as long as the results do not depend on them. The test replaces the rows of some sequences
by huge values, runs the entry again, and compares the results of all other sequences. The bits of
a sequence's number decide in which runs it is changed, so that few runs separate every two.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.poison import poison_scale
from tlmatrix.unwinding import unwinds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tlmatrix.problem.model import Dim, Problem, Tensors

_CHANGED = 1e-3
"""Relative difference (to the element and to the mean) above which a result counts as changed; the
order of summation explains smaller ones."""


def depends_on_other_sequences(
    name: str, problem: Problem, first: Tensors, execute: Callable[[Problem], Tensors]
) -> bool:
    """Whether changed rows of the input `name` change results of other sequences.

    Also True if the test is not possible. `first` are the results of `problem`.
    """
    tensor = problem.inputs.get(name)
    rows = _sequence_axis(problem.dims.get(name, ()))
    results = {
        each: found
        for each, info in problem.outputs.items()
        if each in first and (found := _sequence_axis(info.dims)) is not None
    }
    if tensor is None or rows is None or not results or not tensor.is_floating_point():
        return True
    axis, sequences = rows
    for bit in range(max(sequences, default=0).bit_length()):
        for value in (0, 1):
            chosen = [at for at, number in enumerate(sequences) if number >> bit & 1 == value]
            if not chosen:
                continue
            changed = tensor.clone()
            index = torch.tensor(chosen, device=tensor.device)
            size = poison_scale(str(tensor.dtype).removeprefix("torch."))
            changed.index_copy_(axis, index, changed.index_select(axis, index) * size + size)
            inputs = {**problem.inputs, name: changed}
            try:
                again = execute(replace(problem, inputs=inputs, names={**problem.names, **inputs}))
            except BaseException as error:
                if unwinds(error):
                    raise
                return True
            for each, (along, numbers) in results.items():
                kept = [at for at, number in enumerate(numbers) if number >> bit & 1 != value]
                if kept and _differ(first[each], again.get(each), along, kept):
                    return True
    return False


def _sequence_axis(dims: Sequence[Dim]) -> tuple[int, list[int]] | None:
    """The dimension that runs over sequences, and the sequence of each of its indices."""
    for axis, dim in enumerate(dims):
        if dim.region is not None and dim.region_name is not None and dim.starts is not None:
            return axis, [int(region) for region in dim.region]
    for axis, dim in enumerate(dims):
        if dim.region is not None and dim.name == "sequence":
            return axis, [int(region) for region in dim.region]
    return None


def _differ(
    first: torch.Tensor, again: torch.Tensor | None, axis: int, kept: Sequence[int]
) -> bool:
    if again is None or again.shape != first.shape:
        return True
    index = torch.tensor(kept, device=first.device)
    one, two = (each.index_select(axis, index).double() for each in (first, again))
    size = torch.nan_to_num(one, 0.0, 0.0, 0.0).abs()
    allowed = _CHANGED * (size + size.mean())
    same = (one == two) | (one.isnan() & two.isnan()) | ((one - two).abs() <= allowed)
    return not bool(same.all())
