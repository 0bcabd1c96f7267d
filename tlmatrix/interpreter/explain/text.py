"""An explanation as text: a heading, then a table of the statements, iteration by iteration.

Sets of elements are index expressions, such as `k[64:128, 0, 0:64]`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tlmatrix.interpreter.runtime.codecs import Array
    from tlmatrix.interpreter.watch.recorders import LoopRange

    from .model import Explanation, Read, Source, Step, Writer

_LABEL = 10
_ENDS = 2
"""Iterations shown from the start of a loop, besides its last and those that lose precision."""
_WRITERS = 6
_RANGES = 4
"""Ranges of one dimension that are listed; more are given by their ends."""


def element(explanation: Explanation) -> str:
    """`out[0, 63, 2, 5]`."""
    return f"{explanation.buffer}[{', '.join(map(str, explanation.index))}]"


def number(value: float) -> str:
    """Six digits, `nan` and `inf` as words."""
    return f"{value:.6g}"


def rendered_loops(loops: Sequence[tuple[str, int]]) -> str:
    """`step 3`, or `step 3, part 0`."""
    return ", ".join(f"{name} {at}" for name, at in loops)


def rendered_lines(
    explanation: Explanation, *, full: bool = False, width: int = 120
) -> Iterator[str]:
    """The lines of an explanation; `full` shows every iteration of every loop."""
    launch = f"launch {explanation.launch}"
    if explanation.rank is not None:
        launch += f" on rank {explanation.rank}"
    yield (f"{element(explanation)} of kernel {explanation.kernel}, {launch} ({explanation.dtype})")
    for label, text in _facts(explanation):
        yield from fact_lines(label, text, width)
    yield ""
    yield from _table(explanation.steps, full=full, width=width)
    if explanation.departures:
        yield ""
        yield "  precision is lost, in order:"
        by_line: dict[tuple[str, str], list[Step]] = {}
        for step in explanation.departures:
            by_line.setdefault((str(step.location), step.buffer), []).append(step)
        for (_, buffer), steps in by_line.items():
            first = steps[0]
            many = f" and {len(steps) - 1} more iterations" if len(steps) > 1 else ""
            iteration = f" in {rendered_loops(first.loops)}{many}" if first.loops else ""
            worst = max(step.deviation or 0.0 for step in steps)
            yield f"    {_line(first)}  {buffer} {first.departs}{iteration}: {worst:.1e}"
    yield from _carried(explanation)
    if explanation.earlier is not None:
        yield ""
        yield from rendered_lines(explanation.earlier, full=full, width=width)


def fact_lines(label: str, text: str, width: int) -> list[str]:
    """A label and its text, wrapped between words to `width` columns."""
    indent = " " * (_LABEL + 2)
    return textwrap.wrap(
        text,
        width,
        initial_indent=f"  {label:<{_LABEL}}",
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [f"  {label}"]


def _carried(e: Explanation) -> Iterator[str]:
    """How much the rounding of this launch, and of each tensor of earlier ones, changes it."""
    if e.rounding.why:
        yield ""
        yield f"  the rounding of earlier launches is unknown: {e.rounding.why}"
    if e.rounding.exact is None:
        return
    yield ""
    exact = number(e.rounding.exact)
    yield f"  in a float64 run of all launches {exact}; stored values change it by"
    rows = [
        (each.launch, f"{each.buffer} ({each.dtype})", each.change) for each in e.rounding.carried
    ]
    if e.exact is not None:
        rows.append((f"launch {e.launch}, {e.kernel}", "alone", e.value - e.exact))
    rows.sort(key=lambda row: -abs(row[2]))
    left, right = (max(map(len, column)) for column in list(zip(*rows, strict=True))[:2])
    for launch, buffer, change in rows:
        yield f"    {change:+.1e}  {launch:<{left}}  {buffer:<{right}}".rstrip()


def _facts(explanation: Explanation) -> Iterator[tuple[str, str]]:
    e = explanation
    yield "value", number(e.value) + _against(e)
    extents = ", ".join(f"{name} {size}" for name, size in e.grid.items())
    yield "block", f"{e.block}" + (f", of a grid of {extents}" if extents else "")
    yield from _written(e.writers)
    for loop in e.loops:
        yield "loop", _loop(loop)
    for source in e.sources:
        yield "made of", _source(source, e)
    if not e.sources:
        yield "made of", "none of its parameters"
    if (step := e.first_nan) is not None:
        yield "NaN", f"first in {step.buffer} at {_line(step)} ({step.action})"
    if e.addresses:
        yield "at", ", ".join(f"{r.buffer}{r.place}" for r in e.addresses)
    for read in e.missing:
        yield "unwritten", f"{_read(read)} was read before anything wrote it"


def _against(e: Explanation) -> str:
    if e.exact is None:
        return f" (no float64 run: {e.no_exact})" if e.no_exact else ""
    return f", in a float64 run of the same program {number(e.exact)}"


def _written(writers: tuple[Writer, ...]) -> Iterator[tuple[str, str]]:
    atomic = any(writer.added is not None for writer in writers)
    if not atomic and len(writers) == 1:
        yield "written", f"{_place(writers[0])}, once"
        return
    shown = writers if len(writers) <= _WRITERS else (*writers[:3], *writers[-2:])
    for k, writer in enumerate(shown):
        if len(shown) < len(writers) and k == 3:
            yield "…", f"{len(writers) - len(shown)} more"
        iteration = f" in {rendered_loops(writer.loops)}" if writer.loops else ""
        amount = (
            f"{number(writer.value)}"
            if writer.added is None
            else f"{writer.added:+.6g} to {number(writer.value)}"
        )
        yield "written", f"{_place(writer)}, block {writer.block}{iteration}: {amount}"


def _place(writer: Writer) -> str:
    return f"{_short(writer.location)} ({writer.action})"


def _loop(loop: LoopRange) -> str:
    name = loop.name or "while"
    if not loop.iterations:
        return f"{name}: no iteration, {_short(loop.location)}"
    span = f"{loop.first}" if loop.first == loop.last else f"{loop.first} to {loop.last}"
    times = f" in {loop.entries} runs" if loop.entries > 1 else ""
    iterations = "1 iteration" if loop.iterations == 1 else f"{loop.iterations} iterations"
    return f"{name} = {span}, {iterations}{times}, {_short(loop.location)}"


def _source(source: Source, e: Explanation) -> str:
    made = f", written by {source.made_by}" if source.made_by else ""
    place = source.place if source.place.startswith("[") else f": {source.place}"
    strange = ""
    if len(source.nonfinite):
        shape = tuple(e.tensors(source.buffer).shape)
        strange = f", not finite: {rendered_indices(source.nonfinite, shape)}"
    return f"{source.buffer}{place}{made}{strange}"


def _read(read: Read) -> str:
    return f"{read.buffer}{read.place if read.place[:1] in ('', '[') else ': ' + read.place}"


def _short(location: object) -> str:
    if location is None:
        return "an unknown line"
    file, _, line = str(location).rpartition(":")
    return f"{Path(file).name}:{line}"


def _line(step: Step) -> str:
    return _short(step.location)


def _table(steps: Sequence[Step], *, full: bool, width: int) -> Iterator[str]:
    """Every statement that leads to the element: line, what it wrote, value, deviation, text."""
    groups = [(loops, list(part)) for loops, part in groupby(steps, key=lambda s: s.loops)]
    rows = {id(step): _cells(step) for step in steps}
    hidden = set() if full else _hidden(groups)
    shown = [s for k, (_, part) in enumerate(groups) if k not in hidden for s in part]
    widths = [max((len(rows[id(s)][c]) for s in shown), default=0) for c in range(4)]
    skipped: list[str] = []
    for k, (loops, part) in enumerate(groups):
        if k in hidden:
            skipped.append(rendered_loops(loops))
            continue
        if skipped:
            yield f"  {skipped[0]} … {skipped[-1]}: alike, --full shows them"
            skipped = []
        heading = rendered_loops(loops) if loops else "outside of loops"
        yield f"  {heading}"
        for step in part:
            cells = rows[id(step)]
            columns = "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=False))
            rest = max(width - len(columns) - 8, 0)
            text = step.text if len(step.text) <= rest else step.text[: max(rest - 1, 0)] + "…"
            yield f"    {columns}  {text if rest >= 20 else ''}".rstrip()


def _hidden(groups: Sequence[tuple[tuple[tuple[str, int], ...], list[Step]]]) -> set[int]:
    """Groups that are iterations in the middle of a loop, and like those around them."""
    found = set()
    known: set[tuple[object, ...]] = set()
    for k, (loops, part) in enumerate(groups):
        lines = tuple((s.location, s.buffer) for s in part)
        last = k + 1 == len(groups) or groups[k + 1][0][:-1] != loops[:-1] or not groups[k + 1][0]
        early = loops and loops[-1][1] < _ENDS and len(loops) == 1
        if loops and not early and not last and lines in known and not _first_loss(part, groups):
            found.add(k)
        known.add(lines)
    return found if len(found) > 1 else set()


def _first_loss(
    part: Sequence[Step], groups: Sequence[tuple[tuple[tuple[str, int], ...], list[Step]]]
) -> bool:
    """Whether a statement loses precision here that lost none in an earlier iteration."""
    for step in part:
        if not step.departs:
            continue
        key = (step.location, step.buffer)
        for _, other in groups:
            found = next((s for s in other if s.departs and (s.location, s.buffer) == key), None)
            if found is not None:
                if found is step:
                    return True
                break
    return False


def _cells(step: Step) -> tuple[str, str, str, str]:
    place = step.place if step.place[:1] in ("", "[") else f": {step.place}"
    mark = ""
    if step.deviation is not None:
        mark = "exact" if step.deviation == 0 else f"{step.deviation:.1e}"
        mark += f" <- {step.departs}" if step.departs else ""
    return _line(step), f"{step.buffer}{place}", _values(step), mark


def _values(step: Step) -> str:
    values = step.values
    if step.elements == 1:
        return number(float(values[0]))
    finite = values[np.isfinite(values)]
    strange = [
        f"{int(count)} {word}"
        for word, count in (
            ("nan", np.isnan(values).sum()),
            ("inf", np.isposinf(values).sum()),
            ("-inf", np.isneginf(values).sum()),
        )
        if count
    ]
    span = ""
    if finite.size:
        low, high = float(finite.min()), float(finite.max())
        span = f"{low:.4g}" if low == high else f"{low:.4g} … {high:.4g}"
    return ", ".join([*([span] if span else []), *strange])


def rendered_indices(flat: Array, shape: Sequence[int]) -> str:
    """`[63, 0:64]` for elements numbered by rows; empty for a variable.

    A set that is no box is given by the box around it and the number of its elements.
    """
    if not len(shape):
        return ""
    parts = [np.unique(i) for i in np.unravel_index(flat, tuple(shape))]
    text = "[" + ", ".join(rendered_ranges(part) for part in parts) + "]"
    box = int(np.prod([len(part) for part in parts]))
    return text if box == len(flat) else f"{len(flat)} elements of {text}"


def rendered_ranges(values: Array) -> str:
    """`3`, `0:64`, `0:64:2` or `0:17 and 64:128` for sorted integers, each once."""
    if len(values) == 1:
        return str(int(values[0]))
    steps = np.diff(values)
    if len(values) > 2 and steps[0] > 1 and (steps == steps[0]).all():
        return f"{values[0]}:{values[-1] + 1}:{steps[0]}"
    runs = np.split(values, np.flatnonzero(steps > 1) + 1)
    if len(runs) > _RANGES:
        return f"{len(values)} in {values[0]}:{values[-1] + 1}"
    return " and ".join(str(r[0]) if len(r) == 1 else f"{r[0]}:{r[-1] + 1}" for r in runs)
