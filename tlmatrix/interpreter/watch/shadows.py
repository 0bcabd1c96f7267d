"""Shadow memory of sanitized programs: which elements are written, and by which access last.

A block's own buffers have a `LocalShadow`; global buffers a `GlobalShadow`, which compares accesses
with those of other blocks.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.runtime.elements import block_of, element_of
from tlmatrix.interpreter.runtime.memory import clip, load_block, store_block

if TYPE_CHECKING:
    from tlmatrix.interpreter.runtime.codecs import Array
    from tlmatrix.interpreter.runtime.elements import Place
    from tlmatrix.interpreter.runtime.masks import Dim
    from tlmatrix.interpreter.sync.accesses import View

    from .monitor import Findings, Monitor
    from .order import BlockOrder
    from .packed import Boundaries, Packed

NEVER_WRITTEN = "{buffer} is read, never written"


class Shadow:
    """The shadow of a buffer, with the methods that generated source calls beside accesses.

    `read`, `write` and `atomic` take the number of a site, and the elements: None for none.

    Attributes:
        known: which elements have been written; None if no sanitizer asks.
        name: the user's name of the buffer.
        shape: its shape.
    """

    __slots__ = ("_findings", "known", "name", "shape")
    known: Array | None

    def __init__(self, findings: Findings, name: str, shape: tuple[int, ...]) -> None:
        self._findings = findings
        self.name = name
        self.shape = shape

    def _mark(self, place: Place) -> None:
        """Elements are written."""
        if self.known is None:
            return
        memory, mask = place
        if mask is None:
            self.known[memory] = True
        else:
            self.known[memory] |= mask

    def _check_known(self, site: int, place: Place, message: str = NEVER_WRITTEN) -> None:
        """Report elements that have never been written."""
        memory, mask = place
        assert self.known is not None
        unknown = ~np.asarray(self.known[memory])
        if mask is not None:
            unknown = unknown & mask
        if np.count_nonzero(unknown):
            self._findings.report("uninitialised", site, element_of(place, unknown), message)

    def _known_tile(self, dims: Sequence[Dim], target_dims: Sequence[Dim]) -> Array:
        """Which elements of a block are written, in the extents of the block it is copied to."""
        assert self.known is not None
        known = load_block(self.known, None, dims, True, self.name, guard=True)
        return np.asarray(known).reshape([d[1] for d in target_dims if isinstance(d, tuple)])


class LocalShadow(Shadow):
    """Which elements of a block's buffer have been written.

    Attributes:
        full: whether all have been.
    """

    __slots__ = ("_dirty", "_viewed", "full")
    known: Array
    full: bool

    def __init__(self, findings: Findings, name: str, shape: tuple[int, ...]) -> None:
        super().__init__(findings, name, shape)
        self.known = np.zeros(shape, bool)
        self._dirty = False
        self._viewed = False
        self.full = False

    def clear(self) -> None:
        """A new block: nothing is written."""
        self.full = False
        if self._dirty:
            self.known.fill(False)
            self._dirty = self._viewed

    def reshaped(self, shape: tuple[int, ...]) -> LocalShadow:
        """The shadow of a view of the same memory."""
        self._dirty = self._viewed = True
        return _View(self, shape)

    def write(self, site: int, place: Place | None) -> None:
        """Elements are stored."""
        del site
        if place is not None:
            self._dirty = True
            self._mark(place)

    def read(self, site: int, place: Place | None) -> None:
        """Elements are read."""
        if place is not None and not self.full:
            self._check_known(site, place)

    def atomic(self, site: int, place: Place | None) -> None:
        """Elements are updated atomically."""
        self.read(site, place)
        self.write(site, place)

    def one(self, site: int, index: tuple[int, ...], value: Any) -> Any:
        """A single element is read: `value`."""
        if not self.full and not self.known[index]:
            self._findings.report("uninitialised", site, index, NEVER_WRITTEN)
        return value

    def copied(
        self,
        site: int,
        dims: Sequence[Dim],
        target: Shadow | None,
        target_dims: Sequence[Dim],
        target_shape: tuple[int, ...],
    ) -> None:
        """A tile is copied: what is unwritten here is unwritten there; outputs must be written."""
        if self.full:
            if isinstance(target, LocalShadow):
                target.write(site, block_of(target_dims, None, target.shape))
            return
        known = self._known_tile(dims, target_dims)
        if isinstance(target, LocalShadow):
            target.receive(target_dims, known)
            return
        some, _, tile, _ = clip(target_dims, target_shape)
        if some and not known[tile].all():
            self.read(site, block_of(dims, None, self.shape))

    def receive(self, dims: Sequence[Dim], known: Array) -> None:
        """A block is overwritten by one of which `known` elements are written."""
        store_block(self.known, None, dims, known, None, self.name, guard=True)
        self._dirty = True
        self.full = bool(self.known.all())


class _View(LocalShadow):
    """A view of another shadow's memory: writing all of it fills this view alone."""

    __slots__ = ("_base",)

    def __init__(self, base: LocalShadow, shape: tuple[int, ...]) -> None:
        self._base = base
        super().__init__(base._findings, base.name, shape)  # noqa: SLF001  # of its own class
        self.known = base.known.reshape(shape)

    @property
    def full(self) -> bool:
        """Whether all elements have been written."""
        return self._base.full or bool(self.known.all())

    @full.setter
    def full(self, value: bool) -> None:
        if value:
            self.known.fill(True)


