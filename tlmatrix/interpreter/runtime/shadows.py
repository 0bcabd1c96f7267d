"""Shadows of memory: who wrote an element, who read it, whether it was written at all.

Places come as in `memory`: a block's dims with a mask of its own ranges, or one index a lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .masks import Dim, narrowed
from .memory import clip, load_block, store_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.interpreter.sync.accesses import View

    from .codecs import Array
    from .monitor import Monitor
    from .packed import Packed

__all__ = ["GlobalShadow", "LocalShadow", "lanes_of"]

Place = tuple[Any, Any]


def block_of(dims: Sequence[Dim], mask: Any, shape: Sequence[int]) -> Place | None:
    """The part of a block inside: an index into arrays of `shape`, and its mask."""
    dims, _, mask = narrowed(dims, None, mask)
    some, memory, tile, whole = clip(dims, shape)
    if not some:
        return None
    if mask is None:
        return memory, None
    extents = tuple(d[1] for d in dims if isinstance(d, tuple))
    mask = np.broadcast_to(mask, extents)
    if not whole:
        mask = mask[tile]
    return (memory, mask) if np.count_nonzero(mask) else None


def lanes_of(index: tuple[Any, ...], mask: Any, shape: Sequence[int]) -> Place | None:
    """The lanes that are active and inside, as index arrays of rank one."""
    full = np.broadcast_shapes(np.shape(mask), *(np.shape(i) for i in index))
    keep: Any = True if mask is None else np.broadcast_to(mask, full)
    for i, n in zip(index, shape, strict=True):
        keep = keep & (np.asarray(i) >= 0) & (np.asarray(i) < n)
    keep = np.broadcast_to(keep, full)
    found = tuple(np.broadcast_to(i, full)[keep] for i in index)
    return (found, None) if found[0].size else None


def element(place: Place, bad: Any) -> tuple[int, ...]:
    """The first element of a place for which `bad` holds, as an index into the buffer."""
    memory, _ = place
    bad = np.asarray(bad)
    if memory and isinstance(memory[0], np.ndarray):
        lane = int(np.flatnonzero(bad)[0])
        return tuple(int(i[lane]) for i in memory)
    offsets = iter(np.argwhere(bad)[0] if bad.ndim else ())
    return tuple(
        int(m.start + (m.step or 1) * next(offsets)) if isinstance(m, slice) else int(m)
        for m in memory
    )


class LocalShadow:
    """Which elements of a block's buffer have been written."""

    __slots__ = ("_dirty", "_known", "_monitor", "_viewed", "full", "name", "shape")

    def __init__(self, monitor: Monitor, name: str, shape: tuple[int, ...]) -> None:
        self._monitor = monitor
        self.name = name
        self.shape = shape
        self._known = np.zeros(shape, bool)
        self._dirty = False
        self._viewed = False
        self.full = False

    def clear(self) -> None:
        """A new block: nothing is written."""
        self.full = False
        if self._dirty:
            self._known.fill(False)
            self._dirty = self._viewed

    def reshaped(self, shape: tuple[int, ...]) -> LocalShadow:
        """The shadow of a view of the same memory."""
        self._dirty = self._viewed = True
        found = _View(self._monitor, self.name, shape)
        found.base = self
        found._known = self._known.reshape(shape)  # noqa: SLF001  # of its own class
        return found

    def write(self, _site: int, dims: Sequence[Dim], mask: Any) -> None:
        """A block was written."""
        place = block_of(dims, mask, self.shape)
        if place is not None:
            self._mark(place)

    def write_lanes(self, _site: int, index: tuple[Any, ...], mask: Any) -> None:
        """Lanes were written."""
        place = lanes_of(index, mask, self.shape)
        if place is not None:
            self._mark(place)

    def _mark(self, place: Place) -> None:
        memory, mask = place
        self._dirty = True
        if mask is None:
            self._known[memory] = True
        else:
            self._known[memory] |= mask

    def read(self, site: int, dims: Sequence[Dim], mask: Any) -> None:
        """A block is read."""
        if not self.full:
            self._look(site, block_of(dims, mask, self.shape))

    def read_lanes(self, site: int, index: tuple[Any, ...], mask: Any) -> None:
        """Lanes are read."""
        if not self.full:
            self._look(site, lanes_of(index, mask, self.shape))

    def atomic(self, site: int, dims: Sequence[Dim], mask: Any) -> None:
        """A block is read and written."""
        self.read(site, dims, mask)
        self.write(site, dims, mask)

    def atomic_lanes(self, site: int, index: tuple[Any, ...], mask: Any) -> None:
        """Lanes read and write."""
        self.read_lanes(site, index, mask)
        self.write_lanes(site, index, mask)

    def one(self, site: int, index: tuple[int, ...], value: Any) -> Any:
        """A single element is read: `value`."""
        if not self.full and not self._known[index]:
            self._monitor.report("uninitialised", site, index, "{buffer} is read, never written")
        return value

    def _look(self, site: int, place: Place | None) -> None:
        if place is None:
            return
        memory, mask = place
        unknown = ~self._known[memory]
        if mask is not None:
            unknown = unknown & mask
        if np.any(unknown):
            where = element(place, unknown)
            self._monitor.report("uninitialised", site, where, "{buffer} is read, never written")

    def copied(
        self,
        site: int,
        dims: Sequence[Dim],
        target: LocalShadow | GlobalShadow | None,
        target_dims: Sequence[Dim],
        target_shape: tuple[int, ...],
    ) -> None:
        """A tile is copied: what is unwritten here is unwritten there; outputs must be written."""
        if self.full:
            if isinstance(target, LocalShadow):
                target.write(site, target_dims, None)
            return
        known = load_block(self._known, None, dims, True, self.name, guard=True)
        extents = tuple(d[1] for d in target_dims if isinstance(d, tuple))
        known = np.asarray(known).reshape(extents)
        if isinstance(target, LocalShadow):
            target._receive(target_dims, known)  # noqa: SLF001  # of its own class
            return
        some, _, tile, _ = clip(target_dims, target_shape)
        if some and not known[tile].all():
            self.read(site, dims, None)

    def _receive(self, dims: Sequence[Dim], known: Array) -> None:
        store_block(self._known, None, dims, known, None, self.name, guard=True)
        self._dirty = True
        self.full = bool(self._known.all())


