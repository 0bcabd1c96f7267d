"""Whether results depend on rows of other sequences that a kernel has read.

A block of a grid as long as the longest sequence reads whole tiles past the end of its own, and
masks them afterwards. That is no fault while nothing of them is used, so it is tried out: rows of
some sequences get enormous values, and the results of the others must stay. Which sequences are
changed goes by the bits of their numbers, so that any two are told apart in few runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.poison import poison_scale

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tlmatrix.problem.model import Dim, Problem, Tensors

__all__ = ["depends_on_other_sequences"]

_CHANGED = 1e-3
"""Of its own size and the usual one: more is no matter of the order of a sum."""


def depends_on_other_sequences(
    name: str, problem: Problem, first: Tensors, execute: Callable[[Problem], Tensors]
) -> bool:
    """Whether changed rows of the input `name` change results of other sequences than theirs.

    True, too, where that cannot be found out. `first` are the results of the problem itself.
    """
    tensor = problem.inputs.get(name)
    rows = _regions(problem.dims.get(name, ()))
    results = {
        each: found
        for each, info in problem.outputs.items()
        if each in first and (found := _regions(info.dims)) is not None
    }
    if tensor is None or rows is None or not results or not tensor.is_floating_point():
        return True
    axis, regions = rows
    for bit in range(max(regions, default=0).bit_length()):
        for value in (0, 1):
            chosen = [at for at, region in enumerate(regions) if region >> bit & 1 == value]
            if not chosen:
                continue
            changed = tensor.clone()
            place = torch.tensor(chosen, device=tensor.device)
            size = poison_scale(str(tensor.dtype).removeprefix("torch."))
            changed.index_copy_(axis, place, changed.index_select(axis, place) * size + size)
            inputs = {**problem.inputs, name: changed}
            try:
                again = execute(replace(problem, inputs=inputs, names={**problem.names, **inputs}))
            except Exception:  # noqa: BLE001 - the first run did not raise, so these rows decide
                return True
            for each, (along, owners) in results.items():
                kept = [at for at, region in enumerate(owners) if region >> bit & 1 != value]
                if kept and _differ(first[each], again.get(each), along, kept):
                    return True
    return False


def _regions(dims: Sequence[Dim]) -> tuple[int, list[int]] | None:
    """The dimension whose indices belong to sequences, and whose each is."""
    for axis, dim in enumerate(dims):
        if dim.region is not None and dim.region_name is not None and dim.starts is not None:
            return axis, [int(region) for region in dim.region]
    for axis, dim in enumerate(dims):
        if dim.region is not None and dim.name == "sequence":
            return axis, [int(region) for region in dim.region]
    return None


def _differ(mine: torch.Tensor, other: torch.Tensor | None, axis: int, kept: Sequence[int]) -> bool:
    if other is None or other.shape != mine.shape:
        return True
    place = torch.tensor(kept, device=mine.device)
    one, two = (each.index_select(axis, place).double() for each in (mine, other))
    usual = torch.nan_to_num(one, 0.0, 0.0, 0.0).abs()
    allowed = _CHANGED * (usual + usual.mean())
    same = (one == two) | (one.isnan() & two.isnan()) | ((one - two).abs() <= allowed)
    return not bool(same.all())
