"""Accesses of regions of a block's buffers, and those that conflict with an earlier one.

Tile operations access boxes, gathers and scatters of threads single elements of a box. Accesses of
global memory by blocks and ranks are in `shadows`, element by element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from .agents import Clock, fenced

Box = tuple[tuple[int, int], ...]
_MBARRIER = "T.mbarrier_wait_parity() of the mbarrier that it arrives at"
_WAITS = {
    "TMA store": "T.tma_store_wait()",
    "cp.async": "T.ptx_wait_group({since})",
    "wgmma": "T.wait_wgmma({since})",
}
"""The waits of the issuing threads for asynchronous work, of which `since` later groups may be in
flight; other work arrives at an mbarrier."""
_MANY = 1 << 20
"""Elements of a buffer above which its indices are sorted, rather than marked in an array."""


@dataclass(slots=True, unsafe_hash=True)
class RegionAccess:
    """One access to a region of a buffer; it never changes, and is not frozen as `races.Access`.

    Attributes:
        agent: the agent that made it.
        time: that agent's time; a clock that includes it is ordered after the access.
        write: whether it writes.
        line: the line of the generated source.
        by: the role that made it or issued it, as text: "threads 0..127".
        box: per dimension the first element and the one past the last.
        cells: flat indices of the elements within the box, if it is not all of them.
        unfenced: whether it is a store to shared memory that the asynchronous proxy sees only
            after a fence.
        asynchronous: whether it goes through the asynchronous proxy.
        kind: of asynchronous work what it is: "TMA store"; "" of the role's own accesses.
        unordered: whether barriers alone order the threads of the role, as TileLang adds none.
    """

    agent: int
    time: int
    write: bool
    line: int
    by: str
    box: Box
    cells: Any = None
    unfenced: bool = False
    asynchronous: bool = False
    kind: str = ""
    unordered: bool = False

    @property
    def what(self) -> str:
        """What made it, as text."""
        return f"the {self.kind} issued by {self.by}" if self.kind else self.by

    def __str__(self) -> str:
        verb = "write" if self.write else "read"
        return f"{self.what} {verb}" if self.what.startswith("threads") else f"{self.what} {verb}s"

    def remedy(self, later: RegionAccess, since: int = 0) -> str:
        """What orders a later access after this one; `since` groups were committed after it."""
        own_wait = _WAITS.get(self.kind, "").format(since=since)
        if self.unordered and self.by == later.by:
            first = f"{own_wait or 'a wait'}, then " if self.kind else ""
            return (
                f"{first}T.sync_threads(ID, COUNT) of {self.by}: one warp may be ahead of another, "
                "and TileLang adds no barrier under tl.disable_thread_storage_sync"
            )
        if not self.kind:
            return (
                f"{later.by} must wait for {self.by}: T.mbarrier_arrive() there and "
                "T.mbarrier_wait_parity() here, or a barrier of both"
            )
        stored = self.kind == "TMA store" and self.write
        wait = "T.tma_store_wait(0, read=False)" if stored else own_wait or _MBARRIER
        if wait is _MBARRIER:
            return f"{later.by} must wait until the {self.kind} is complete: {wait}"
        done = "has written" if stored else "has read its source" if not self.write else "is done"
        text = f"wait until the {self.kind} {done}: {wait}"
        if since and f"({since})" in wait:
            groups = "1 group was" if since == 1 else f"{since} groups were"
            text += f" (or fewer: {groups} committed after its own)"
        if self.by != later.by:
            text += f" in {self.by}, then a barrier that {later.by} wait for"
        return text


@dataclass(frozen=True)
class Cells:
    """Elements that may be no box: the smallest box around them, and flat indices, in order.

    `flat` is None if they are all of the box.
    """

    box: Box
    flat: Any


def region_of(dims: Any, shape: Sequence[int]) -> tuple[Box, Any]:
    """Box and cells of `Cells`, or of dims (an index, or start, extent and step), clipped."""
    if isinstance(dims, Cells):
        return dims.box, dims.flat
    box = []
    for dim, n in zip(dims, shape, strict=True):
        if isinstance(dim, tuple):
            start, extent, step = dim
            stop = start + (extent - 1) * step + 1 if extent > 0 else start
        else:
            start, stop = int(dim), int(dim) + 1
        box.append((max(start, 0), min(stop, n)))
    return tuple(box), None


def cells_of(index: Sequence[Any], mask: Any, shape: Sequence[int]) -> Cells:
    """The elements that the active iterations of a gather or scatter access."""
    arrays = [np.asarray(i) for i in index]
    keep, flat = mask, cast("Any", np.int64(0))
    for i, n in zip(arrays, shape, strict=True):
        flat = flat * n + i
        if i.size and (i.min() < 0 or i.max() >= n):
            inside = (i >= 0) & (i < n)
            keep = inside if keep is None else keep & inside
    if keep is not None:
        extents = np.broadcast_shapes(np.shape(flat), np.shape(keep))
        flat = np.broadcast_to(flat, extents)[np.broadcast_to(np.asarray(keep, bool), extents)]
    if np.size(flat) == 0:
        return Cells(tuple((0, 0) for _ in shape), None)
    found = _distinct(flat, math.prod(shape))
    # The ranges of an index are far smaller than what they span, if all of it is accessed.
    columns = arrays if keep is None else np.unravel_index(found, tuple(shape))
    box = tuple((int(i.min()), int(i.max()) + 1) for i in columns)
    return Cells(box, None if len(found) == math.prod(b - a for a, b in box) else found)


def _distinct(flat: Any, count: int) -> Any:
    """The distinct ones of flat indices below `count`, in order."""
    if count > _MANY:
        return np.unique(flat)
    present = np.zeros(count, bool)
    present[flat] = True
    return np.flatnonzero(present)


def row_cells(
    index: Sequence[Any], count: int, mask: Any, copies: tuple[int, ...], shape: Sequence[int]
) -> Cells:
    """Elements of rows of `count` that begin at an index for each thread or iteration.

    Args:
        index: where the rows begin, of a shape that broadcasts to `copies`.
        count: elements of a row.
        mask: which threads or iterations are active; None for all.
        copies: the extents of the threads or of the parallel loops.
        shape: of the buffer.
    """
    starts = [np.broadcast_to(np.asarray(i), copies)[..., None] for i in index]
    starts[-1] = starts[-1] + np.arange(count)
    keep = None if mask is None else np.broadcast_to(mask, copies)[..., None]
    return cells_of(starts, keep, shape)


def rendered_box(box: Box) -> str:
    """A box as an index expression."""
    return ", ".join(str(a) if b == a + 1 else f"{a}:{b}" for a, b in box)


def _overlap(a: Box, b: Box) -> bool:
    return all(x[0] < y[1] and y[0] < x[1] for x, y in zip(a, b, strict=True))


def _within(a: Box, b: Box) -> bool:
    return all(y[0] <= x[0] and x[1] <= y[1] for x, y in zip(a, b, strict=True))


class History:
    """The accesses to one buffer that a later one may still conflict with."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._live: list[RegionAccess] = []

    def add(self, clock: Clock, new: RegionAccess) -> tuple[RegionAccess, bool] | None:
        """Add an access of an agent with a clock.

        Returns:
            An earlier access that it conflicts with, and whether only a fence between the
            proxies is missing; None if there is no conflict.
        """
        if any(a >= b for a, b in new.box):
            return None
        kept = []
        conflict: tuple[RegionAccess, bool] | None = None
        for old in self._live:
            ordered = clock.get(old.agent, 0) >= old.time
            no_fence = (
                ordered
                and new.asynchronous
                and not new.write
                and old.unfenced
                and clock.get(fenced(old.agent), 0) < old.time
            )
            if (
                (((old.write or new.write) and not ordered) or no_fence)
                and (conflict is None or (conflict[1] and not ordered))
                and self._touch(old, new)
            ):
                conflict = (old, ordered)
            superseded = (
                new.cells is None
                and ordered
                and (new.write or (not old.write and old.agent == new.agent))
                and _within(old.box, new.box)
            )
            if not superseded:
                kept.append(old)
        kept.append(new)
        self._live = kept
        return conflict

    def _touch(self, a: RegionAccess, b: RegionAccess) -> bool:
        if not _overlap(a.box, b.box):
            return False
        if a.cells is None and b.cells is None:
            return True
        return bool(np.isin(self._cells(a), self._cells(b)).any())

    def _cells(self, access: RegionAccess) -> Any:
        if access.cells is not None:
            return access.cells
        grid = np.ix_(*(np.arange(a, b) for a, b in access.box))
        return np.ravel_multi_index(tuple(np.broadcast_arrays(*grid)), self.shape).ravel()
