"""Dynamic backward slice of an element: the writes of one block that lead to it.

The rule of each write says on which elements a written one depends: in a parallel loop on those
that the iteration read under its mask, in a product on a row and a column, and so on. Factors of a
product that meet an exact zero are left out: they add nothing, unless they are NaN or infinite.

The slice follows values. Integers that lead to a float are addresses, and are kept apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tlmatrix.interpreter.ops import TABLES
from tlmatrix.interpreter.runtime.elements import IndexArrays, Tile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tlmatrix.interpreter.program import Site
    from tlmatrix.interpreter.runtime.codecs import Array
    from tlmatrix.interpreter.runtime.elements import Event


@dataclass(frozen=True)
class Link:
    """A write that leads to the element.

    Attributes:
        event: the write.
        elements: those of the elements it wrote that lead there.
        reads: for each read that these depend on its place and the elements.
    """

    event: Event
    elements: Array
    reads: tuple[tuple[int, Array], ...]


@dataclass(frozen=True)
class Slice:
    """All that leads to an element in one block.

    Attributes:
        links: in the order in which they ran.
        addresses: integers read on the way: place and elements.
        missing: memory of the block that was read before anything wrote it, with the elements.
    """

    links: tuple[Link, ...]
    addresses: tuple[tuple[int, Array], ...]
    missing: tuple[tuple[str, Array], ...]


class _Needed:
    """Which elements of each memory are still to be explained."""

    def __init__(self) -> None:
        self._marks: dict[str, Array] = {}

    def add(self, memory: str, size: int, flat: Array) -> None:
        if memory not in self._marks:
            self._marks[memory] = np.zeros(max(size, 1), bool)
        self._marks[memory][flat] = True

    def among(self, memory: str, flat: Array) -> Array | None:
        """Which of `flat` are needed; None where no element of the memory is."""
        marks = self._marks.get(memory)
        return None if marks is None else marks[flat]

    def settle(self, memory: str, flat: Array) -> None:
        self._marks[memory][flat] = False

    def left(self) -> Iterable[tuple[str, Array]]:
        for memory, marks in self._marks.items():
            if marks.any():
                yield memory, np.flatnonzero(marks)


def sliced(
    events: Sequence[Event], sites: Sequence[Site], memory: str, size: int, element: int
) -> Slice:
    """The writes among `events` that lead to an element of a memory of `size` elements."""
    needed = _Needed()
    needed.add(memory, size, np.array([element]))
    links: list[Link] = []
    addresses: dict[tuple[str, bytes], tuple[int, Array]] = {}
    outside = {s.memory for s in sites if s.is_global}
    registers = _Needed()

    def address(place: int, flat: Array, shape: Sequence[int]) -> None:
        memory = sites[place].memory
        if memory in outside:
            addresses.setdefault((memory, flat.tobytes()), (place, flat))
        else:
            registers.add(memory, int(np.prod(shape)), flat)

    for event in reversed(events):
        site = sites[event.site]
        if (found := _hit(event, site.memory, registers)) is not None:
            registers.settle(site.memory, found[0])
            for (place, access), flat in zip(event.reads, found[1], strict=True):
                if flat.size:
                    address(place, flat, access.shape)
            continue
        found = _hit(event, site.memory, needed)
        if found is None:
            continue
        hit, reads = found
        kept: list[tuple[int, Array]] = []
        if accumulates(event, site):
            kept.append((event.site, hit))
        else:
            needed.settle(site.memory, hit)
        exact = site.dtype.startswith(("int", "uint", "bool"))
        for (place, access), flat in zip(event.reads, reads, strict=True):
            if not flat.size:
                continue
            source = sites[place]
            if not exact and source.dtype.startswith(("int", "uint", "bool")):
                address(place, flat, access.shape)
                continue
            needed.add(source.memory, int(np.prod(access.shape)), flat)
            kept.append((place, flat))
        links.append(Link(event, hit, tuple(kept)))
    missing = tuple((name, flat) for name, flat in needed.left() if name not in outside)
    return Slice(tuple(reversed(links)), tuple(addresses.values()), missing)


def accumulates(event: Event, site: Site) -> bool:
    """Whether a write adds to what its elements held."""
    clear = {"gemm": 2, "reduce": 1}.get(event.rule)
    return site.action == "atomic" or (clear is not None and not event.extra[clear])


def _hit(event: Event, memory: str, needed: _Needed) -> tuple[Array, list[Array]] | None:
    """The needed elements that a write wrote, and for each of its reads what they depend on."""
    if isinstance(event.write, IndexArrays):
        return _hit_lanes(event, event.write, memory, needed)
    elements = event.write.elements()
    wanted = needed.among(memory, elements)
    if wanted is None or not wanted.any():
        return None
    hit: Array = np.unique(elements[wanted])
    reads = []
    for k, (_, access) in enumerate(event.reads):
        if isinstance(access, IndexArrays):
            reads.append(access.elements())
        else:
            reads.append(np.unique(_RULES[event.rule](event, event.write, hit, access, k)))
    return hit, reads


def _hit_lanes(
    event: Event, write: IndexArrays, memory: str, needed: _Needed
) -> tuple[Array, list[Array]] | None:
    accesses = [access for _, access in event.reads]
    parts = [access.extent for access in accesses if isinstance(access, IndexArrays)]
    extent = np.broadcast_shapes(write.extent, *parts)
    flat, there = write.numbered(extent)
    wanted = needed.among(memory, np.where(there, flat, 0))
    if wanted is None:
        return None
    lanes = wanted & there
    if not lanes.any():
        return None
    reads = []
    for access in accesses:
        assert isinstance(access, IndexArrays)
        source, on = access.numbered(extent)
        reads.append(np.unique(source[lanes & on]))
    return np.unique(flat[lanes]), reads


# Rules of buffers that have a copy for each iteration; those of tile operations are in `ops`.


def _spread(event: Event, write: Tile, hit: Array, read: Tile, number: int) -> Array:
    """Copies of one buffer, a lane each: their leading dimensions are the buffer's."""
    del event, number
    places, _ = write.inner(hit)
    return read.outer(places[: len(read.shape)])


def _collapsed(event: Event, write: Tile, hit: Array, read: Tile, number: int) -> Array:
    del event, number
    places, _ = write.inner(hit)
    known = len(places)
    if not known:
        return read.elements()
    rest = np.meshgrid(*map(np.arange, read.extent[known:]), indexing="ij", sparse=True)
    lead = [p.reshape(-1, *[1] * len(rest)) for p in places]
    return read.outer([*lead, *(r[None] for r in rest)])


_RULES: dict[str, Callable[[Event, Tile, Array, Tile, int], Array]] = {
    **TABLES.slices,
    "spread": _spread,
    "collapse": _collapsed,
}
