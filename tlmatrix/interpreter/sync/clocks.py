"""Vector clocks, and the accesses of a block's memory that they order or leave unordered.

An agent is a role (an interval of threads) or a queue of asynchronous work. A clock says how
much of every agent's past is known; an access is ordered before another if the other's clock
knows of it. Two accesses that touch one element, one of them a write, neither ordered before the
other, are a race, whatever values they happened to see (Lamport 1978; FastTrack, Flanagan and
Freund 2009).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Access",
    "Cells",
    "Clock",
    "History",
    "box_of",
    "cells_of",
    "fenced",
    "join",
    "row_cells",
    "spell",
]

Clock = dict[int, int]
Box = tuple[tuple[int, int], ...]


def fenced(agent: int) -> int:
    """The key by which a clock says how much of an agent's past a fence has been put after."""
    return ~agent


def join(into: Clock, other: Clock) -> None:
    """Learn all that `other` knows."""
    for agent, time in other.items():
        if into.get(agent, 0) < time:
            into[agent] = time


@dataclass(frozen=True)
class Access:
    """One access to a buffer.

    Attributes:
        agent: who made it.
        time: the agent's own time; a clock that knows it knows the access.
        write: whether it writes.
        box: per dimension the first element and the one past the last.
        cells: flat indices of the elements within the box, where it is not all of them.
        line: the line of the generated source.
        what: who made it, in words.
        ordinary: whether it is a store to shared memory that the asynchronous proxy sees only
            after a fence.
    """

    agent: int
    time: int
    write: bool
    box: Box
    cells: Any
    line: int
    what: str
    ordinary: bool = False


def box_of(dims: Sequence[Any], shape: Sequence[int]) -> Box:
    """The box of a block's dims (an index, or start, extent and step), clipped to the buffer."""
    box = []
    for dim, n in zip(dims, shape, strict=True):
        if isinstance(dim, tuple):
            start, extent, step = dim
            stop = start + (extent - 1) * step + 1 if extent > 0 else start
        else:
            start, stop = int(dim), int(dim) + 1
        box.append((max(start, 0), min(stop, n)))
    return tuple(box)


def cells_of(index: Sequence[Any], mask: Any, shape: Sequence[int]) -> Any:
    """Flat indices of the elements that the active lanes of a gather or scatter touch."""
    lanes = np.broadcast_arrays(*index, *(() if mask is None else (mask,)))
    where = lanes[: len(index)]
    keep = np.ones(where[0].shape, bool) if mask is None else lanes[-1].astype(bool)
    for i, n in zip(where, shape, strict=True):
        keep = keep & (i >= 0) & (i < n)
    return np.unique(np.ravel_multi_index(tuple(i[keep] for i in where), tuple(shape)))


def row_cells(
    index: Sequence[Any], count: int, mask: Any, threads: int, shape: Sequence[int]
) -> Cells:
    """Elements of rows of `count` that begin at an index for each of `threads` lanes."""
    lanes = [np.broadcast_to(np.asarray(i), (threads,))[:, None] for i in index]
    lanes[-1] = lanes[-1] + np.arange(count)
    keep = None if mask is None else np.broadcast_to(mask, (threads,))[:, None]
    return Cells(cells_of(lanes, keep, shape))


@dataclass(frozen=True)
class Cells:
    """Flat indices of elements that are no box."""

    flat: Any


def _box_of_cells(cells: Any, shape: Sequence[int]) -> Box:
    if len(cells) == 0:
        return tuple((0, 0) for _ in shape)
    return tuple((int(i.min()), int(i.max()) + 1) for i in np.unravel_index(cells, tuple(shape)))


def spell(box: Box) -> str:
    """A box as a person writes it."""
    return ", ".join(str(a) if b == a + 1 else f"{a}:{b}" for a, b in box)


def _common(a: Box, b: Box) -> bool:
    return all(x[0] < y[1] and y[0] < x[1] for x, y in zip(a, b, strict=True))


def _within(a: Box, b: Box) -> bool:
    return all(y[0] <= x[0] and x[1] <= y[1] for x, y in zip(a, b, strict=True))


class History:
    """The accesses to one buffer that a later one may still conflict with."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.name = name
        self.shape = shape
        self.live: list[Access] = []

    def expand(self, box: Box) -> Any:
        """Flat indices of a box."""
        grid = np.ix_(*(np.arange(a, b) for a, b in box))
        return np.ravel_multi_index(tuple(np.broadcast_arrays(*grid)), self.shape).ravel()

    def add(
        self,
        clock: Clock,
        agent: int,
        time: int,
        *,
        write: bool,
        box: Box | None,
        cells: Any,
        line: int,
        what: str,
        ordinary: bool = False,
        asynchronous: bool = False,
    ) -> tuple[Access, bool] | None:
        """Note an access made by someone who knows `clock`.

        Returns:
            An earlier access that it conflicts with, and whether that is ordered before it but
            for the fence between the proxies; None if there is none.
        """
        if box is None:
            box = _box_of_cells(cells, self.shape)
        if any(a >= b for a, b in box):
            return None
        new = Access(agent, time, write, box, cells, line, what, ordinary)
        kept = []
        conflict: tuple[Access, bool] | None = None
        for old in self.live:
            known = clock.get(old.agent, 0) >= old.time
            unfenced = (
                known
                and asynchronous
                and not write
                and old.ordinary
                and clock.get(fenced(old.agent), 0) < old.time
            )
            if (
                (((old.write or write) and not known) or unfenced)
                and (conflict is None or (conflict[1] and not known))
                and self._touch(old, new)
            ):
                conflict = (old, known)
            superseded = (
                cells is None
                and known
                and (write or not old.write)
                and (write or old.agent == agent)
                and _within(old.box, box)
            )
            if not superseded:
                kept.append(old)
        kept.append(new)
        self.live = kept
        return conflict

    def _touch(self, a: Access, b: Access) -> bool:
        if not _common(a.box, b.box):
            return False
        if a.cells is None and b.cells is None:
            return True
        left = a.cells if a.cells is not None else self.expand(a.box)
        right = b.cells if b.cells is not None else self.expand(b.box)
        return bool(np.isin(left, right).any())