# Global memory ------------------------------------------------------------------------------


_RACES = {
    "write": {
        "write": "{buffer} is written by two blocks",
        "atomic": "{buffer} is written, and updated atomically by another block",
        "read": "{buffer} is written, and read by another block",
    },
    "atomic": {
        "write": "{buffer} is updated atomically, and written plainly by another block",
        "read": "{buffer} is updated atomically, and read by another block",
    },
    "atomic of a flag": {
        "write": "{buffer} is updated atomically, and written plainly by another block",
    },
    "read": {
        "write": "{buffer} is read, and written by another block",
        "atomic": "{buffer} is read, and updated atomically by another block",
    },
    "read of a flag": {
        "write": "{buffer} is a flag, and written plainly by another block",
    },
}
"""By an access what earlier accesses of other blocks race with it, and what a report says."""


class LastAccesses:
    """Of each element the last accesses of one kind, as `BlockOrder.code`; 0 if there is none.

    With those of two blocks a block's own access never hides that of another block. A plain write
    that races with an earlier one is reported then, so that the last one is enough.

    Attributes:
        kept: the last access, and if it is kept the last by another block of the same grid.
    """

    __slots__ = ("_order", "kept")

    def __init__(self, order: BlockOrder, *kept: Array) -> None:
        self._order = order
        self.kept = kept

    def reshape(self, shape: tuple[int, ...]) -> LastAccesses:
        """The same memory in another shape."""
        return LastAccesses(self._order, *(codes.reshape(shape) for codes in self.kept))

    def add(self, place: Place, code: int) -> None:
        """Add an access of the current block."""
        memory, mask = place
        last, *others = self.kept
        for other in others:
            before = last[memory]
            if np.count_nonzero(before):
                moved = self._order.elsewhere(before)
                if mask is not None:
                    moved = moved & mask
                if np.count_nonzero(moved):
                    other[memory] = np.where(moved, before, other[memory])
        if mask is None or not mask.ndim:
            last[memory] = code
        else:
            np.copyto(last[memory], code, where=mask)


