"""The page of a fault: its text, pictures of wrong elements, source lines and cases."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.check.patterns import LEVELS, cells_of
from tlmatrix.report.text import count, describe_finding, describe_group
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.values import canonical, label
from tlmatrix.words import quoted

if TYPE_CHECKING:
    from tlmatrix.check.finding import Finding
    from tlmatrix.run.result import CaseResult
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.triage.groups import Group

_AROUND = 3
"""Lines shown before and after a line of a kernel."""
_CASES = 50
"""Cases that a page lists."""
_SIZE = (300.0, 560.0)
"""Height and width of the largest picture, in pixels."""
_CELL = 22.0
"""Size of the largest cell."""
_ROOM = (17.0, 34.0)
"""Least pixels between two labels of rows, and of columns."""


@dataclass(frozen=True)
class Excerpt:
    """Lines of a file: (number, text, whether it is marked); None between lines far apart."""

    path: str
    note: str
    lines: tuple[tuple[int, str, bool] | None, ...]


@dataclass(frozen=True)
class Drawing:
    """A picture of wrong elements (`tlmatrix.check.patterns`), as the template draws it.

    Paths are in elements, all other lengths in pixels.

    Attributes:
        title: what it shows, in words.
        caption: its dimensions, and what a cell and lines are.
        size: elements along rows and columns.
        height: of the grid.
        width: of the grid.
        axes: the names of rows and of columns.
        levels: the share of wrong elements, and a path of the cells with it.
        tiles: a path of the grid of tiles, which begins anew with each sequence.
        starts: a path of the starts of sequences.
        worst: (x, y) of the worst element.
        ticks: of rows and of columns, (place, index).
    """

    title: str
    caption: str
    size: tuple[int, int]
    height: float
    width: float
    axes: tuple[str, str]
    levels: tuple[tuple[float, str], ...]
    tiles: str
    starts: str
    worst: tuple[float, float]
    ticks: tuple[tuple[tuple[float, int], ...], ...]


@dataclass(frozen=True)
class FaultPage:
    """What the template shows of one group of failing cases."""

    number: int
    spec: str
    path: str
    title: str
    check: str
    facts: tuple[tuple[str, str], ...]
    story: str
    drawings: tuple[tuple[str, tuple[Drawing, ...]], ...]
    """Of each finding of the example with pictures: its tensor, and its pictures."""
    commands: tuple[tuple[str, str], ...]
    excerpts: tuple[Excerpt, ...]
    cases: tuple[CaseResult, ...]
    total: int


def fault_page(
    number: int, group: Group, folder: Path, specs: dict[Path, Spec | None]
) -> FaultPage:
    """The page of a group of a run in `folder`; `specs` keeps specs that were loaded."""
    example = group.example
    shown = example.shown
    first = shown.findings[0] if shown.findings else None
    title = first.title if first is not None else (example.message or str(example.status))
    return FaultPage(
        number=number,
        spec=example.spec,
        path=example.path,
        title=title,
        check=first.check if first is not None else str(example.status),
        facts=tuple(_facts(group, first)),
        story="\n".join(describe_group(group, width=110, brief=False)),
        drawings=tuple(
            (finding.tensor or "", drawings)
            for finding in shown.findings
            if (drawings := tuple(_drawings(finding)))
        ),
        commands=tuple(_commands(shown, first)),
        excerpts=tuple(_excerpts(group, shown, folder, specs)),
        cases=group.results[:_CASES],
        total=len(group.results),
    )


def _drawings(finding: Finding) -> Iterator[Drawing]:
    for picture in finding.pictures:
        with suppress(ArithmeticError, LookupError, TypeError, ValueError, zlib.error):
            yield drawing(picture)  # unless its record was damaged


def drawing(picture: Mapping[str, Any]) -> Drawing:
    """Lay out a picture: wrong cells, grid of tiles, sequences, the worst element, labels."""
    cells = cells_of(picture)
    size, edge = picture["size"], picture["cell"]
    scale = [
        min(_CELL, most / number) / side
        for most, number, side in zip(_SIZE, cells.shape, edge, strict=True)
    ]
    worst = [(at // side + 0.5) * side for at, side in zip(picture["worst"], edge, strict=True)]
    wrong = int((cells > 0).sum())
    words = _caption(picture)
    return Drawing(
        title=f"{count(wrong, 'cell')} of {cells.size} with wrong elements; {words}",
        caption=words,
        size=(size[0], size[1]),
        height=round(size[0] * scale[0], 2),
        width=round(size[1] * scale[1], 2),
        axes=(_words(picture, 0), _words(picture, 1)),
        levels=tuple(
            (level / LEVELS, _cell_path(cells == level, edge))
            for level in np.unique(cells[cells > 0])
        ),
        tiles="".join(_line_path(picture, axis, _tile_edges(picture, axis)) for axis in (0, 1)),
        starts="".join(_line_path(picture, axis, _sequences(picture, axis)) for axis in (0, 1)),
        worst=(round(worst[1] * scale[1], 2), round(worst[0] * scale[0], 2)),
        ticks=tuple(tuple(_ticks(picture, axis, scale[axis])) for axis in (0, 1)),
    )


def _words(picture: Mapping[str, Any], axis: int) -> str:
    return str(picture["axes"][axis]).replace("_", " ")


def _caption(picture: Mapping[str, Any]) -> str:
    """`position by dim: 257 by 64; a cell is 5 by 1 elements; lines are tiles of 64`."""
    rows, columns = _words(picture, 0), _words(picture, 1)
    height, width = picture["size"]
    words = f"{columns}: {width}" if not rows else f"{rows} by {columns}: {height} by {width}"
    if max(picture["cell"]) > 1:
        words += "; a cell covers {} by {} elements".format(*picture["cell"])
    tiles = [f"{tile} {_words(picture, k)}s" for k, tile in enumerate(picture["tile"]) if tile]
    if tiles:
        words += f"; thin lines are tiles of {' and '.join(tiles)}"
    if any(starts and len(starts) > 1 for starts in picture["starts"]):
        words += "; thick lines separate sequences"
    return words


def _cell_path(cells: np.ndarray, edge: Sequence[int]) -> str:
    """A path of cells, [rows, columns], as horizontal runs of them."""
    steps = np.diff(np.pad(cells, ((0, 0), (1, 1))).astype(np.int8))
    runs = zip(np.argwhere(steps > 0).tolist(), np.argwhere(steps < 0).tolist(), strict=True)
    return "".join(
        f"M{begin * edge[1]} {row * edge[0]}H{end * edge[1]}v{edge[0]}H{begin * edge[1]}z"
        for (row, begin), (_, end) in runs
    )


def _line_path(picture: Mapping[str, Any], axis: int, places: Iterable[int]) -> str:
    """A path of lines across the picture."""
    height, width = picture["size"]
    return "".join(f"M{at} 0V{height}" if axis else f"M0 {at}H{width}" for at in places)


def _sequences(picture: Mapping[str, Any], axis: int) -> list[int]:
    """Where sequences begin along an axis, besides its own begin."""
    size = picture["size"][axis]
    return sorted({start for start in picture["starts"][axis] or () if 0 < start < size})


def _tile_edges(picture: Mapping[str, Any], axis: int) -> list[int]:
    size, tile = picture["size"][axis], picture["tile"][axis]
    # A grid finer than its cells would hide them.
    if not tile or tile < 2 * picture["cell"][axis]:
        return []
    starts = picture["starts"][axis] or [0]
    ends = [*starts[1:], size]
    edges = {at for start, end in zip(starts, ends, strict=True) for at in range(start, end, tile)}
    return sorted(edges - set(starts))


def _ticks(picture: Mapping[str, Any], axis: int, scale: float) -> Iterator[tuple[float, int]]:
    """The labels of an axis: the starts of sequences, else tiles, as many as there is room for."""
    size, edge, room = picture["size"][axis], picture["tile"][axis] or 1, _ROOM[axis]
    if axis == 0 and size == 1:
        return
    step = edge
    while step * scale < (room if axis else 1.2 * room):
        step = step * 2 if edge > 1 else step * (5 if str(step)[0] == "2" else 2)
    starts = picture["starts"][axis]
    last = -room
    for at in starts if starts and len(starts) > 1 else range(0, size, step):
        if at * scale - last >= room:
            last = at * scale
            yield round(last, 2), at


def _facts(group: Group, first: Finding | None) -> Iterator[tuple[str, str]]:
    example = group.example
    yield "cases", f"{len(group.results):,} {example.status}"
    if group.evidence.shared:
        yield "all have", ", ".join(group.evidence.shared)
        yield "passed with that", f"{group.evidence.passing:,}"
    if group.evidence.passing_only:
        yield "passed only with", group.evidence.passing_only
    if first is None:
        return
    lines = describe_finding(first, width=10_000)[1:]
    for line in lines:
        name, text = line[2:12].strip(), line[12:].strip()
        if line.startswith("  ") and name and text and not line.startswith("    "):
            yield name, text


def _commands(shown: CaseResult, first: Finding | None) -> Iterator[tuple[str, str]]:
    yield "run the smallest case again", shown.command
    if first is not None and first.tensor and first.index:
        yield "show how the worst element was computed", f"tlmatrix explain {quoted(shown.node)}"


def _excerpts(
    group: Group, shown: CaseResult, folder: Path, specs: dict[Path, Spec | None]
) -> Iterator[Excerpt]:
    for finding in shown.findings:
        if finding.line is not None:
            file, line = finding.line
            excerpt = _excerpt(folder / file, file, {line}, _AROUND, "the reported access")
            if excerpt is not None:
                yield excerpt
            break
    path = folder / shown.path
    marked = _lines_of_values(path, shown, group.evidence.shared, specs)
    if marked:
        note = "the values that all failing cases share" if group.evidence.shared else "its values"
        excerpt = _excerpt(path, shown.path, marked, 0, note)
        if excerpt is not None:
            yield excerpt


def _excerpt(path: Path, name: str, marked: set[int], around: int, note: str) -> Excerpt | None:
    try:
        source = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return None
    wanted = sorted(
        {near for line in marked for near in range(line - around, line + around + 1)}
        & set(range(1, len(source) + 1))
    )
    lines: list[tuple[int, str, bool] | None] = []
    for at in wanted:
        if lines and lines[-1] is not None and lines[-1][0] != at - 1:
            lines.append(None)
        lines.append((at, source[at - 1], at in marked))
    return Excerpt(name, note, tuple(lines)) if lines else None


def _lines_of_values(
    path: Path, result: CaseResult, shared: Sequence[str], specs: dict[Path, Spec | None]
) -> set[int]:
    """The lines of a spec that list values of a case: of those in `shared`, if there are any."""
    spec = _loaded(path, specs)
    if spec is None:
        return set()
    values: Mapping[str, object] = {
        axis: value
        for axis, value in result.values.items()
        if not shared or f"{axis}={label(value)}" in shared
    } or dict(result.values)
    found = set()
    for axis in values:
        listed = list(map(canonical, spec.axes.get(axis, ())))
        text = canonical(result.values[axis])
        if not listed:
            continue
        keys = ("axes", axis, listed.index(text)) if text in listed else ("axes", axis)
        with suppress(LookupError):
            found.add(spec.location(*keys)[0])
    return found


def _loaded(path: Path, specs: dict[Path, Spec | None]) -> Spec | None:
    from tlmatrix.spec.loader import load_spec

    if path not in specs:
        try:
            specs[path] = load_spec(path)
        except (SpecError, OSError, ValueError):
            specs[path] = None
    return specs[path]
