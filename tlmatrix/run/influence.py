"""Measures which parts of the inputs an output element depends on, in kernel and reference.

Each part is replaced by other values with the same standard deviation (integers by others of the
tensor), and the element is computed again by the code under test and by the float64 reference. If
the element does not change, it does not depend on the part. A part on which the two disagree is
bisected down to rows, so a mask that is off by one key is reported with that key.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from tlmatrix.check.memory import same_bits
from tlmatrix.interpreter.explain.text import fact_lines, rendered_indices, rendered_loops

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tlmatrix.interpreter import Explanation
    from tlmatrix.problem import Problem
    from tlmatrix.run.location import Calls, Location

_SECONDS = 20.0
"""Limit of the processor time of all runs; slower cases get fewer and larger parts."""
_MAX_RUNS = 240
_NO_CHANGE = 1e-6
"""Changes of the reference below this fraction of the kernel's rounding count as zero."""
_MAX_ROWS = 4
"""If all rows of a part differ and there are more of them, the rows are not listed."""
_TOLERANCE = 0.02
"""Relative difference up to which two changes count as equal."""
_UNKNOWN = "unknown"
"""In which iteration the kernel reads a part, if its accesses are not known."""
_GROUPS = 16
"""Most parts per input: the reads of neighbouring iterations are merged if there are more."""


@dataclass(frozen=True)
class Part:
    """Elements of an input.

    Attributes:
        input: the input.
        elements: the flat indices.
        read: the iteration in which the kernel reads them, as text.
    """

    input: str
    elements: torch.Tensor
    read: str


@dataclass(frozen=True)
class Influence:
    """How an element changes when a part of an input is replaced.

    Attributes:
        part: the replaced part.
        kernel: the change in the code under test.
        reference: the change in the reference.
        noise: the largest difference of the two that rounding explains.
        narrowed: whether the part is a piece of another one on which the two disagree.
        values: the element in the code under test, before and after.
        expected: the element in the reference, before.
    """

    part: Part
    kernel: float
    reference: float
    noise: float
    narrowed: bool = False
    values: tuple[float, float] = (0.0, 0.0)
    expected: float = 0.0

    @property
    def scaled(self) -> bool:
        """Whether the element stays the same multiple of the reference, but for rounding."""
        if not self.expected:
            return False
        change = self.values[0] / self.expected * self.reference
        size = max(abs(change), abs(self.kernel))
        return abs(self.kernel - change) <= self.noise + _TOLERANCE * size

    def starts_at(self, value: float | None) -> bool:
        """Whether the element has this value, but for rounding, while nothing is replaced."""
        begin = self.values[0]
        return value is not None and (
            (math.isnan(begin) and math.isnan(value))
            or begin == value
            or abs(begin - value) <= self.noise
        )

    @property
    def finite(self) -> bool:
        """Whether the element is finite before and after."""
        return all(map(math.isfinite, self.values))

    @property
    def verdict(self) -> str:
        """`equal`, `differ`, `only the kernel`, `only the reference`, or `neither`."""
        if not math.isfinite(self.values[0]) and self.kernel == 0:
            return "neither"  # an influence on NaN or infinity does not show
        if self.kernel == 0 and self.reference == 0:
            return "neither"
        gap = abs(self.kernel - self.reference)
        larger = max(abs(self.kernel), abs(self.reference))
        if gap <= self.noise or gap <= _TOLERANCE * larger:
            return "equal"
        if self.kernel == 0:
            return "only the reference"
        return "only the kernel" if self.reference == 0 else "differ"

    def disagreement(self, factor: float = 1.0) -> float:
        """The relative difference of the two from 0 to 1, after scaling the reference."""
        kernel, reference = self.kernel, self.reference * factor
        larger = max(abs(kernel), abs(reference), self.noise)
        if not math.isfinite(larger):
            return 0.0 if kernel == reference else 1.0
        return max(abs(kernel - reference) - self.noise, 0.0) / larger if larger else 0.0