class GlobalShadow(Shadow):
    """Writers and readers of the elements of a global buffer, and the sequences of its rows.

    Attributes:
        fresh: whether reads must look for uninitialized elements.
        quiet: whether reads need no look.
        still: whether writes and atomics need no look.
    """

    __slots__ = (
        "_boundaries", "_full", "_last", "_monitor", "_noted", "_order", "_packed",
        "_packed_alone", "_races", "_ranks", "fresh", "quiet", "still",
    )  # fmt: skip

    def __init__(
        self,
        monitor: Monitor,
        name: str,
        shape: tuple[int, ...],
        *,
        blank: Array | None,
        packed: Packed | None = None,
        boundaries: Boundaries | None = None,
        ranks: View | None = None,
    ) -> None:
        super().__init__(monitor.findings, name, shape)
        on, usage = monitor.sanitizers, monitor.usage.get(name, frozenset())
        races = "races" in on and bool({"write", "atomic"} & usage)
        reads_race = races and "read" in usage
        looks_for_blank = blank is not None and bool(on & {"unwritten", "uninitialised"})
        needs_writers = (
            (races and bool({"write", "read"} & usage))
            or looks_for_blank
            or ("atomics" in on and "atomic" in usage)
            or ("write" in usage and bool(on & {"unwritten", "nonfinite"}))
        )
        self._full = False
        self._monitor = monitor
        self._order = monitor.order
        self._packed = packed
        self._boundaries = boundaries
        self._noted = packed is not None or ranks is not None
        # Accesses of the same memory by other streams and ranks, if they are simulated.
        self._ranks = ranks
        self.known = ~blank if looks_for_blank and blank is not None else None
        self.fresh = looks_for_blank and "uninitialised" in on
        needed = {
            "write": needs_writers,
            "atomic": needs_writers and "atomic" in usage,
            "read": reads_race,
        }
        self._last: dict[str, LastAccesses] = {}
        for kind in (kind for kind, is_needed in needed.items() if is_needed):
            planes = 1 if kind == "write" else 2
            kept = (np.zeros(shape, np.int32) for _ in range(planes))
            self._last[kind] = LastAccesses(self._order, *kept)
        self._races = self._compared()
        noted = ranks is not None or boundaries is not None
        flag = "ordered" in usage
        # Whether a read can only show which sequence its rows belong to.
        self._packed_alone = packed is not None and not (reads_race or flag or self.fresh or noted)
        self.quiet = not (
            packed is not None or reads_race or ("races" in on and flag) or self.fresh or noted
        )
        self.still = not (packed is not None or needs_writers or races or ranks is not None)

    def _compared(self) -> dict[str, list[tuple[LastAccesses, str]]]:
        """By an access the earlier ones that may race with it, and what a report says."""
        on = "races" in self._findings.sanitizers
        return {
            access: [(self._last[k], text) for k, text in kinds.items() if on and k in self._last]
            for access, kinds in _RACES.items()
        }

    @property
    def stored(self) -> Array | None:
        """Which elements the kernel has stored to; None if no sanitizer asks."""
        written = [
            self._last[kind].kept[0] != 0 for kind in ("write", "atomic") if kind in self._last
        ]
        return np.logical_or.reduce(written) if written else None

    @property
    def blank(self) -> Array | None:
        """Which elements have never been written; None if all have, or no sanitizer asks."""
        written = self.stored if self.known is None else self.known
        return None if self._full or written is None or bool(written.all()) else ~written

    @property
    def full(self) -> bool:
        """Whether all elements count as written, as after a call that got their address."""
        return self._full

    @full.setter
    def full(self, value: bool) -> None:
        if value and not self._full and self.known is not None:
            self.known.fill(True)
        self._full = value

    def reshaped(self, shape: tuple[int, ...]) -> GlobalShadow:
        """The shadow of a view of the same memory; packed rows are not followed into views."""
        found = copy.copy(self)
        found.shape = shape
        found._noted = self._ranks is not None  # noqa: SLF001
        found._packed_alone = False  # noqa: SLF001
        found._packed = found._boundaries = None  # noqa: SLF001  # of its own class
        found.known = None if self.known is None else self.known.reshape(shape)
        found._last = {kind: last.reshape(shape) for kind, last in self._last.items()}  # noqa: SLF001
        found._races = found._compared()  # noqa: SLF001
        found._ranks = None if self._ranks is None else self._ranks.reshaped(shape)  # noqa: SLF001
        return found

    # -- as generated source calls it

    def skips(self, dims: Sequence[Dim]) -> bool:
        """Whether it is quickly seen that reading a block is no reason for a report."""
        packed = self._packed
        if not self._packed_alone or packed is None:
            return False
        return packed.only_reads_own(dims, self.shape[packed.axis])

    def one(self, site: int, index: tuple[int, ...], value: Any) -> Any:
        """A single element inside is read: `value`."""
        if not self.quiet:
            self.read(site, (index, None))
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
        known = self._known_tile(dims, target_dims)
        self.read(site, block_of(dims, None, self.shape), copied=True)
        target.receive(target_dims, known)

    # -- what accesses show

    def _note(self, site: int, place: Place, action: str) -> None:
        """Sequences, and other ranks, see an access."""
        packed = self._packed
        if packed is not None:
            (packed.read if action == "read" else packed.written)(site, place)
        if self._ranks is not None:
            self._monitor.note_for_ranks(self._ranks, site, place, self.name, action)

    def write(self, site: int, place: Place | None) -> None:
        """Elements are stored."""
        if place is None:
            return
        if self._noted:
            self._note(site, place, "write")
        self._mark(place)
        if "write" in self._last:
            self._race("write", site, place)
            self._last["write"].add(place, self._order.code(site))

    def atomic(self, site: int, place: Place | None) -> None:
        """Elements are updated atomically."""
        if place is None:
            return
        if self._noted:
            self._note(site, place, "atomic")
        code = self._order.code(site)  # in the epoch that it ends, if it releases
        self._monitor.flag(site, self.name, place, self.shape)
        if "atomic" not in self._last:
            return
        if self.fresh:
            self._check_known(site, place, "{buffer} is updated atomically, never written")
        self._mark(place)
        self._race("atomic of a flag" if self._monitor.is_flag(site) else "atomic", site, place)
        if self._monitor.rounds(site):
            message = "two blocks add to {buffer}, in any order: equal calls may round differently"
            self._against(self._last["atomic"], site, place, message, "atomics")
        self._last["atomic"].add(place, code)

    def read(self, site: int, place: Place | None, *, copied: bool = False) -> None:
        """Elements are read; `copied` if they need not be written."""
        if place is None:
            return
        if self._noted:
            self._note(site, place, "read")
        if self._boundaries is not None:
            self._boundaries.note(place[0][0])
        if self._monitor.is_flag(site):
            self._monitor.flag(site, self.name, place, self.shape)
            self._race("read of a flag", site, place)
            return
        if self.fresh and not copied:
            self._check_known(site, place)
        if "read" in self._last:
            self._race("read", site, place)
            self._last["read"].add(place, self._order.code(site))

    def _race(self, access: str, site: int, place: Place) -> None:
        """Report accesses of other blocks that race with one."""
        for accesses, message in self._races[access]:
            self._against(accesses, site, place, message, "races")

    def _against(
        self, accesses: LastAccesses, site: int, place: Place, message: str, sanitizer: str
    ) -> None:
        """Report accesses of a kind by other blocks that nothing orders before this one."""
        for codes in accesses.kept:
            if self._conflict(site, place, codes[place[0]], message, sanitizer):
                return

    def _conflict(self, site: int, place: Place, codes: Any, message: str, sanitizer: str) -> bool:
        """Report codes of unordered accesses of other blocks; whether there are any."""
        if not np.count_nonzero(codes):
            return False
        found = self._order.concurrent(codes)
        if place[1] is not None:
            found = found & place[1]
        if not np.count_nonzero(found):
            return False
        other = int(np.broadcast_to(codes, np.shape(found))[found].flat[0])
        self._findings.report(sanitizer, site, element_of(place, found), message, other)
        return True
