"""A launch as a picture: which block wrote which part of an output, and what each block read.

The first panel is a plane of the output through one element, each part in the colour of the block
that wrote it. The second has a row for each block, and in it a cell for each iteration of the
block's main loop, where the input lies that it read: a causal mask is a staircase, a window a band.
Iterations that run other lines than the rest, such as a mask's, have another colour.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .svg import Drawing, colour

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tlmatrix.interpreter.runtime.codecs import Array
    from tlmatrix.interpreter.runtime.tracks import BlockRun, Mapper

    from .launches import Launch

_WIDTH = 960.0
_LEFT = 64.0
_PLANE = (700.0, 380.0)
_CELLS = 64
"""Parts of each side of the plane that are drawn apart; finer ones are sampled."""
_ROWS = 64
"""Blocks that have a row of their own; of more, evenly spaced ones do."""
_ROW = 17.0
_ITERATION = "#7aa6d8"
_OTHER = ("#e8a13c", "#c0504d", "#7f63a8", "#4f9d69")


def launch_picture(launch: Launch, mapper: Mapper, buffer: str, index: Sequence[int]) -> str:
    """The picture, as SVG.

    Args:
        launch: the launch.
        mapper: what `mapped(launch)` found.
        buffer: the name of a parameter that the kernel writes.
        index: an element of it: the plane goes through it, and its block is marked.
    """
    memory = mapper.record.memories[buffer]
    owners = mapper.owners[memory]
    owner = int(owners[tuple(index)])
    drawing = Drawing(_WIDTH)
    title = f"{launch.kernel.name}, launch {launch.number}"
    drawing.text(16, 26, title, size=16, bold=True)
    y = _plane(drawing, mapper, buffer, tuple(index), 48)
    run = mapper.blocks[owner - 1] if owner else mapper.blocks[0]
    _reads(drawing, mapper, run, memory, buffer, y + 26)
    return drawing.done(title)


# The output, by block ----------------------------------------------------------------------


def _plane(
    drawing: Drawing, mapper: Mapper, buffer: str, index: tuple[int, ...], top: float
) -> float:
    memory = mapper.record.memories[buffer]
    owners, shared = mapper.owners[memory], mapper.shared[memory]
    rows, columns = _axes(owners, index)
    plane, several = (_cut(array, rows, columns, index) for array in (owners, shared))
    shown = [str(at) for at in index]
    for axis, size in ((rows, plane.shape[0]), (columns, plane.shape[1])):
        if axis is not None:
            shown[axis] = f"0:{size}"
    drawing.text(16, top, f"which block wrote {buffer}[{', '.join(shown)}]", size=13, bold=True)
    top += 22
    width = min(_PLANE[0], max(120.0, plane.shape[1] * 64.0))
    height = min(_PLANE[1], max(28.0, plane.shape[0] * 24.0))
    across, down = _edges(plane, 1), _edges(plane, 0)
    column = index[columns] if columns is not None else 0
    row = index[rows] if rows is not None else 0
    unnamed: set[int] = set()
    scale_x, scale_y = width / plane.shape[1], height / plane.shape[0]
    for r0, r1 in pairwise(down):
        for c0, c1 in pairwise(across):
            number = int(plane[r0, c0])
            x, y = _LEFT + c0 * scale_x, top + r0 * scale_y
            w, h = (c1 - c0) * scale_x, (r1 - r0) * scale_y
            words = _index_words(mapper.blocks[number - 1]) if number else ""
            place = f"rows {r0} to {r1 - 1}, columns {c0} to {c1 - 1}"
            title = f"block {words}: {place}" if number else f"not written: {place}"
            drawing.rectangle(x, y, w, h, colour(number) if number else "url(#none)", title=title)
            if several[r0:r1, c0:c1].any():
                drawing.rectangle(x, y, w, h, "url(#many)", title=title)
            if r0 <= row < r1 and c0 <= column < c1:
                unnamed.add(number)  # the mark is there
            elif w > 5.3 * len(words) + 4 and h > 13:
                size = 11 if w > 6.4 * len(words) + 6 else 9
                drawing.text(x + w / 2, y + h / 2 + 4, words, size=size, anchor="middle")
            else:
                unnamed.add(number)
    _ticks(drawing, _LEFT, top + height, scale_x, across, vertical=False, room=26)
    _ticks(drawing, _LEFT, top, scale_y, down, vertical=True, room=13)
    drawing.mark(
        _LEFT + (column + 0.5) * scale_x,
        top + (row + 0.5) * scale_y,
        f"{buffer}[{', '.join(map(str, index))}]",
    )
    _legend(drawing, mapper, plane, several, unnamed, _LEFT + width + 24, top + 10)
    return max(float(top + height + 22), drawing.height)


def _axes(owners: Array, index: tuple[int, ...]) -> tuple[int | None, int | None]:
    """The two dimensions to show: those along which the block changes, then the largest."""

    def telling(axis: int) -> tuple[bool, int]:
        line = owners[tuple(slice(None) if k == axis else i for k, i in enumerate(index))]
        return bool((line != line[0]).any()), owners.shape[axis]

    axes = sorted(range(owners.ndim), key=telling, reverse=True)[:2]
    if not axes:
        return None, None
    if len(axes) == 1:
        return None, axes[0]
    return min(axes), max(axes)


def _cut(array: Array, rows: int | None, columns: int | None, index: tuple[int, ...]) -> Array:
    """The plane through an element, [rows, columns]."""
    place = tuple(slice(None) if k in (rows, columns) else i for k, i in enumerate(index))
    return array[place].reshape(
        1 if rows is None else array.shape[rows], 1 if columns is None else array.shape[columns]
    )


def _edges(plane: Array, axis: int) -> list[int]:
    """Where parts begin along an axis, and its end; evenly spaced where there are too many."""
    lines = plane if axis == 0 else plane.T
    size = lines.shape[0]
    changes = np.flatnonzero((lines[1:] != lines[:-1]).any(1)) + 1
    if len(changes) >= _CELLS:
        changes = np.unique(np.linspace(0, size, _CELLS + 1).astype(int))[1:-1]
    return [0, *changes.tolist(), size]


def _ticks(
    drawing: Drawing,
    x: float,
    y: float,
    scale: float,
    edges: Sequence[int],
    *,
    vertical: bool,
    room: float,
) -> None:
    """Indices at the edges of parts, as many as there is room for."""
    last = -room
    for at in edges:
        place = at * scale
        if place - last < room:
            continue
        last = place
        if vertical:
            drawing.text(x - 6, y + place + 4, str(at), size=10, anchor="end", fill="#555")
        else:
            drawing.text(x + place, y + 14, str(at), size=10, anchor="middle", fill="#555")


def _legend(
    drawing: Drawing,
    mapper: Mapper,
    plane: Array,
    several: Array,
    unnamed: set[int],
    x: float,
    y: float,
) -> None:
    """The order of a block's indices, and the blocks whose part had no room for them."""
    numbers = [int(n) for n in np.unique(plane) if n]
    names = mapper.record.grids[mapper.blocks[numbers[0] - 1].grid] if numbers else ()
    drawing.text(x, y, f"block ({', '.join(names)})" if names else "block", size=11, bold=True)
    numbers = sorted(unnamed - {0})
    shown = numbers if len(numbers) <= 14 else numbers[:12]
    for number in shown:
        y += 18
        drawing.rectangle(x, y - 10, 12, 12, colour(number))
        drawing.text(x + 18, y, _index_words(mapper.blocks[number - 1]), size=11)
    if len(shown) < len(numbers):
        y += 18
        drawing.text(x, y, f"and {len(numbers) - len(shown)} more", size=11)
    for there, fill, words in (
        (bool((plane == 0).any()), "url(#none)", "not written"),
        (bool(several.any()), "url(#many)", "by several blocks"),
    ):
        if there:
            y += 18
            drawing.rectangle(x, y - 10, 12, 12, fill)
            drawing.text(x + 18, y, words, size=11)


