"""Prints on which parts of the inputs an element depends, by iterations of the kernel's loops."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from tlmatrix.explain.calls import Calls
    from tlmatrix.explain.influence import Influence, Part
    from tlmatrix.explain.location import Location
    from tlmatrix.interpreter import Explanation
    from tlmatrix.problem import Problem

_GROUPS = 16
"""Most parts per input: the reads of neighbouring iterations are merged if there are more."""


def poison_lines(
    problem: Problem, explanation: Explanation | None, location: Location, width: int
) -> Iterator[str]:
    """The lines that name the rows of inputs from which NaN or infinity reached the element."""
    import torch

    from tlmatrix.interpreter.explain.text import fact_lines

    if explanation is None or math.isfinite(explanation.value):
        return
    unused = problem.unused()
    for name, reads in _reads(explanation, location).items():
        tensor = problem.inputs[name]
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        flat = torch.unique(torch.cat([part for _, part in reads]))
        strange = flat[~tensor.detach().flatten()[flat].double().isfinite()]
        if not len(strange):
            continue
        index = tuple(int(i) for i in torch.unravel_index(strange[0], tensor.shape))
        value = float(tensor[index].double())
        more = f", and {len(strange) - 1} more elements" if len(strange) > 1 else ""
        words = f"{name}{list(index)} is {value}{more}"
        if name in unused and bool(unused[name].mask[index[: unused[name].mask.ndim]]):
            words += f": {unused[name].describe(index[: unused[name].mask.ndim])}"
        yield from fact_lines("origin", words, width)


def influence_lines(
    calls: Calls,
    problem: Problem,
    explanation: Explanation | None,
    location: Location,
    width: int,
) -> Iterator[str]:
    """The lines that show how the element changes when a part of an input is replaced."""
    from tlmatrix.explain.influence import influences

    yield ""
    parts = _parts(problem, explanation, location)
    try:
        found = influences(calls, location.name, location.index, parts)
    except LookupError as error:
        yield f"the inputs that the element depends on are unknown: {error}"
        return
    yield "change of the element if a part of an input is replaced"
    yield from _table(found, problem, width)


def _parts(problem: Problem, explanation: Explanation | None, location: Location) -> list[Part]:
    """Split each input by the iteration in which the block reads it, and into a part not read."""
    import torch

    from tlmatrix.explain.influence import Part
    from tlmatrix.interpreter.explain.text import rendered_loops

    read = _reads(explanation, location)
    parts: list[Part] = []
    for name, tensor in problem.inputs.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        left = torch.ones(tensor.numel(), dtype=torch.bool)
        poison = _unused_elements(problem, name)
        mine: list[Part] = []
        for loops, flat in read.get(name, ()):
            fresh = flat[left[flat]]
            left[fresh] = False
            words = rendered_loops(loops) or "outside of loops"
            for chosen, more in ((~poison[fresh], ""), (poison[fresh], ", unused rows")):
                if len(fresh[chosen]):
                    mine.append(Part(name, fresh[chosen], f"{words}{more}"))
        step = -(-len(mine) // _GROUPS) or 1
        for start in range(0, len(mine), step):
            some = mine[start : start + step]
            words = some[0].read if len(some) == 1 else f"{some[0].read} to {some[-1].read}"
            parts.append(Part(name, torch.cat([p.elements for p in some]), words))
        rest = torch.nonzero(left).flatten()
        if len(rest):
            words = "not read" if mine else "not read by this kernel"
            if location.rank is not None:
                words += ", except by copies"
            parts.append(Part(name, rest, words if explanation is not None else "unknown"))
    return parts


def _unused_elements(problem: Problem, name: str) -> torch.Tensor:
    """The mask of the elements of an input, [elements], on which no result may depend."""
    import torch

    shape, rows = problem.inputs[name].shape, problem.unused().get(name)
    if rows is None:
        return torch.zeros(shape.numel(), dtype=torch.bool)
    mask = rows.mask.cpu()
    return mask.view(*mask.shape, *[1] * (len(shape) - mask.ndim)).expand(shape).flatten()


def _reads(
    explanation: Explanation | None, location: Location
) -> Mapping[str, Sequence[tuple[tuple[tuple[str, int], ...], torch.Tensor]]]:
    """The elements of each input that the explained blocks read, by iteration."""
    import torch

    found: dict[str, list[tuple[tuple[tuple[str, int], ...], torch.Tensor]]] = {}
    names = {
        (tensor.data_ptr(), tensor.numel()): name
        for name, tensor in location.given.items()
        if tensor.is_contiguous()
    }
    step = explanation
    while step is not None:
        for source in step.sources:
            tensor = step.tensors(source.buffer)
            name = names.get((tensor.data_ptr(), tensor.numel()))
            if name is not None and tensor.is_contiguous():
                whole = location.in_whole(name)
                reads = ((at, torch.from_numpy(read)) for at, read in source.iterations)
                parts = ((at, flat if whole is None else whole[flat]) for at, flat in reads)
                found.setdefault(name, []).extend(parts)
        step = step.earlier
    return found


def _table(found: Sequence[Influence], problem: Problem, width: int) -> Iterator[str]:
    from tlmatrix.interpreter.explain.indices import rendered_indices

    rows = [("input", "read in", "kernel", "reference", "")]
    for influence in found:
        part = influence.part
        place = rendered_indices(part.elements.numpy(), tuple(problem.inputs[part.input].shape))
        if not place.startswith("["):
            place = f"{len(part.elements)} elements"
        name = f"{part.input}{place if place.startswith('[') else ': ' + place}"
        verdict = influence.verdict
        rows.append(
            (
                f"  {name}" if influence.narrowed else name,
                "" if influence.narrowed else part.read,
                _change(influence.kernel) if influence.finite else _values(*influence.values),
                _change(influence.reference),
                "" if verdict in ("equal", "neither") else f"<- {verdict}",
            )
        )
    widths = [max(len(row[c]) for row in rows) for c in range(5)]
    for row in rows:
        *cells, verdict = (text.ljust(w) for text, w in zip(row, widths, strict=True))
        line = "  " + "  ".join(cells)
        if verdict and len(line) + 2 + len(verdict) > width:
            yield line.rstrip()
            yield from [f"      {verdict.rstrip()}"] if verdict.strip() else []
        else:
            yield f"{line}  {verdict}".rstrip()


def _values(before: float, after: float) -> str:
    stays = before == after or (math.isnan(before) and math.isnan(after))
    return f"{before} stays" if stays else f"{before:.4g} to {after:.4g}"


def _change(value: float) -> str:
    return "0" if value == 0 else f"{value:+.3e}"
