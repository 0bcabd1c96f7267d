"""Rows that results must not depend on, found by runs with other values there.

Padding and the slots of a cache past a length hold NaN or huge values, on which no result may
depend. If a wrong element is right with zeros in all of these rows, a bisection finds one that
makes it wrong alone. If finite values in that row change nothing, the kernel multiplies it by 0.

Blocks read whole tiles, past the end of their sequence, and mask these rows afterwards; that is
correct as long as the results do not depend on them. The test replaces the rows of some sequences
by huge values, runs the entry again, and compares the results of all other sequences. The bits of
a sequence's number decide in which runs it is changed, so that few runs separate every two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from tlmatrix.check.memory import copy_with_offset
from tlmatrix.problem.distributions import poison_scale
from tlmatrix.tracebacks import unwinds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tlmatrix.check.numeric import Deviation
    from tlmatrix.check.tolerance import ReferenceBounds
    from tlmatrix.problem.model import Dim, Problem, Tensors

Row = tuple[str, tuple[int, ...]]
"""An input, and an index of its leading dimensions."""


def poisoned_row_hints(
    wrong: Mapping[str, Deviation], bounds: ReferenceBounds, run: Callable[[Problem], Tensors]
) -> dict[str, str]:
    """The hint of each wrong result whose worst element depends on a poisoned row.

    `run` calls the entry with a problem; there is no hint if that raises.
    """
    try:
        return _hints(wrong, _Search(bounds, run))
    except BaseException as error:
        if unwinds(error):
            raise
        return {}


def _hints(wrong: Mapping[str, Deviation], search: _Search) -> dict[str, str]:
    elements = {name: each for name, each in wrong.items() if each.distance == "element"}
    if not elements or not search.rows:
        return {}
    clean = search.results(())
    cured = {
        name: each for name, each in elements.items() if not search.wrong(name, each.worst, clean)
    }
    if not cured:
        return {}
    name = next(iter(cured))
    rows = search.fewest(name, cured[name].worst)
    alone = search.results(rows)
    hint = search.words(rows, name, cured[name].worst)
    if hint is None:
        return {}
    return {name: hint for name, each in cured.items() if search.wrong(name, each.worst, alone)}


@dataclass
class _Search:
    """Runs a problem with the poison of some rows only."""

    bounds: ReferenceBounds
    run: Callable[[Problem], Tensors]

    @property
    def problem(self) -> Problem:
        return self.bounds.problem

    @cached_property
    def rows(self) -> list[Row]:
        """The rows on which no result may depend, and others that are not finite."""
        unused, found = self.problem.unused(), []
        for name, tensor in self.problem.inputs.items():
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            if name in unused:
                mask = unused[name].mask
            else:
                mask = ~tensor.float().isfinite()
                mask = mask.any(-1) if mask.ndim > 1 else mask
            found += [(name, tuple(index)) for index in mask.nonzero().tolist()]
        return found

    def results(self, kept: Sequence[Row], filler: float = 0.0) -> Tensors:
        """The results with the values of the rows `kept`, and `filler` in all others of `rows`."""
        keep, changed = set(kept), {}
        for name in dict.fromkeys(name for name, _ in self.rows):
            tensor = self.problem.inputs[name]
            changed[id(tensor)] = copy = copy_with_offset(tensor.detach())
            filled = [
                index for each, index in self.rows if each == name and (each, index) not in keep
            ]
            if filled:
                copy[torch.tensor(filled, device=copy.device).unbind(1)] = filler
        return self.run(self.problem.map_tensors(lambda tensor: changed.get(id(tensor), tensor)))

    def wrong(self, name: str, place: int, results: Tensors) -> bool:
        """Whether an element of a result is beyond its error bound."""
        if name not in results:
            return True
        got = float(results[name].flatten()[place].double())
        expected = float(self.bounds.reference[name].flatten()[place])
        limit = float(self.bounds.error_bound(name).element.flatten()[place])
        same = got == expected or (math.isnan(got) and math.isnan(expected))
        return not (same or abs(got - expected) <= limit)

    def fewest(self, name: str, place: int) -> list[Row]:
        """Rows whose poison makes an element wrong: one, unless both halves of them are needed."""
        rows = self.rows
        while len(rows) > 1:
            middle = len(rows) // 2
            for half in (rows[:middle], rows[middle:]):
                if self.wrong(name, place, self.results(half)):
                    rows = half
                    break
            else:
                break
        return rows

    def words(self, rows: Sequence[Row], name: str, place: int) -> str | None:
        """The hint about rows that make an element wrong; None if it may depend on them."""
        tensor, index = rows[0]
        unused = self.problem.unused().get(tensor)
        where = unused.describe(index) if unused is not None else f"{tensor}{list(index)}"
        if len(rows) > 1:
            where += f", together with {len(rows) - 1} more rows"
        where += "," if "," in where else ""
        values = self.problem.inputs[tensor][index].float()
        kind = "NaN" if bool(values.isnan().any()) else "infinite"
        if bool(values.isfinite().all()):
            kind = f"up to {float(values.abs().max()):.3g}"
        # Two values, of which one might happen to give the right result.
        if kind in ("NaN", "infinite") and not any(
            self.wrong(name, place, self.results((), filler)) for filler in (1.0, -3.0)
        ):
            if kind == "infinite":
                return (
                    f"{where} is infinite, and finite values there change nothing: is it "
                    "multiplied by 0, or subtracted from another infinity?"
                )
            return f"{where} is {kind}, and is multiplied by 0: finite values there change nothing"
        return f"{where} is {kind}, and changes the result" if unused is not None else None


# Other sequences ---------------------------------------------------------------------------------

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