def _index_words(run: BlockRun) -> str:
    return ",".join(map(str, run.index)) or "0"


# What blocks read ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cell:
    """An iteration of a block's main loop: where along the dimension it reads, and how it ran."""

    iteration: int
    start: int
    stop: int
    path: frozenset[int]


@dataclass(frozen=True)
class _Chart:
    """What the second panel shows: of which loop and input, and the cells of each block."""

    loop: int
    memory: str | None
    axis: int
    rows: list[tuple[BlockRun, list[_Cell]]]
    alike: int

    @property
    def size(self) -> int:
        """The end of the dimension."""
        return max((cell.stop for _, cells in self.rows for cell in cells), default=1)


def _reads(
    drawing: Drawing, mapper: Mapper, run: BlockRun, memory: str, buffer: str, top: float
) -> None:
    chart = _chart(mapper, run)
    if chart is None:
        drawing.text(16, top, "no block ran a loop", size=13, bold=True)
        return
    loop = mapper.record.loops[chart.loop]
    where = f"{Path(loop.location.file).name}:{loop.location.line}" if loop.location else ""
    names = {v: k for k, v in mapper.record.memories.items()}
    what = (
        f"what each iteration of {loop.name or 'the loop'} ({where}) read of "
        f"{names.get(chart.memory, '')}, dimension {chart.axis}"
        if chart.memory is not None
        else f"the iterations of {loop.name or 'the loop'} ({where})"
    )
    drawing.text(16, top, what, size=13, bold=True)
    top += 16
    rows, notes = _shown(chart, mapper.owners[memory], run)
    if notes:
        drawing.text(16, top, "; ".join(notes), size=11, fill="#555")
    left, width = 250.0, _WIDTH - 250 - 24
    scale = width / max(chart.size, 1)
    kinds = _kinds((cells for _, cells in rows), mapper)
    top += 12
    for k, (each, cells) in enumerate(rows):
        y = top + k * _ROW
        written = _rows_written(mapper.owners[memory], each.number, buffer)
        label = f"{_index_words(each)}  {written}"
        drawing.text(left - 8, y + 12, label, size=11, anchor="end", bold=each is run)
        drawing.rectangle(left, y + 1, width, _ROW - 2, "#f4f4f4", edge="none")
        for cell in cells:
            fill = kinds[cell.path][0]
            x, w = left + cell.start * scale, (cell.stop - cell.start) * scale
            title = f"block {_index_words(each)}, iteration {cell.iteration}: "
            title += f"{cell.start} to {cell.stop - 1}"
            drawing.rectangle(
                x, y + 1, w, _ROW - 2, fill, title=title, thickness=2 if each is run else 0.5,
                edge="#111" if each is run else "#555",
            )  # fmt: skip
            if w > 7 * len(str(cell.iteration)) + 4:
                drawing.text(x + w / 2, y + 12, str(cell.iteration), size=10, anchor="middle")
    bottom = top + len(rows) * _ROW
    edges = sorted({e for _, cells in rows for c in cells for e in (c.start, c.stop)} | {0})
    _ticks(drawing, left, bottom, scale, edges, vertical=False, room=30)
    y = bottom + 34
    for fill, words in kinds.values():
        drawing.rectangle(left, y - 10, 12, 12, fill)
        drawing.text(left + 18, y, words, size=11)
        y += 18
    if not mapper.whole:
        drawing.text(16, y, "more was read than is drawn", size=11, fill="#a00")


