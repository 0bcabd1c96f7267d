"""Draws the pictures of findings (`tlmatrix.check.pictures`) as SVG."""

from __future__ import annotations

from collections import defaultdict
from html import escape
from typing import TYPE_CHECKING, Any

from tlmatrix.check.pictures import LEVELS, cells_of
from tlmatrix.report.text import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np


_WIDTH, _HEIGHT = 560.0, 300.0
"""Size of the largest grid, in pixels."""
_CELL = 22.0
"""Size of the largest cell."""
_LEFT, _TOP, _MARGIN = 58.0, 26.0, 8.0
"""Room for the labels of rows and of columns."""
_LABEL_EACH = 34.0
"""Least pixels between two labels of an axis."""


def caption(picture: Mapping[str, Any]) -> str:
    """`position by dim: 257 by 64; a cell is 5 by 1 elements; lines are tiles of 64`."""
    rows, columns = (name.replace("_", " ") for name in picture["axes"])
    height, width = picture["size"]
    words = f"{columns}: {width}" if not rows else f"{rows} by {columns}: {height} by {width}"
    if max(picture["cell"]) > 1:
        words += "; a cell covers {} by {} elements".format(*picture["cell"])
    tiles = [
        f"{tile} {name.replace('_', ' ')}s"
        for tile, name in zip(picture["tile"], picture["axes"], strict=True)
        if tile
    ]
    if tiles:
        words += f"; thin lines are tiles of {' and '.join(tiles)}"
    if any(starts and len(starts) > 1 for starts in picture["starts"]):
        words += "; thick lines separate sequences"
    return words


def svg(picture: Mapping[str, Any]) -> str:
    """The picture as an SVG element: wrong cells, tile grid, sequences, the worst element."""
    cells = cells_of(picture)
    rows, columns = cells.shape
    wide = min(_CELL, _WIDTH / columns)
    high = min(_CELL, _HEIGHT / rows)
    scale = (high / picture["cell"][0], wide / picture["cell"][1])
    height, width = (size * each for size, each in zip(picture["size"], scale, strict=True))
    box = (_LEFT + width + _MARGIN, _TOP + height + _MARGIN)
    wrong = int((cells > 0).sum())
    name = f"{count(wrong, 'cell')} of {cells.size} with wrong elements; {caption(picture)}"
    opening = (
        f'<svg class="picture" viewBox="0 0 {box[0]:.1f} {box[1]:.1f}" width="{box[0]:.0f}" '
        f'height="{box[1]:.0f}" role="img" aria-label="{escape(name)}">'
    )
    parts = [
        opening,
        f'<g transform="translate({_LEFT:g} {_TOP:g})">',
        f'<rect class="right" width="{width:.1f}" height="{height:.1f}"/>',
        f'<svg width="{width:.2f}" height="{height:.2f}">',
        *_cells(cells, high, wide),
        "</svg>",
        *_lines(picture, scale, (height, width)),
        f'<rect class="frame" width="{width:.1f}" height="{height:.1f}"/>',
        _worst(picture, scale),
        *_labels(picture, scale),
        "</g></svg>",
    ]
    return "".join(parts)


def _cells(cells: np.ndarray, high: float, wide: float) -> Iterator[str]:
    """One path for each level, of horizontal runs of cells."""
    runs: dict[int, list[str]] = defaultdict(list)
    for row, line in enumerate(cells.tolist()):
        begin = 0
        for column in range(1, len(line) + 1):
            if column < len(line) and line[column] == line[begin]:
                continue
            if line[begin]:
                x, y, run = begin * wide, row * high, (column - begin) * wide
                runs[line[begin]].append(f"M{x:.2f} {y:.2f}h{run:.2f}v{high:.2f}h-{run:.2f}z")
            begin = column
    for level, paths in sorted(runs.items()):
        opacity = 0.25 + 0.75 * level / LEVELS
        yield f'<path class="wrong" opacity="{opacity:.2f}" d="{"".join(paths)}"/>'


def _lines(
    picture: Mapping[str, Any], scale: Sequence[float], size: Sequence[float]
) -> Iterator[str]:
    """The grid of tiles, which begins anew with each sequence, and the starts of sequences."""
    for kind in ("tile", "start"):
        paths = []
        for axis in (0, 1):
            for at in _edges(picture, axis, kind):
                place = at * scale[axis]
                line = (
                    f"M0 {place:.2f}h{size[1]:.1f}"
                    if axis == 0
                    else f"M{place:.2f} 0v{size[0]:.1f}"
                )
                paths.append(line)
        if paths:
            yield f'<path class="{kind}" d="{"".join(paths)}"/>'


def _edges(picture: Mapping[str, Any], axis: int, kind: str) -> list[int]:
    size, tile = picture["size"][axis], picture["tile"][axis]
    starts = picture["starts"][axis] or [0]
    if kind == "start":
        return sorted({start for start in starts if 0 < start < size})
    # A grid finer than its cells would hide them.
    if not tile or tile < 2 * picture["cell"][axis]:
        return []
    ends = [*starts[1:], size]
    edges = {at for start, end in zip(starts, ends, strict=True) for at in range(start, end, tile)}
    return sorted(edges - set(starts))


def _worst(picture: Mapping[str, Any], scale: Sequence[float]) -> str:
    cell = picture["cell"]
    y, x = (
        (at // edge * edge + edge / 2) * each
        for at, edge, each in zip(picture["worst"], cell, scale, strict=True)
    )
    ring = f'<circle class="worst" cx="{x:.1f}" cy="{y:.1f}" r="6">'
    return f"{ring}<title>worst element</title></circle>"


def _labels(picture: Mapping[str, Any], scale: Sequence[float]) -> Iterator[str]:
    for axis in (0, 1):
        name = picture["axes"][axis].replace("_", " ")
        size = picture["size"][axis]
        last = -_LABEL_EACH
        for at in _ticks(picture, axis, scale[axis]):
            place = at * scale[axis]
            if place - last < _LABEL_EACH * (0.5 if axis == 0 else 1):
                continue
            last = place
            if axis == 0 and size > 1:
                yield f'<text class="row" x="-6" y="{place + 4:.1f}">{at}</text>'
            elif axis == 1:
                yield f'<text class="column" x="{place:.1f}" y="-4">{at}</text>'
        if axis == 0 and name:
            middle = size * scale[0] / 2
            turned = f"translate(-44 {middle:.1f}) rotate(-90)"
            yield f'<text class="axis" transform="{turned}">{escape(name)}</text>'
        elif axis == 1:
            middle = size * scale[1] / 2
            yield f'<text class="axis" x="{middle:.1f}" y="-15">{escape(name)}</text>'


def _ticks(picture: Mapping[str, Any], axis: int, scale: float) -> list[int]:
    size = picture["size"][axis]
    starts = picture["starts"][axis]
    if starts and len(starts) > 1:
        return list(starts)
    edge = picture["tile"][axis] or 1
    step = edge
    while step * scale < _LABEL_EACH * (0.6 if axis == 0 else 1):
        step = step * 2 if edge > 1 else step * (5 if str(step)[0] == "2" else 2)
    return list(range(0, size, step))
