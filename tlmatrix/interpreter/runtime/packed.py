"""Packed tensors: whose rows a block may touch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .shadows import element

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.interpreter.reports import Sequences

    from .masks import Dim
    from .monitor import Monitor
    from .shadows import Place

__all__ = ["Boundaries", "Packed"]


class Boundaries:
    """A parameter that holds the boundaries of sequences, and what this block has read of it.

    `values` are those of the sequences; without `ended` the parameter has their starts alone.
    """

    __slots__ = ("_ended", "_known", "_own", "read", "values")

    def __init__(self, values: tuple[int, ...], *, ended: bool = True) -> None:
        self.values = values
        self._ended = ended
        self.read: set[int] = set()
        # The block's own sequences, and the block and number of boundaries they were found from.
        self._own: list[int] = []
        self._known = (0, 0)

    def own(self, block: int) -> list[int]:
        """The sequences whose boundaries here the block has read; `block` is its number."""
        known = (block, len(self.read))
        if known != self._known:
            own = [s for s in self.read if not self._ended or s + 1 in self.read]
            self._known, self._own = known, own
        return self._own


class Packed:
    """The rows of one packed tensor."""

    __slots__ = (
        "_boundaries", "_cuts", "_declared", "_known", "_monitor", "_owned", "_strict", "axis",
    )  # fmt: skip

    def __init__(self, monitor: Monitor, declared: Sequences, boundaries: list[Boundaries]) -> None:
        self._monitor = monitor
        self._declared = declared
        self.axis = declared.axis
        self._strict = "overreads" in monitor.sanitizers
        self._cuts = np.asarray(declared.boundaries)
        self._boundaries = boundaries
        # The block's own sequences and their rows, and what they were found from.
        self._owned: tuple[list[int], list[tuple[int, int]]] = ([], [])
        self._known = (0, 0)

    def _own(self) -> tuple[list[int], list[tuple[int, int]]]:
        """The block's sequences, and from which row to which each goes."""
        read = 0
        for each in self._boundaries:
            read += len(each.read)
        known = (self._monitor.here, read)
        if known != self._known:
            of_block = self._declared.of_block
            if of_block is not None:
                own = [of_block(*self._monitor.block)]
            else:
                here = self._monitor.here
                own = sorted({s for b in self._boundaries for s in b.own(here)})
            cuts = self._declared.boundaries
            self._known, self._owned = known, (own, [(cuts[s], cuts[s + 1]) for s in own])
        return self._owned

    def _foreign(self, place: Place, spans: list[tuple[int, int]]) -> tuple[Any, int] | None:
        """Which elements of a place are outside, and how many are not; None where none are."""
        memory, mask = place
        axis = self.axis
        rows = memory[axis]
        if isinstance(rows, slice):
            first, last = rows.start, rows.stop - 1
            for a, b in spans:
                if a <= first and last < b:
                    return None
                if mask is not None and rows.step in (None, 1) and a < rows.stop and first < b:
                    # Mostly a last tile: what its mask leaves out is what lies outside.
                    along = (slice(None),) * sum(isinstance(m, slice) for m in memory[:axis])
                    before, after = slice(0, max(a - first, 0)), slice(b - first, None)
                    if not (mask[*along, before].any() or mask[*along, after].any()):
                        return None
            numbers = np.arange(rows.start, rows.stop, rows.step or 1)
        else:
            numbers = np.asarray(rows)
        inside = np.zeros(numbers.shape, bool)
        for a, b in spans:
            inside |= (numbers >= a) & (numbers < b)
        if isinstance(rows, slice):
            ranges = [k for k, m in enumerate(memory) if isinstance(m, slice)]
            shape = [1] * len(ranges)
            shape[ranges.index(axis)] = -1
            extents = [
                len(range(m.start, m.stop, m.step or 1)) for m in memory if isinstance(m, slice)
            ]
            inside = np.broadcast_to(inside.reshape(shape), extents)
        elif any(isinstance(m, slice) for m in memory):
            extents = [
                len(range(m.start, m.stop, m.step or 1)) for m in memory if isinstance(m, slice)
            ]
            inside = np.broadcast_to(inside, extents)
        outside = ~inside
        if mask is not None:
            outside, inside = outside & mask, inside & mask
        return (outside, int(inside.sum())) if outside.any() else None

    def only_reads_own(self, dims: Sequence[Dim], rows: int) -> bool:
        """Whether a block that is read is surely no reason for a report, as soon as can be told."""
        dim = dims[self.axis]
        if self._strict or type(dim) is not tuple or dim[2] != 1:
            return False
        own, spans = self._own()
        first, stop = max(dim[0], 0), min(dim[0] + dim[1], rows)
        for a, b in spans:
            if a < stop and first < b:
                return True
        return not own

    def written(self, site: int, place: Place) -> None:
        """Rows are written: each must be the block's own."""
        own, spans = self._own()
        found = self._foreign(place, spans) if own else None
        if found is not None:
            self._report("sequences", site, place, found[0], own)

    def read(self, site: int, place: Place) -> None:
        """Rows are read: a tile may run past the end of its sequence, not start outside."""
        own, spans = self._own()
        rows = place[0][self.axis]
        if not own or (
            not self._strict
            and place[1] is None
            and isinstance(rows, slice)
            and any(a < rows.stop and rows.start < b for a, b in spans)
        ):
            return
        found = self._foreign(place, spans)
        if found is None:
            return
        outside, inside = found
        if not inside:
            self._report("sequences", site, place, outside, own)
        elif self._strict:
            self._report("overreads", site, place, outside, own)

    def _report(
        self,
        name: str,
        site: int,
        place: Place,
        outside: Any,
        own: list[int],
    ) -> None:
        where = element(place, outside)
        row = where[self.axis]
        owner = int(np.searchsorted(self._cuts, row, "right")) - 1
        whose = f"sequence {owner}" if 0 <= owner < len(self._cuts) - 1 else "no sequence"
        ours = ", ".join(str(s) for s in own)
        self._monitor.report(
            name,
            site,
            where,
            f"{{action}} of {{buffer}} in row {row} of {whose}, by a block of sequence {ours}",
        )