def _shown(
    chart: _Chart, owners: Array, run: BlockRun
) -> tuple[list[tuple[BlockRun, list[_Cell]]], list[str]]:
    """The rows to draw, in the order of the output, and what is to be said of the others."""
    writers = set(np.unique(owners).tolist())
    idle = [b for b, cells in chart.rows if not cells and b.number not in writers]
    rows = [row for row in chart.rows if row[0] not in idle]
    rows = _ordered(rows, owners)
    notes = []
    if len(rows) > _ROWS:
        keep = set(np.linspace(0, len(rows) - 1, _ROWS).astype(int).tolist())
        keep |= {k for k, (each, _) in enumerate(rows) if each is run}
        notes.append(f"{len(keep)} of {len(rows)} blocks")
        rows = [row for k, row in enumerate(rows) if k in keep]
    if chart.alike:
        notes.append(f"{chart.alike} more blocks run the same iterations")
    if idle:
        notes.append(f"{len(idle)} more run no iteration and write nothing here")
    return rows, notes


def _chart(mapper: Mapper, run: BlockRun) -> _Chart | None:
    """The outermost loop with the most iterations, and the input whose place moves with them."""
    iterations: dict[int, int] = {}
    for block in mapper.blocks:
        for number, loop in block.loops.items():
            if loop.depth == 0:
                iterations[number] = iterations.get(number, 0) + loop.iterations
    if not iterations or not max(iterations.values()):
        return None
    main = max(iterations, key=lambda number: iterations[number])
    memory, axis = _moving(mapper, main)
    rows = []
    blocks = _telling(mapper, run, main, memory, axis)
    for block in blocks:
        cells: dict[int, _Cell] = {}
        if memory is None:
            for (number, at), path in block.paths.items():
                if number == main:
                    cells[at] = _Cell(at, at, at + 1, path)
        for name, iteration, bounds in block.boxes:
            if name != memory or not iteration or iteration[0][0] != main:
                continue
            at, (low, high) = iteration[0][1], bounds[axis]
            path = block.paths.get((main, at), frozenset())
            old = cells.get(at)
            low, stop = min(low, old.start if old else low), max(high + 1, old.stop if old else 0)
            cells[at] = _Cell(at, low, stop, path)
        rows.append((block, list(cells.values())))
    others = sum(block.grid == run.grid for block in mapper.blocks) - len(blocks)
    return _Chart(main, memory, axis, rows, others)


