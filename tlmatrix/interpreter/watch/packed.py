"""Packed tensors: which rows belong to the sequences of a block, by the boundaries it has read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.interpreter.runtime.elements import element_of

if TYPE_CHECKING:
    from tlmatrix.interpreter.reports import Sequences
    from tlmatrix.interpreter.runtime.elements import Place
    from tlmatrix.interpreter.runtime.masks import Dim

    from .monitor import Findings
    from .order import BlockOrder


class Boundaries:
    """A parameter that holds the boundaries of sequences.

    Attributes:
        values: the boundaries; without `ended` the parameter holds the starts alone.
        read: the elements that the current block has read.
    """

    __slots__ = ("_ended", "_known", "_own", "read", "values")

    def __init__(self, values: tuple[int, ...], *, ended: bool = True) -> None:
        self.values = values
        self._ended = ended
        self.read: set[int] = set()
        # The block's own sequences, by the block and the number of boundaries it had read.
        self._own: list[int] = []
        self._known = (0, 0)

    def note(self, rows: Any) -> None:
        """The current block reads elements: an index, a slice or an array of indices."""
        if isinstance(rows, int):
            self.read.add(rows)
        elif isinstance(rows, slice):
            self.read.update(range(rows.start, rows.stop, rows.step or 1))
        else:
            self.read.update(np.atleast_1d(rows).tolist())

    def own(self, block: int) -> list[int]:
        """The sequences whose boundaries block number `block`, the current one, has read."""
        known = (block, len(self.read))
        if known != self._known:
            own = [s for s in self.read if not self._ended or s + 1 in self.read]
            self._known, self._own = known, own
        return self._own


class Packed:
    """The rows of one packed tensor."""

    __slots__ = (
        "_boundaries", "_declared", "_ends", "_findings", "_known", "_order", "_own_rows",
        "_strict", "axis",
    )  # fmt: skip

    def __init__(
        self,
        findings: Findings,
        order: BlockOrder,
        declared: Sequences,
        boundaries: list[Boundaries],
    ) -> None:
        self._findings = findings
        self._order = order
        self._declared = declared
        self.axis = declared.axis
        self._strict = "overreads" in findings.sanitizers
        self._ends = np.asarray(declared.boundaries)
        self._boundaries = boundaries
        # The block's own sequences and their rows, by the block and what it had read.
        self._own_rows: tuple[list[int], list[tuple[int, int]]] = ([], [])
        self._known = (0, 0)

    def _own(self) -> tuple[list[int], list[tuple[int, int]]]:
        """The block's sequences, and the first row and the row past the last of each."""
        read = 0
        for each in self._boundaries:
            read += len(each.read)
        block = self._order.current
        if (block, read) != self._known:
            of_block = self._declared.of_block
            if of_block is not None:
                own = [of_block(*self._order.block)]
            else:
                own = sorted({s for b in self._boundaries for s in b.own(block)})
            ends = self._declared.boundaries
            self._own_rows = own, [(ends[s], ends[s + 1]) for s in own]
            self._known = block, read
        return self._own_rows

    def _foreign(self, place: Place, spans: list[tuple[int, int]]) -> tuple[Any, int] | None:
        """Which elements of a place are outside, and how many are not; None if none are."""
        memory, mask = place
        axis = self.axis
        rows = memory[axis]
        if isinstance(rows, slice):
            first, last = rows.start, rows.stop - 1
            for a, b in spans:
                if a <= first and last < b:
                    return None
                if mask is not None and rows.step in (None, 1) and a < rows.stop and first < b:
                    # Mostly a last tile: its mask leaves out what lies outside.
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
        ranges = [k for k, m in enumerate(memory) if isinstance(m, slice)]
        if ranges:
            extents = [
                len(range(m.start, m.stop, m.step or 1)) for m in memory if isinstance(m, slice)
            ]
            if axis in ranges:
                inside = inside.reshape([-1 if k == axis else 1 for k in ranges])
            inside = np.broadcast_to(inside, extents)
        outside = ~inside
        if mask is not None:
            outside, inside = outside & mask, inside & mask
        return (outside, int(inside.sum())) if outside.any() else None

    def only_reads_own(self, dims: Sequence[Dim], rows: int) -> bool:
        """Whether it is quickly seen that reading a block is no reason for a report."""
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

    def _report(self, name: str, site: int, place: Place, outside: Any, own: list[int]) -> None:
        where = element_of(place, outside)
        row = where[self.axis]
        owner = int(np.searchsorted(self._ends, row, "right")) - 1
        whose = f"sequence {owner}" if 0 <= owner < len(self._ends) - 1 else "no sequence"
        ours = ", ".join(str(s) for s in own)
        self._findings.report(
            name,
            site,
            where,
            f"{{action}} of {{buffer}} in row {row} of {whose}, by a block of sequence {ours}",
        )


def boundaries_of(
    tensors: Mapping[str, torch.Tensor], declared: Mapping[str, Sequences]
) -> dict[str, Boundaries]:
    """The parameters that hold the boundaries of declared sequences, or their starts.

    Other integers may have those values by chance: a number for each row, as the sequence that it
    is of, which is packed itself, or one for each sequence, as the state that it begins with,
    which is taken for starts only if no parameter holds all boundaries.
    """
    if not declared:
        return {}
    known = {sequences.boundaries for sequences in declared.values()}
    starts = {boundaries[:-1]: boundaries for boundaries in known}
    lengths = {len(boundaries) for boundaries in (*known, *starts)}
    found: dict[str, Boundaries] = {}
    of_starts: dict[str, tuple[int, ...]] = {}
    for name, tensor in tensors.items():
        if (
            tensor.dim() == 1
            and name not in declared
            and tensor.dtype in (torch.int32, torch.int64)
            and len(tensor) in lengths
        ):
            values = tuple(tensor.tolist())
            if values in known:
                found[name] = Boundaries(values)
            elif values in starts:
                of_starts[name] = starts[values]
    whole = {each.values for each in found.values()}
    for name, boundaries in of_starts.items():
        if boundaries not in whole:
            found[name] = Boundaries(boundaries, ended=False)
    return found