class _View(LocalShadow):
    """A view of another shadow's memory: what covers it covers only this view."""

    __slots__ = ("base",)
    base: LocalShadow

    @property
    def full(self) -> bool:
        """Whether all is known."""
        return self.base.full or bool(self._known.all())

    @full.setter
    def full(self, value: bool) -> None:
        if value:
            self._known.fill(True)


class GlobalShadow:
    """Who wrote each element of a global buffer, who read it, and whose rows its rows are.

    An entry is 0 for nobody, else `number * sites + site` of the last access, with blocks
    numbered from 1; negative where several blocks did the same.
    """

    __slots__ = (
        "_abroad", "_known", "_monitor", "_owner", "_packed", "_reader", "_skims", "fresh", "name",
        "quiet", "shape", "still",
    )  # fmt: skip

    def __init__(
        self,
        monitor: Monitor,
        name: str,
        shape: tuple[int, ...],
        *,
        usage: frozenset[str],
        blank: Array | None,
        packed: Packed | None,
        abroad: View | None = None,
    ) -> None:
        on = monitor.sanitizers
        races = "races" in on and "write" in usage | ({"write"} if "atomic" in usage else set())
        written = bool({"write", "atomic"} & usage)
        plain = "write" in usage or "read" in usage
        fresh = blank is not None and bool(on & {"unwritten", "uninitialised"})
        owned = (races and plain) or fresh
        owned = owned or (written and "write" in usage and bool(on & {"unwritten", "nonfinite"}))
        self._monitor = monitor
        self.name = name
        self.shape = shape
        self._packed = packed
        # What other streams and ranks do to the same memory, where they are simulated.
        self._abroad = abroad
        self._known = ~blank if fresh and blank is not None else None
        self.fresh = fresh and "uninitialised" in on
        """Whether reads must look for elements that nobody has written."""
        self._owner = np.zeros(shape, np.int64) if owned else None
        both = races and written and "read" in usage
        self._reader = np.zeros(shape, np.int64) if both else None
        looks = packed is not None
        flag = "races" in on and "ordered" in usage
        self.quiet = not (looks or both or flag or self.fresh or abroad is not None)
        """Whether reads need no look."""
        # Whether all that a read may show is whose rows it reads.
        others = both or "ordered" in usage or self.fresh or abroad is not None
        self._skims = looks and not others
        self.still = not (looks or owned or (races and written) or abroad is not None)
        """Whether writes and atomics need no look."""

    @property
    def owner(self) -> Array | None:
        """Who wrote each element; None where nobody asks."""
        return self._owner

    @property
    def blank(self) -> Array | None:
        """Which elements nobody has written; None where nobody asks."""
        if self._known is not None:
            return ~self._known
        return None if self._owner is None else self._owner == 0

    def reshaped(self, shape: tuple[int, ...]) -> GlobalShadow:
        """The shadow of a view of the same memory; packed rows are not followed into views."""
        found = object.__new__(GlobalShadow)
        for name in ("_monitor", "name", "fresh", "quiet", "still"):
            setattr(found, name, getattr(self, name))
        found._skims = False
        found._known = None if self._known is None else self._known.reshape(shape)
        found.shape = shape
        found._packed = None  # of its own class
        found._abroad = None if self._abroad is None else self._abroad.reshaped(shape)
        found._owner = None if self._owner is None else self._owner.reshape(shape)
        found._reader = None if self._reader is None else self._reader.reshape(shape)
        return found

    # -- as the generated source calls it

    def write(self, site: int, dims: Sequence[Dim], mask: Any) -> None:
        """A block is stored."""
        self._write(site, block_of(dims, mask, self.shape))

    def write_lanes(self, site: int, index: tuple[Any, ...], mask: Any) -> None:
        """Lanes store."""
        self._write(site, lanes_of(index, mask, self.shape))

    def atomic(self, site: int, dims: Sequence[Dim], mask: Any) -> None:
        """A block is updated atomically."""
        self._atomic(site, block_of(dims, mask, self.shape))

    def atomic_lanes(self, site: int, index: tuple[Any, ...], mask: Any) -> None:
        """Lanes do atomics."""
        self._atomic(site, lanes_of(index, mask, self.shape))

    def read(self, site: int, dims: Sequence[Dim], mask: Any) -> None:
        """A block is read."""
        packed = self._packed
        if (
            self._skims
            and mask is None
            and packed is not None
            and packed.only_reads_own(dims, self.shape[packed.axis])
        ):
            return
        self._read(site, block_of(dims, mask, self.shape))

    def read_lanes(self, site: int, index: tuple[Any, ...], mask: Any) -> None:
        """Lanes read."""
        self._read(site, lanes_of(index, mask, self.shape))

    def one(self, site: int, index: tuple[int, ...], value: Any) -> Any:
        """A single element is read: `value`."""
        if not self.quiet and all(0 <= i < n for i, n in zip(index, self.shape, strict=True)):
            self._read(site, (index, None))
        return value

    def copied(
        self,
        site: int,
        dims: Sequence[Dim],
        target: LocalShadow,
        target_dims: Sequence[Dim],
        _shape: tuple[int, ...],
    ) -> None:
        """A tile is copied: what is unwritten here is unwritten there, and not yet read."""
        assert self._known is not None
        known = load_block(self._known, None, dims, True, self.name, guard=True)
        self._read(site, block_of(dims, None, self.shape), copied=True)
        extents = tuple(d[1] for d in target_dims if isinstance(d, tuple))
        target._receive(target_dims, np.asarray(known).reshape(extents))  # noqa: SLF001

    def _note(self, place: Place) -> None:
        """What is written now is known."""
        if self._known is not None:
            memory, mask = place
            if mask is None:
                self._known[memory] = True
            else:
                self._known[memory] |= mask

    # -- what they find

    def _write(self, site: int, place: Place | None) -> None:
        if place is None:
            return
        if self._packed is not None:
            self._packed.written(site, place)
        if self._abroad is not None:
            self._monitor.abroad(self._abroad, site, place, self.name, "write")
        self._note(place)
        if self._owner is None:
            return
        memory, mask = place
        owner = self._owner[memory]
        if np.count_nonzero(owner):
            self._conflict(site, place, owner, "{buffer} is written by two blocks")
        if self._reader is not None:
            self._read_before(site, place)
        code = self._monitor.code(site)
        if mask is None or not np.ndim(owner):
            self._owner[memory] = code
        else:
            np.copyto(owner, code, where=mask)

    def _atomic(self, site: int, place: Place | None) -> None:
        if place is None:
            return
        monitor = self._monitor
        if self._packed is not None:
            self._packed.written(site, place)
        if self._abroad is not None:
            self._monitor.abroad(self._abroad, site, place, self.name, "atomic")
        ordering = monitor.orders(site)
        monitor.flag(site, self.name, place, self.shape)
        if self._owner is None:
            return
        memory, mask = place
        owner = np.asarray(self._owner[memory])
        if self.fresh:
            self._never(site, place, "{buffer} is updated atomically, never written")
        self._note(place)
        found = monitor.atomic_codes(owner)
        plain = np.where(found, 0, owner)
        if np.count_nonzero(plain):
            self._conflict(
                site,
                place,
                plain,
                "{buffer} is updated atomically, and written plainly by another block",
            )
        if self._reader is not None and not ordering:
            self._read_before(site, place)
        code = monitor.code(site)
        others = found & (monitor.block_numbers(owner) != monitor.here)
        new = np.where(others, -code, np.where(found | (owner == 0), code, owner))
        if mask is not None:
            new = np.where(mask, new, owner)
        self._owner[memory] = new

    def _read(self, site: int, place: Place | None, *, copied: bool = False) -> None:
        if place is None:
            return
        monitor = self._monitor
        if self._packed is not None:
            self._packed.read(site, place)
        if self._abroad is not None:
            monitor.abroad(self._abroad, site, place, self.name, "read")
        if monitor.orders(site):
            monitor.flag(site, self.name, place, self.shape)
            if self._owner is not None:
                owner = np.asarray(self._owner[place[0]])
                plain = np.where(monitor.atomic_codes(owner), 0, owner)
                self._conflict(
                    site, place, plain, "{buffer} is a flag, and written plainly by another block"
                )
            return
        memory, mask = place
        if self.fresh and not copied:
            self._never(site, place, "{buffer} is read, never written")
        if self._owner is not None:
            owner = self._owner[memory]
            if self._reader is not None and np.count_nonzero(owner):
                self._conflict(site, place, owner, "{buffer} is read, and written by another block")
        if self._reader is None:
            return
        before = np.asarray(self._reader[memory])
        code = monitor.code(site)
        others = (before != 0) & (monitor.block_numbers(before) != monitor.here)
        new = np.where(others | (before < 0), -code, code)
        if mask is not None:
            new = np.where(mask, new, before)
        self._reader[memory] = new

    def _never(self, site: int, place: Place, message: str) -> None:
        assert self._known is not None
        blank = ~np.asarray(self._known[place[0]])
        if place[1] is not None:
            blank = blank & place[1]
        if np.count_nonzero(blank):
            self._monitor.report("uninitialised", site, element(place, blank), message)

    def _conflict(self, site: int, place: Place, owner: Any, message: str) -> None:
        """Report elements whose owner is another block of this launch."""
        monitor = self._monitor
        if "races" not in monitor.sanitizers:
            return
        owner = np.asarray(owner)
        others = monitor.foreign(owner)
        if place[1] is not None:
            others = others & place[1]
        if np.count_nonzero(others):
            where = element(place, others)
            monitor.report("races", site, where, message, int(owner[others].flat[0]))

    def _read_before(self, site: int, place: Place) -> None:
        assert self._reader is not None
        reader = self._reader[place[0]]
        if np.count_nonzero(reader):
            message = "{buffer} is written, and read by another block"
            self._conflict(site, place, reader, message)