def _moving(mapper: Mapper, loop: int) -> tuple[str | None, int]:
    """The memory, and its dimension, that most iterations of a loop read at another place."""
    moves: dict[tuple[str, int], int] = {}
    for block in mapper.blocks:
        last: dict[str, tuple[int, tuple[tuple[int, int], ...]]] = {}
        for name, iteration, bounds in block.boxes:
            if not iteration or iteration[0][0] != loop:
                continue
            before = last.get(name)
            if before is not None and before[0] != iteration[0][1]:
                for axis, (old, new) in enumerate(zip(before[1], bounds, strict=True)):
                    if old != new:
                        moves[name, axis] = moves.get((name, axis), 0) + 1
            elif before is None:
                for axis in range(len(bounds)):
                    moves.setdefault((name, axis), 0)
            last[name] = (iteration[0][1], bounds)
    best = max(moves, key=lambda key: moves[key], default=None)
    return best if best is not None and moves[best] else (None, 0)


def _telling(
    mapper: Mapper, run: BlockRun, loop: int, memory: str | None, axis: int
) -> list[BlockRun]:
    """The blocks of the grid that differ from one in an index on which the iterations depend."""
    blocks = [block for block in mapper.blocks if block.grid == run.grid]
    spans = {b.index: _span(b, loop, memory, axis) for b in blocks}
    fixed = []
    for k in range(len(run.index)):
        by_rest: dict[tuple[int, ...], set[object]] = {}
        for index, span in spans.items():
            by_rest.setdefault(index[:k] + index[k + 1 :], set()).add(span)
        if all(len(found) == 1 for found in by_rest.values()):
            fixed.append(k)
    return [b for b in blocks if all(b.index[k] == run.index[k] for k in fixed)]


def _span(block: BlockRun, loop: int, memory: str | None, axis: int) -> tuple[int, ...]:
    found = [b[axis] for n, t, b in block.boxes if n == memory and t and t[0][0] == loop]
    run = block.loops.get(loop)
    iterations = run.iterations if run is not None else 0
    if not found:
        return (iterations,)
    return (iterations, min(low for low, _ in found), max(high for _, high in found))


def _ordered(
    rows: Sequence[tuple[BlockRun, list[_Cell]]], owners: Array
) -> list[tuple[BlockRun, list[_Cell]]]:
    """By the first element that a block wrote: the order of the output, not of the launch."""
    numbers, first = np.unique(owners, return_index=True)
    place = dict(zip(numbers.tolist(), first.tolist(), strict=True))
    return sorted(rows, key=lambda row: (place.get(row[0].number, owners.size), row[0].number))


def _rows_written(owners: Array, number: int, buffer: str) -> str:
    """`out[64:128]`: the span of the first dimensions along which a block's part is no whole."""
    mine = np.argwhere(owners == number)
    if not len(mine):
        return "writes none of it"
    low, high = mine.min(0), mine.max(0) + 1
    parts = [
        f"{a}" if b - a == 1 else f"{a}:{b}"
        for a, b in zip(low.tolist(), high.tolist(), strict=True)
    ]
    while len(parts) > 1 and parts[-1] == f"0:{owners.shape[len(parts) - 1]}":
        parts.pop()
    return f"{buffer}[{', '.join(parts)}]"


def _kinds(rows: Iterable[list[_Cell]], mapper: Mapper) -> dict[frozenset[int], tuple[str, str]]:
    """A colour and words for each set of statements that an iteration ran."""
    counts: dict[frozenset[int], int] = {}
    for cells in rows:
        for cell in cells:
            counts[cell.path] = counts.get(cell.path, 0) + 1
    order = sorted(counts, key=lambda path: (len(path), -counts[path]))
    found = dict.fromkeys(order[:1], (_ITERATION, "an iteration"))
    for k, path in enumerate(order[1:]):
        fill = _OTHER[min(k, len(_OTHER) - 1)]
        found[path] = (fill, f"an iteration that also runs {_lines(path - order[0], mapper)}")
    return found


def _lines(sites: Iterable[int], mapper: Mapper) -> str:
    """`masks.py:76 and 78` of statements, three at most."""
    places = sorted(
        {
            (Path(location.file).name, location.line)
            for location in (mapper.record.sites[n].location for n in sites)
            if location is not None
        }
    )
    words = [f"{file}:{line}" for file, line in places[:3]]
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return (", ".join(words) or "other statements") + more
