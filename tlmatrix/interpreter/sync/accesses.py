"""Shadow memory of tensors that several streams or ranks access.

Each element has the number of a set of last writes, and of one of reads since (`races`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tlmatrix.interpreter.reports import caller

from .agents import Agent
from .races import FREE, ZERO, Access, Races

if TYPE_CHECKING:
    from tlmatrix.interpreter.reports import Report

    from .flags import Pointer
    from .world import Rank, World


_expired: Any = torch.UntypedStorage._expired  # noqa: SLF001
"""What `StorageWeakRef.expired` calls by way of two others."""


_SMALL = 1 << 15
"""Units of a tensor that is checked as a whole, rather than tile by tile."""


class _Shadow:
    """The shadow of a storage, in units of the smallest element it was accessed by."""

    def __init__(self, storage: torch.UntypedStorage, unit: int, name: str) -> None:
        self._reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self.base = storage.data_ptr()
        self.size = storage.nbytes()
        self.unit = unit
        self.name = name
        count = -(-self.size // unit)
        self.writes = np.zeros(count, np.int32)
        self.reads = np.zeros(count, np.int32)

    @property
    def alive(self) -> bool:
        """Whether the storage still exists."""
        return not _expired(self._reference.cdata)

    def refine(self, unit: int) -> None:
        """Use smaller units from now on."""
        times = self.unit // unit
        self.writes = np.repeat(self.writes, times)
        self.reads = np.repeat(self.reads, times)
        self.unit = unit


@dataclass
class View:
    """The shadow of a tensor: arrays of its shape, with one axis more if its elements are larger.

    Attributes:
        name: the storage, as text; empty where only the kernel's name of it is known.
        writes: sets of last writes, by number.
        reads: sets of reads since.
        wide: whether an element is several units.
    """

    owner: Accesses
    name: str
    writes: Any
    reads: Any
    wide: bool
    _ordered: set[int] = field(default_factory=set)
    """Accesses of streams that are ordered after all accesses of the tensor."""

    def reshaped(self, shape: tuple[int, ...]) -> View | None:
        """The same memory in another shape; None where that has no view."""
        full = (*shape, self.writes.shape[-1]) if self.wide else shape
        if not self.writes.flags.c_contiguous:
            return None
        writes, reads = self.writes.reshape(full), self.reads.reshape(full)
        return View(self.owner, self.name, writes, reads, self.wide)

    def note(self, place: tuple[Any, Any], access: Access, agent: Agent, name: str) -> None:
        """Note an access of a place: an index into the tensor, and a mask or None."""
        memory, mask = place
        if mask is not None and self.wide:
            mask = np.asarray(mask)[..., None]
        races = self.owner.races
        writes, reads = self.writes[memory], self.reads[memory]
        if access.launch or not self._all_ordered(access, agent):
            where = (name or "a tensor", self.name, memory, self.wide)
            races.check(writes, mask, access, agent, where)
            if access.action != "read":
                races.check(reads, mask, access, agent, where)
        if access.action == "read":
            self._put(self.reads, memory, mask, races.joined(reads, access, agent))
            return
        if access.action == "write":
            self._put(self.writes, memory, mask, races.own(access))
            self._put(self.reads, memory, mask, 0)
        else:
            self._put(self.writes, memory, mask, races.joined(writes, access, agent))

    def _all_ordered(self, access: Access, agent: Agent) -> bool:
        """Whether a stream's access races with none of the whole tensor.

        While its operation runs nothing else does, so that no part needs to be checked again.
        """
        races = self.owner.races
        own = races.own(access)
        if own in self._ordered:
            return True
        if self.writes.size > _SMALL or not races.ordered(self.writes, access, agent):
            return False
        if access.action != "read" and not races.ordered(self.reads, access, agent):
            return False
        self._ordered.add(own)
        return True

    @staticmethod
    def _put(plane: Any, memory: Any, mask: Any, value: Any) -> None:
        if mask is None:
            plane[memory] = value
        else:
            old = plane[memory]
            plane[memory] = np.where(mask, value, old)


class Accesses:
    """The shadows of all memory of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.races = Races(world.order)
        self._shadows: dict[int, _Shadow] = {}
        self._by_address: dict[int, _Shadow] = {}
        self._several = False

    @property
    def follows(self) -> bool:
        """Whether anything may be accessed by more than one stream."""
        return bool(self.world.memory.allocations) or self._streams()

    def _streams(self) -> bool:
        """Whether a rank has several streams."""
        if not self._several:
            self._several = any(len(rank.streams) > 1 for rank in self.world.ranks)
        return self._several

    def follow(self, tensor: torch.Tensor, name: str, lent: torch.Tensor | None = None) -> None:
        """Follow a piece of symmetric memory, known by a name; `lent` is the same memory."""
        storage = tensor.untyped_storage()
        shadow = _Shadow(storage, 4, name)
        for each in (tensor, lent):
            if each is not None:
                self._shadows[each.untyped_storage()._cdata] = shadow  # noqa: SLF001  # its identity

    def free(self, tensor: torch.Tensor, rank: Rank) -> None:
        """A rank frees a piece of symmetric memory, as if its host wrote the whole."""
        host = Agent(rank.number, f"rank {rank.number}", self.world.agent())
        host.learn(rank.clock)
        self._write(tensor, host, Access.of(host, "write", *caller(), FREE))

    def zero(self, tensor: torch.Tensor, stream: Agent) -> None:
        """A stream writes all of a piece of symmetric memory, which is new."""
        self._write(tensor, stream, Access.of(stream, "write", *stream.place(), ZERO))

    def _write(self, tensor: torch.Tensor, agent: Agent, access: Access) -> None:
        shadow = self._shadows[tensor.untyped_storage()._cdata]  # noqa: SLF001  # its identity
        view = View(self, shadow.name, shadow.writes, shadow.reads, False)
        view.note((slice(0, len(shadow.writes), 1), None), access, agent, "")

    def _shadow(self, tensor: torch.Tensor, size: int) -> _Shadow | None:
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001  # its identity
        found = self._shadows.get(key)
        # A borrowed tensor ends before its memory: another storage may have its identity then.
        if found is None or not found.alive or found.base != storage.data_ptr():
            if not self._streams() or storage.nbytes() == 0:
                return None
            found = self._shadows[key] = _Shadow(storage, size, "")
        if size < found.unit:
            found.refine(size)
        return found

    def view(self, tensor: torch.Tensor) -> View | None:
        """The shadow of a tensor; None of memory that one stream alone can reach."""
        size = tensor.element_size()
        shadow = self._shadow(tensor, size)
        if shadow is None or tensor.numel() == 0:
            return None
        unit = shadow.unit
        start = tensor.data_ptr() - shadow.base
        if start % unit or size % unit:
            # An odd offset: as bytes.
            shadow.refine(1)
            unit = 1
        shape = tuple(tensor.shape)
        steps = tuple(s * (size // unit) * 4 for s in tensor.stride())
        wide = size > unit
        if wide:
            shape, steps = (*shape, size // unit), (*steps, 4)
        first = start // unit
        writes = np.ndarray(shape, np.int32, shadow.writes, 4 * first, steps)
        reads = np.ndarray(shape, np.int32, shadow.reads, 4 * first, steps)
        return View(self, shadow.name, writes, reads, wide)

    def touch(
        self,
        tensor: torch.Tensor,
        action: str,
        what: str,
        *,
        agent: Agent | None = None,
        place: tuple[str, int] | None = None,
    ) -> None:
        """An operation of PyTorch reads or writes a tensor."""
        view = self.view(tensor)
        agent = agent if agent is not None else self.world.running
        if view is None or agent is None:
            return
        file, line = place if place is not None else agent.place()
        access = Access.of(agent, action, file, line, what)
        view.note((tuple(slice(0, n, 1) for n in tensor.shape), None), access, agent, "")

    def flag(self, pointer: Pointer, scope: str, *, write: bool) -> None:
        """A flag is read or written as one, with a scope."""
        agent = self.world.running
        if agent is None:
            return
        address = pointer.address
        shadow = self._by_address.get(address)
        if shadow is None or not shadow.alive:
            shadow = next(
                (
                    s
                    for s in self._shadows.values()
                    if s.base <= address < s.base + s.size and s.alive
                ),
                None,
            )
            if shadow is None:
                return
            self._by_address[address] = shadow
        unit = shadow.unit
        first = (address - shadow.base) // unit
        count = max(1, pointer.array.itemsize // unit)
        part = slice(first, first + count)
        view = View(self, shadow.name, shadow.writes[part], shadow.reads[part], False)
        action = "atomic" if write else "read"
        access = Access.of(agent, action, *agent.place(), "flag", scope)
        view.note(((), None), access, agent, str(pointer))

    def reports(self) -> list[Report]:
        """The races found."""
        return self.races.reports()