def influences(
    calls: Calls,
    output: str,
    index: tuple[int, ...],
    parts: Sequence[Part],
    seconds: float = _SECONDS,
    least: int = 0,
) -> list[Influence]:
    """How the element `output[index]` changes when each of `parts` is replaced.

    The runs take about `seconds`, or are few. There are none if fewer than `least` take so long.

    A part that influences only one of kernel and reference is followed by the rows that make the
    difference. If there is no such part, that of the largest disagreement is bisected; all are that
    may hold elements that are read and others.

    Raises:
        LookupError: the problem has no reference or does not accept other inputs, or the element
            differs for equal ones: memory layouts or state matter.
    """
    trial = _Trial(calls, output, index)
    if least * trial.seconds > seconds:
        return []
    begin, copied = time.process_time(), {part.input: part for part in parts}
    for part in copied.values():
        if trial.of(replace(part, elements=part.elements[:0])).kernel:
            raise LookupError(f"a call with a copy of {part.input} has another result")
    each = max(trial.seconds, (time.process_time() - begin) / max(len(copied), 1))
    if least * each > seconds:
        return []
    allowed = max(min(_MAX_RUNS, int(seconds / each)), 16)
    found = [trial.of(part) for part in _merged(parts, max(allowed // 2, 4))]
    factor = _common_factor(found)
    doubtful = [i for i in found if i.verdict.startswith("only")]
    if not doubtful:
        differing = [i for i in found if i.verdict == "differ" and trial.rows(i.part) > 1]
        doubtful = [i for i in differing if i.part.read == _UNKNOWN] or sorted(
            differing, key=lambda i: i.disagreement(factor)
        )[-1:]
    left = allowed - len(found)
    rows = {id(i): _narrowed(i, trial, factor, max(left // len(doubtful), 2)) for i in doubtful}
    return [each for i in found for each in (i, *rows.get(id(i), ()))]


def _common_factor(found: Sequence[Influence]) -> float:
    """The median ratio of the two changes: a fault may scale all changes of the kernel."""
    ratios = sorted(i.kernel / i.reference for i in found if i.kernel and i.reference)
    factor = ratios[len(ratios) // 2] if ratios else 1.0
    return factor if math.isfinite(factor) and factor > 0 else 1.0


class _Trial:
    """Runs the case again with parts of its inputs replaced."""

    def __init__(self, calls: Calls, output: str, index: tuple[int, ...]) -> None:
        self._calls = calls
        self._problem = (calls.first, *calls.others)[-1]
        if not self._problem.has_reference:
            raise LookupError("the problem has no reference to compare with")
        self._output, self._index = output, index
        begin = time.process_time()
        self._kernel, self._reference = self._values(self._problem)
        self.seconds = max(time.process_time() - begin, 1e-4)
        info = self._problem.outputs[output]
        size = max(abs(self._kernel), abs(self._reference))
        if info.magnitude is not None:
            size = max(size, float(info.magnitude()[index]))
        self._rounding = 16 * info.roundoff
        self._size = size if math.isfinite(size) else 0.0
        self._replacements: dict[str, torch.Tensor] = {}

    def _values(self, problem: Problem) -> tuple[float, float]:
        reference = float(problem.reference()[self._output][self._index])
        _, results = self._calls.made(problem)
        return float(results[self._output][self._index].double()), reference

    def of(self, part: Part, *, narrowed: bool = False) -> Influence:
        """Measure the influence of a part."""
        if self._problem.with_inputs is None:
            raise LookupError("the problem offers no `with_inputs`")
        tensor = self._problem.inputs[part.input].detach()
        changed = tensor.clone()
        place = torch.unravel_index(part.elements, tensor.shape)
        changed[place] = self._replacement(part.input, tensor)[place]
        problem = self._problem.with_inputs({part.input: changed})
        given = problem.inputs[part.input].detach()
        if not same_bits(given, changed):
            given.copy_(changed)  # `with_inputs` puts its own values into unused rows
        kernel, reference = self._values(problem)
        sizes = [abs(v) for v in (kernel, reference) if math.isfinite(v)]
        noise = self._rounding * max([self._size, *sizes])
        change = _change(reference, self._reference)
        if abs(change) < _NO_CHANGE * noise:
            change = 0.0  # rounding of float64
        moved = _change(kernel, self._kernel)
        values = (self._kernel, kernel)
        return Influence(part, moved, change, noise, narrowed, values, self._reference)

    def _replacement(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Other values of an input, the same in every run.

        Floats have the same standard deviation. An integer becomes the next larger one of the
        tensor, the largest one the least.
        """
        if name not in self._replacements and not tensor.is_floating_point():
            known, places = torch.unique(tensor.long(), return_inverse=True)
            self._replacements[name] = known.roll(-1)[places].to(tensor.dtype)
        if name not in self._replacements:
            known = tensor.double()
            known = known[known.isfinite()]  # the rest is poison
            spread = float(known.std()) if known.numel() > 1 else 1.0
            source = torch.Generator().manual_seed(len(self._replacements) + 1)
            values = torch.randn(tensor.shape, generator=source, dtype=torch.float64)
            self._replacements[name] = (values * (spread or 1.0)).to(tensor.dtype)
        return self._replacements[name]

    def width(self, part: Part) -> int:
        """The number of elements in a row of the input; each integer is a row."""
        tensor = self._problem.inputs[part.input]
        return int(tensor.shape[-1]) if tensor.ndim > 1 and tensor.is_floating_point() else 1

    def rows(self, part: Part) -> int:
        """The number of rows with elements of a part."""
        return len(torch.unique(part.elements // self.width(part)))


def _change(after: float, before: float) -> float:
    return 0.0 if after == before or (after != after and before != before) else after - before  # noqa: PLR0124 - NaN is unequal to itself


def _merged(parts: Sequence[Part], most: int) -> Iterator[Part]:
    """Merge neighbouring parts of an input until there are about `most` parts."""
    step = -(-len(parts) // most)
    for name in dict.fromkeys(part.input for part in parts):
        yield from _grouped([part for part in parts if part.input == name], step)


def _grouped(parts: Sequence[Part], step: int) -> Iterator[Part]:
    """Merge every `step` parts of one input."""
    for start in range(0, len(parts), step):
        some = parts[start : start + step]
        read = some[0].read if len(some) == 1 else f"{some[0].read} to {some[-1].read}"
        yield Part(some[0].input, torch.cat([part.elements for part in some]), read)


def _narrowed(worst: Influence, trial: _Trial, factor: float, runs: int) -> list[Influence]:
    """Bisect a part to the rows on which kernel and reference disagree most."""
    width = trial.width(worst.part)
    rows = torch.unique(worst.part.elements // width)
    count = len(rows)
    if count == 1:
        return []
    found: list[Influence] = []
    pending = [(rows, worst)]
    while pending and runs > 1:
        pending.sort(key=lambda item: item[1].disagreement(factor))
        rows, _ = pending.pop()
        for half in rows.tensor_split(2):
            mine = worst.part.elements[torch.isin(worst.part.elements // width, half)]
            part = Part(worst.part.input, mine, worst.part.read)
            influence = trial.of(part, narrowed=True)
            runs -= 1
            if influence.verdict in ("equal", "neither"):
                continue
            if len(half) == 1:
                found.append(influence)
            else:
                pending.append((half, influence))
    found += [influence for _, influence in pending]
    rows_found = [i for i in found if i.verdict.startswith("only")] or found
    if len(rows_found) == count > _MAX_ROWS:
        return []  # all rows, which is the part itself
    return sorted(rows_found, key=lambda i: int(i.part.elements[0]))


def poison_lines(
    problem: Problem, explanation: Explanation | None, location: Location, width: int
) -> Iterator[str]:
    """The lines that name the rows of inputs from which NaN or infinity reached the element."""
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
    yield ""
    parts = parts_of(problem, explanation, location)
    try:
        found = influences(calls, location.name, location.index, parts)
    except LookupError as error:
        yield f"the inputs that the element depends on are unknown: {error}"
        return
    yield "change of the element if a part of an input is replaced"
    yield from _table(found, problem, width)


def parts_of(problem: Problem, explanation: Explanation | None, location: Location) -> list[Part]:
    """Split each input by the iteration in which the block reads it, and into a part not read."""
    read = _reads(explanation, location)
    parts: list[Part] = []
    for name, tensor in problem.inputs.items():
        replaceable = tensor.is_floating_point() or name in problem.free_integers
        if not replaceable or not tensor.numel():
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
        parts += _grouped(mine, -(-len(mine) // _GROUPS) or 1)
        rest = torch.nonzero(left).flatten()
        if len(rest):
            words = "not read" if mine else "not read by this kernel"
            if location.rank is not None:
                words += ", except by copies"
            parts.append(Part(name, rest, words if explanation is not None else _UNKNOWN))
    return parts


def _unused_elements(problem: Problem, name: str) -> torch.Tensor:
    """The mask of the elements of an input, [elements], on which no result may depend."""
    shape, rows = problem.inputs[name].shape, problem.unused().get(name)
    if rows is None:
        return torch.zeros(shape.numel(), dtype=torch.bool)
    mask = rows.mask.cpu()
    return mask.view(*mask.shape, *[1] * (len(shape) - mask.ndim)).expand(shape).flatten()


def _reads(
    explanation: Explanation | None, location: Location
) -> Mapping[str, Sequence[tuple[tuple[tuple[str, int], ...], torch.Tensor]]]:
    """The elements of each input that the explained blocks read, by iteration."""
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
                _signed(influence.kernel) if influence.finite else _values(*influence.values),
                _signed(influence.reference),
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


def _signed(value: float) -> str:
    return "0" if value == 0 else f"{value:+.3e}"
