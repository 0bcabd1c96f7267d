"""Shadow memory of global buffers: which accesses touched an element last."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from .indices import block_of, element_of
from .shadows import LocalShadow, Shadow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.interpreter.sync.accesses import View

    from .codecs import Array
    from .indices import Place
    from .masks import Dim
    from .monitor import Monitor
    from .order import BlockOrder
    from .packed import Boundaries, Packed

__all__ = ["GlobalShadow", "LastAccesses"]


def _put(codes: Array, place: Place, code: int) -> None:
    """Set the code of the accessed elements."""
    memory, mask = place
    if mask is None or not mask.ndim:
        codes[memory] = code
    else:
        np.copyto(codes[memory], code, where=mask)


class LastAccesses:
    """Of each element the last accesses of one kind, by two blocks, as `BlockOrder.code`.

    With two of them a block's own access never hides that of another block.

    Attributes:
        last: the last access; 0 if there is none.
        other: the last access by another block of the same grid; 0 if there is none.
    """

    __slots__ = ("_order", "last", "other")

    def __init__(self, order: BlockOrder, last: Array, other: Array) -> None:
        self._order = order
        self.last = last
        self.other = other

    def reshape(self, shape: tuple[int, ...]) -> LastAccesses:
        """The same memory in another shape."""
        return LastAccesses(self._order, self.last.reshape(shape), self.other.reshape(shape))

    def add(self, place: Place, code: int) -> None:
        """Add an access of the current block."""
        memory, mask = place
        before = self.last[memory]
        if np.count_nonzero(before):
            others = self._order.elsewhere(before)
            if mask is not None:
                others = others & mask
            if np.count_nonzero(others):
                self.other[memory] = np.where(others, before, self.other[memory])
        _put(self.last, place, code)


class GlobalShadow(Shadow):
    """Writers and readers of the elements of a global buffer, and the sequences of its rows.

    Attributes:
        fresh: whether reads must look for uninitialized elements.
        quiet: whether reads need no look.
        still: whether writes and atomics need no look.
    """

    __slots__ = (
        "_atomics", "_boundaries", "_full", "_monitor", "_noted", "_order", "_packed",
        "_packed_alone", "_ranks", "_reads", "_writes", "fresh", "quiet", "still",
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
        writes = bool({"write", "atomic"} & usage)
        races = "races" in on and writes
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
        # A plain write that races with an earlier one is reported then: the last one is enough.
        self._writes = np.zeros(shape, np.int32) if needs_writers else None
        self._atomics = self._last_two(needs_writers and "atomic" in usage)
        self._reads = self._last_two(reads_race)
        noted = ranks is not None or boundaries is not None
        flag = "ordered" in usage
        # Whether a read can only show which sequence its rows belong to.
        self._packed_alone = packed is not None and not (reads_race or flag or self.fresh or noted)
        self.quiet = not (
            packed is not None or reads_race or ("races" in on and flag) or self.fresh or noted
        )
        self.still = not (packed is not None or needs_writers or races or ranks is not None)

    def _last_two(self, needed: bool) -> LastAccesses | None:
        shape = self.shape
        if not needed:
            return None
        return LastAccesses(self._order, np.zeros(shape, np.int32), np.zeros(shape, np.int32))

    @property
    def stored(self) -> Array | None:
        """Which elements the kernel has stored to; None if no sanitizer asks."""
        if self._writes is None:
            return None
        stored: Array = self._writes != 0
        return stored if self._atomics is None else stored | (self._atomics.last != 0)

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
        found._packed = found._boundaries = None  # noqa: SLF001  # of its own class
        found._packed_alone = False  # noqa: SLF001
        for name in ("known", "_writes", "_atomics", "_reads"):
            codes = getattr(self, name)
            setattr(found, name, None if codes is None else codes.reshape(shape))
        found._ranks = None if self._ranks is None else self._ranks.reshaped(shape)  # noqa: SLF001
        return found

    # -- as generated source calls it

    def read(self, site: int, dims: Sequence[Dim], mask: Any) -> None:
        """A block is read."""
        packed = self._packed
        if (
            self._packed_alone
            and mask is None
            and packed is not None
            and packed.only_reads_own(dims, self.shape[packed.axis])
        ):
            return
        place = block_of(dims, mask, self.shape)
        if place is not None:
            self._read(site, place)

    def one(self, site: int, index: tuple[int, ...], value: Any) -> Any:
        """A single element inside is read: `value`."""
        if not self.quiet:
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
        known = self._known_tile(dims, target_dims)
        place = block_of(dims, None, self.shape)
        if place is not None:
            self._read(site, place, copied=True)
        target.receive(target_dims, known)

    # -- what accesses show

    def _note(self, site: int, place: Place, action: str) -> None:
        """Sequences, and other ranks, see an access."""
        packed = self._packed
        if packed is not None:
            (packed.read if action == "read" else packed.written)(site, place)
        if self._ranks is not None:
            self._monitor.note_for_ranks(self._ranks, site, place, self.name, action)

    def _write(self, site: int, place: Place) -> None:
        if self._noted:
            self._note(site, place, "write")
        self._mark(place)
        if self._writes is None:
            return
        self._against_writes(site, place, "{buffer} is written by two blocks")
        message = "{buffer} is written, and updated atomically by another block"
        self._against(self._atomics, site, place, message)
        self._against(self._reads, site, place, "{buffer} is written, and read by another block")
        _put(self._writes, place, self._order.code(site))

    def _atomic(self, site: int, place: Place) -> None:
        if self._noted:
            self._note(site, place, "atomic")
        self._monitor.flag(site, self.name, place, self.shape)
        if self._atomics is None:
            return
        if self.fresh:
            self._check_known(site, place, "{buffer} is updated atomically, never written")
        self._mark(place)
        message = "{buffer} is updated atomically, and written plainly by another block"
        self._against_writes(site, place, message)
        if not self._monitor.is_flag(site):
            message = "{buffer} is updated atomically, and read by another block"
            self._against(self._reads, site, place, message)
        if self._monitor.rounds(site):
            message = "two blocks add to {buffer}, in any order: equal calls may round differently"
            self._against(self._atomics, site, place, message, "atomics")
        self._atomics.add(place, self._order.code(site))

    def _read(self, site: int, place: Place, *, copied: bool = False) -> None:
        if self._noted:
            self._note(site, place, "read")
        if self._boundaries is not None:
            self._boundaries.note(place[0][0])
        if self._monitor.is_flag(site):
            self._monitor.flag(site, self.name, place, self.shape)
            message = "{buffer} is a flag, and written plainly by another block"
            self._against_writes(site, place, message)
            return
        if self.fresh and not copied:
            self._check_known(site, place)
        if self._reads is None:
            return
        self._against_writes(site, place, "{buffer} is read, and written by another block")
        message = "{buffer} is read, and updated atomically by another block"
        self._against(self._atomics, site, place, message)
        self._reads.add(place, self._order.code(site))

    def _against_writes(self, site: int, place: Place, message: str) -> None:
        """Report plain writes of other blocks that nothing orders before an access."""
        if self._writes is not None and "races" in self._findings.sanitizers:
            self._conflict(site, place, self._writes[place[0]], message, "races")

    def _against(
        self,
        accesses: LastAccesses | None,
        site: int,
        place: Place,
        message: str,
        sanitizer: str = "races",
    ) -> None:
        """Report accesses of other blocks that nothing orders before this one."""
        if accesses is None or sanitizer not in self._findings.sanitizers:
            return
        memory = place[0]
        if not self._conflict(site, place, accesses.last[memory], message, sanitizer):
            self._conflict(site, place, accesses.other[memory], message, sanitizer)

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
