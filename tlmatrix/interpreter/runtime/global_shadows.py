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
    from .packed import Boundaries, Packed

__all__ = ["GlobalShadow"]


class GlobalShadow(Shadow):
    """Writers and readers of the elements of a global buffer, and the sequences of its rows.

    Per element the code of the last write and of the last read (`BlockOrder.code`): 0 if there is
    none, negative if several blocks did the same.

    Attributes:
        written_by: codes of writes; None if no sanitizer asks.
        fresh: whether reads must look for uninitialized elements.
        quiet: whether reads need no look.
        still: whether writes and atomics need no look.
    """

    __slots__ = (
        "_boundaries", "_monitor", "_noted", "_order", "_packed", "_packed_alone", "_ranks",
        "_read_by", "fresh", "quiet", "still", "written_by",
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
        self._monitor = monitor
        self._order = monitor.order
        self._packed = packed
        self._boundaries = boundaries
        self._noted = packed is not None or ranks is not None
        # Accesses of the same memory by other streams and ranks, if they are simulated.
        self._ranks = ranks
        self.known = ~blank if looks_for_blank and blank is not None else None
        self.fresh = looks_for_blank and "uninitialised" in on
        self.written_by = np.zeros(shape, np.int32) if needs_writers else None
        self._read_by = np.zeros(shape, np.int32) if reads_race else None
        noted = ranks is not None or boundaries is not None
        flag = "ordered" in usage
        # Whether a read can only show which sequence its rows belong to.
        self._packed_alone = packed is not None and not (reads_race or flag or self.fresh or noted)
        self.quiet = not (
            packed is not None or reads_race or ("races" in on and flag) or self.fresh or noted
        )
        self.still = not (packed is not None or needs_writers or races or ranks is not None)

    @property
    def blank(self) -> Array | None:
        """Which elements have never been written; None if all have, or no sanitizer asks."""
        written = self.written_by if self.known is None else self.known
        if written is None or bool(written.all()):
            return None
        blank: Array = written == 0
        return blank

    def reshaped(self, shape: tuple[int, ...]) -> GlobalShadow:
        """The shadow of a view of the same memory; packed rows are not followed into views."""
        found = copy.copy(self)
        found.shape = shape
        found._noted = self._ranks is not None  # noqa: SLF001
        found._packed = found._boundaries = None  # noqa: SLF001  # of its own class
        found._packed_alone = False  # noqa: SLF001
        for name in ("known", "written_by", "_read_by"):
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
        if self.written_by is None:
            return
        memory, mask = place
        before = self.written_by[memory]
        if np.count_nonzero(before):
            self._conflict(site, place, before, "{buffer} is written by two blocks")
        if self._read_by is not None:
            self._conflict_with_reads(site, place)
        code = self._order.code(site)
        if mask is None or not np.ndim(before):
            self.written_by[memory] = code
        else:
            np.copyto(before, code, where=mask)

    def _atomic(self, site: int, place: Place) -> None:
        if self._noted:
            self._note(site, place, "atomic")
        order = self._order
        self._monitor.flag(site, self.name, place, self.shape)
        if self.written_by is None:
            return
        memory, mask = place
        before = np.asarray(self.written_by[memory])
        if self.fresh:
            self._check_known(site, place, "{buffer} is updated atomically, never written")
        self._mark(place)
        atomics = order.atomic(before)
        plain = np.where(atomics, 0, before)
        if np.count_nonzero(plain):
            self._conflict(
                site,
                place,
                plain,
                "{buffer} is updated atomically, and written plainly by another block",
            )
        if self._read_by is not None and not self._monitor.is_flag(site):
            self._conflict_with_reads(site, place)
        code = order.code(site)
        several = atomics & order.elsewhere(before)
        if self._monitor.rounds(site) and several.any():
            self._sum_in_any_order(site, place, before, several)
        new = np.where(several, -code, np.where(atomics | (before == 0), code, before))
        self.written_by[memory] = new if mask is None else np.where(mask, new, before)

    def _sum_in_any_order(self, site: int, place: Place, before: Any, several: Any) -> None:
        """Report additions of floats by blocks that nothing orders: equal calls round apart."""
        found = several & self._order.concurrent(before)
        if place[1] is not None:
            found = found & place[1]
        if found.any():
            other = int(before[found].flat[0])
            message = "two blocks add to {buffer}, in any order: equal calls may round differently"
            self._findings.report("atomics", site, element_of(place, found), message, other)

    def _read(self, site: int, place: Place, *, copied: bool = False) -> None:
        if self._noted:
            self._note(site, place, "read")
        monitor, order = self._monitor, self._order
        if self._boundaries is not None:
            self._boundaries.note(place[0][0])
        if monitor.is_flag(site):
            monitor.flag(site, self.name, place, self.shape)
            if self.written_by is not None:
                before = np.asarray(self.written_by[place[0]])
                plain = np.where(order.atomic(before), 0, before)
                self._conflict(
                    site, place, plain, "{buffer} is a flag, and written plainly by another block"
                )
            return
        memory, mask = place
        if self.fresh and not copied:
            self._check_known(site, place)
        if self._read_by is None:
            return
        if self.written_by is not None:
            before = self.written_by[memory]
            if np.count_nonzero(before):
                self._conflict(
                    site, place, before, "{buffer} is read, and written by another block"
                )
        before = self._read_by[memory]
        new: Any = order.code(site)
        if np.count_nonzero(before):
            several = (before < 0) | ((before != 0) & order.elsewhere(before))
            new = np.where(several, -new, new)
        self._read_by[memory] = new if mask is None else np.where(mask, new, before)

    def _conflict_with_reads(self, site: int, place: Place) -> None:
        assert self._read_by is not None
        message = "{buffer} is written, and read by another block"
        before = self._read_by[place[0]]
        if np.count_nonzero(before):
            self._conflict(site, place, before, message)

    def _conflict(self, site: int, place: Place, before: Any, message: str) -> None:
        """Report earlier accesses of other blocks that nothing orders before this one."""
        if "races" not in self._findings.sanitizers:
            return
        before = np.asarray(before)
        conflicts = self._order.concurrent(before)
        if place[1] is not None:
            conflicts = conflicts & place[1]
        if np.count_nonzero(conflicts):
            where = element_of(place, conflicts)
            self._findings.report("races", site, where, message, int(before[conflicts].flat[0]))
