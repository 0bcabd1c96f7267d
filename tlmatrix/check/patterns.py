"""Recognises the shape of a set of wrong elements (a row, a tile, everything), and draws it.

The shape hints at the bug: a wrong bound affects the last tile of every sequence, a swapped index
two heads. The mask of wrong elements is projected onto each dimension (a packed dimension onto
sequence and position), and the dimensions that are not wrong throughout name the pattern.

Pictures of the wrong elements are small enough for a results file: a grid over two dimensions,
rows by columns, then every other dimension (heads, batch) by rows. A cell covers a rectangle of
elements, counted over all other dimensions, and has the share of them that is wrong in 16 levels; 0
means that none is.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from tlmatrix.problem.model import Dim

_DENSE = 0.25
"""Fraction of the bounding box that must be wrong for a pattern other than scattered; a small
uniform error leaves many elements within their bounds."""

ROW_NAMES = frozenset({"position", "row", "rows", "query", "key", "seqlen", "seqlen_q", "m"})
_COLUMN_NAMES = frozenset({"dim", "column", "cols", "head_dim", "head_dim_v", "n"})


@dataclass(frozen=True)
class Projection:
    """The projection of wrong elements onto one dimension: its indices with a wrong element.

    `regions` maps each region with wrong elements to its wrong positions, relative to the region's
    start; `lengths` maps every region to its length. A dimension that is not packed is one region.
    """

    dim: Dim
    wrong: np.ndarray = field(repr=False)
    regions: dict[int, np.ndarray]
    lengths: dict[int, int]

    @property
    def segmented(self) -> bool:
        """Whether the dimension is packed: several sequences one after another."""
        return self.dim.starts is not None

    @property
    def noun(self) -> str:
        """The word for one of its indices."""
        if self.segmented or self.dim.name in ROW_NAMES:
            return "row"
        return "column" if self.dim.name in _COLUMN_NAMES else self.dim.name

    @cached_property
    def indices(self) -> np.ndarray:
        """The indices with a wrong element, ascending."""
        return np.flatnonzero(self.wrong)

    @property
    def full(self) -> bool:
        """Whether nearly every index is wrong; a few may be right by chance."""
        return len(self.indices) >= 0.95 * self.dim.size

    @property
    def tiles(self) -> set[tuple[int, int]]:
        """(region, tile) of the wrong rows; empty if the tile size is unknown."""
        edge = self.dim.tile
        if not edge:
            return set()
        return {(r, int(tile)) for r, at in self.regions.items() for tile in np.unique(at // edge)}

    @property
    def whole_regions(self) -> bool:
        """Whether every region with a wrong element is wrong throughout."""
        return all(len(at) >= 0.95 * self.lengths[r] for r, at in self.regions.items())

    @cached_property
    def ranks(self) -> list[int]:
        """The ranks with wrong indices; empty if the dimension is not sharded."""
        if self.dim.owner is None:
            return []
        return [int(rank) for rank in np.unique(np.asarray(self.dim.owner)[self.indices])]

    @property
    def whole_ranks(self) -> bool:
        """Whether some ranks, but not all, are wrong throughout and the others right."""
        if not self.ranks or self.full:
            return False
        owned = np.isin(np.asarray(self.dim.owner), self.ranks)
        return len(self.indices) >= 0.95 * int(owned.sum())

    @property
    def shape(self) -> str:
        """The arrangement of wrong indices: `all`, `one`, `first`, `tile`, `every 8th`, `some`."""
        if self.full:
            return "all"
        if len(self.indices) == 1:
            return "one"
        if self.segmented and self.whole_regions:
            return "regions"
        if self.dim.tile and self._last_tiles and self._whole_tiles:
            return "last tiles"
        if self.dim.tile and len(self.tiles) == 1 and self._whole_tiles:
            return "tile"
        if self._each(lambda at, length: len(at) < length and _run_to(at, length)):
            return "last"
        if self._each(lambda at, length: len(at) < length and at[-1] == len(at) - 1):
            return "first"
        steps = np.unique(np.diff(self.indices))
        if len(self.indices) > 2 and len(steps) == 1 and steps[0] > 1:
            return f"every {_ordinal(int(steps[0]))}"
        if len(self.tiles) > 1 and self.dim.tile and self._whole_tiles:
            return "tiles"
        return "range" if len(steps) == 1 else "some"

    @property
    def _last_tiles(self) -> bool:
        edge = self.dim.tile or 1
        tiles_of = [(at // edge, (self.lengths[r] - 1) // edge) for r, at in self.regions.items()]
        longest = max(last for _, last in tiles_of)
        return longest > 0 and all((at == last).all() for at, last in tiles_of)

    @property
    def _whole_tiles(self) -> bool:
        edge = self.dim.tile or 1
        return all(
            int((self.regions[r] // edge == tile).sum()) == min(edge, self.lengths[r] - tile * edge)
            for r, tile in self.tiles
        )

    def _each(self, holds: object) -> bool:
        assert callable(holds)
        return all(bool(holds(at, self.lengths[r])) for r, at in self.regions.items())


@dataclass(frozen=True)
class Pattern:
    """The shape of a set of wrong elements.

    `name` is short ("a tile"), `where` has the indices ("rows 64-79 of sequence 1, head 0-3, in
    tile 1"), and `projections` are those onto each dimension.
    """

    name: str
    where: str
    projections: tuple[Projection, ...] = field(repr=False)


def recognise(wrong: torch.Tensor, dims: Sequence[Dim]) -> Pattern:
    """The pattern of a mask with at least one set element; `dims` describe its dimensions."""
    # Reduced on the device of the mask, so that only the projections are copied to the host.
    axes = range(wrong.ndim)
    masks = [
        (wrong.any(tuple(a for a in axes if a != axis)) if wrong.ndim > 1 else wrong).cpu().numpy()
        for axis in axes
    ]
    projections = tuple(_project(dim, mask) for dim, mask in zip(dims, masks, strict=True))
    count = int(wrong.sum())
    box = int(np.prod([len(side.indices) for side in projections]))
    if count == 1 < wrong.numel():
        name = "one element"
    elif count < _DENSE * box:
        name = "scattered"
    else:
        name = _name(projections)
    return Pattern(name, _where(projections), projections)


def _project(dim: Dim, wrong: np.ndarray) -> Projection:
    indices = np.flatnonzero(wrong)
    if dim.starts is None or dim.region is None:
        return Projection(dim, wrong, {0: indices}, {0: dim.size})
    region = np.asarray(dim.region)
    lengths = np.bincount(region, minlength=1)
    touched = {
        int(r): indices[region[indices] == r] - int(dim.starts[int(r)])
        for r in np.unique(region[indices])
    }
    return Projection(dim, wrong, touched, {r: int(length) for r, length in enumerate(lengths)})


def _name(projections: Sequence[Projection]) -> str:
    limited = [side for side in projections if not side.full]
    if not limited:
        return "everything"
    if len(limited) == 1 and limited[0].whole_ranks:
        return "a shard" if len(limited[0].ranks) == 1 else "shards"
    rows = [side for side in limited if side.noun == "row" or side.dim.tile]
    if len(rows) == 2 and all(side.shape in ("tile", "last tiles") for side in rows):
        return "a tile"
    if rows:
        return _name_rows(rows[0])
    return " and ".join(_name_indices(side) for side in limited[:2])


def _name_rows(side: Projection) -> str:
    noun = side.noun
    region = side.dim.region_name or "sequence"
    several = len(side.regions) > 1
    match side.shape:
        case "one":
            return f"a {noun}"
        case "regions":
            return f"{region}s" if several else f"a {region}"
        case "tile":
            return "a tile"
        case "tiles":
            return "tiles"
        case "last tiles":
            return f"last tile of {_every(side)}" if side.segmented else "last tile"
        case "last":
            return f"last {noun}s"
        case "first":
            return f"first {noun}s"
        case shape if shape.startswith("every"):
            return f"{shape} {noun}"
    return f"{noun}s"


def _every(side: Projection) -> str:
    region = side.dim.region_name or "sequence"
    if len(side.regions) == 1:
        return f"a {region}"
    nonempty = sum(length > 0 for length in side.lengths.values())
    return f"every {region}" if len(side.regions) == nonempty else f"some {region}s"


def _name_indices(side: Projection) -> str:
    noun = side.dim.region_name or side.noun
    shape = side.shape
    if shape == "one":
        return f"a {noun}"
    return f"{shape} {noun}" if shape.startswith("every") else f"{noun}s"


def _where(projections: Sequence[Projection]) -> str:
    parts = []
    tiles = []
    for side in projections:
        if side.full:
            continue
        if side.segmented:
            parts.append(_where_packed(side))
        else:
            noun = _rows(len(side.indices)) if side.noun == "row" else side.dim.name
            parts.append(f"{noun} {ranges(side.indices)}")
        numbers = sorted({tile for _, tile in side.tiles})
        if numbers and len(numbers) <= 4:
            parts_of = "tile" if side.noun == "row" else f"{side.dim.name} tile"
            tiles.append(f"{parts_of} {ranges(numbers)}")
    if tiles:
        parts.append("in " + " and ".join(tiles))
    parts += [_of_ranks(side) for side in projections if side.ranks and not side.full]
    return ", ".join(parts) if parts else "everywhere"


def _of_ranks(side: Projection) -> str:
    """`all of rank 1`, `on ranks 0-2`."""
    words = "all of" if side.whole_ranks else "on"
    return f"{words} rank{'s' if len(side.ranks) > 1 else ''} {ranges(side.ranks)}"


def _where_packed(side: Projection) -> str:
    """`rows 3-7 of sequences 0-2`: groups sequences with the same wrong rows."""
    region = side.dim.region_name or "sequence"
    groups: dict[str, list[int]] = {}
    for number, at in side.regions.items():
        whole = len(at) == side.lengths[number]
        words = "all rows" if whole else f"{_rows(len(at))} {ranges(at)}"
        groups.setdefault(words, []).append(number)
    parts = [
        f"{words} of {region}{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"
        for words, numbers in groups.items()
    ]
    more = f" and of {len(parts) - 4} more" if len(parts) > 4 else ""
    return "; ".join(parts[:4]) + more


def _rows(count: int) -> str:
    return "row" if count == 1 else "rows"


def ranges(numbers: Sequence[int] | np.ndarray) -> str:
    """`0-3, 7, 9-12`; lists at most six runs."""
    values = np.asarray(numbers)
    runs = np.split(values, np.flatnonzero(np.diff(values) != 1) + 1)
    words = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    more = f", … ({len(words) - 6} more)" if len(words) > 6 else ""
    return ", ".join(words[:6]) + more


def _run_to(at: np.ndarray, length: int) -> bool:
    """Whether the positions are the last ones of a region with this length."""
    return bool(at[-1] == length - 1 and at[-1] - at[0] == len(at) - 1)


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if 10 <= number % 100 <= 20 else endings.get(number % 10, "th")
    return f"{number}{ending}"


# Pictures ----------------------------------------------------------------------------------------

LEVELS = 15
"""The level of a cell whose elements are all wrong."""
_ROWS, _COLUMNS = 64, 96
"""Most cells of a picture."""
_VIEWS = 3
"""Most pictures of a tensor."""
_STARTS = 65
"""Most starts of sequences that a picture keeps."""


def pictures(
    wrong: torch.Tensor, dims: Sequence[Dim], worst: Sequence[int]
) -> tuple[Mapping[str, Any], ...]:
    """The pictures of a mask of wrong elements, the most useful first; plain data.

    Each has `axes` (the names of the dimension of rows and of columns), `size` (elements along
    each), `cell` (elements along a side of a cell), `cells` (`cells_of` decodes them), `worst` (the
    index of the worst element), and for each axis `tile` and `starts` (of packed sequences) or
    None.
    """
    axes = [axis for axis, size in enumerate(wrong.shape) if size > 1]
    return tuple(_picture(wrong, dims, worst, *pair) for pair in _pairs(axes, dims)[:_VIEWS])


def _pairs(axes: Sequence[int], dims: Sequence[Dim]) -> list[tuple[int | None, int]]:
    """The axes of rows and of columns of each picture."""
    if not axes:
        return []
    if len(axes) == 1:
        return [(None, axes[0])]
    named = [axis for axis in axes if dims[axis].starts is not None or dims[axis].name in ROW_NAMES]
    row = named[0] if named else max(axes[:-1], key=lambda axis: dims[axis].size)
    pairs: list[tuple[int | None, int]] = [] if row == axes[-1] else [(row, axes[-1])]
    others = [axis for axis in axes if axis != row and (row, axis) not in pairs]
    return pairs + [(axis, row) for axis in reversed(others)]


def _picture(
    wrong: torch.Tensor, dims: Sequence[Dim], worst: Sequence[int], row: int | None, column: int
) -> Mapping[str, Any]:
    kept = [axis for axis in (row, column) if axis is not None]
    others = [axis for axis in range(wrong.ndim) if axis not in kept]
    # Reduced on the device of the mask.
    counts = (wrong.sum(others) if others else wrong.int()).cpu().numpy()
    if kept != sorted(kept):
        counts = counts.T
    counts = counts.reshape(1, -1) if row is None else counts
    each = wrong.numel() // max(counts.size, 1)
    cell = [-(-size // most) for size, most in zip(counts.shape, (_ROWS, _COLUMNS), strict=True)]
    totals = _pooled(np.full(counts.shape, each, np.int64), cell)
    levels = np.ceil(LEVELS * _pooled(counts.astype(np.int64), cell) / totals).astype(np.uint8)
    sides = [None if axis is None else dims[axis] for axis in (row, column)]
    return {
        "axes": ["" if side is None else side.name for side in sides],
        "size": list(counts.shape),
        "cell": cell,
        "cells": base64.b64encode(zlib.compress(levels.tobytes(), 9)).decode(),
        "worst": [0 if axis is None else int(worst[axis]) for axis in (row, column)],
        "tile": [None if side is None else side.tile for side in sides],
        "starts": [_starts(side) for side in sides],
    }


def _pooled(counts: np.ndarray, cell: Sequence[int]) -> np.ndarray:
    """The sums of the rectangles of `cell` elements; those at the end may be smaller."""
    for axis, edge in enumerate(cell):
        counts = np.add.reduceat(counts, np.arange(0, counts.shape[axis], edge), axis=axis)
    return counts


def _starts(dim: Dim | None) -> list[int] | None:
    if dim is None or dim.starts is None:
        return None
    return [int(start) for start in dim.starts if int(start) < dim.size][:_STARTS]


def cells_of(picture: Mapping[str, Any]) -> np.ndarray:
    """The levels of a picture's cells: [rows, columns] of 0 to `LEVELS`."""
    rows, columns = (
        -(-size // cell) for size, cell in zip(picture["size"], picture["cell"], strict=True)
    )
    levels = np.frombuffer(zlib.decompress(base64.b64decode(picture["cells"])), np.uint8)
    return levels.reshape(rows, columns)
