"""The symmetric memory that simulated ranks have: who owns an address, and what was let go of."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from torch.multiprocessing.reductions import StorageWeakRef

    from tlmatrix.interpreter.sync.world import Rank

    from .streams import Operation
    from .symmetric import Handle

__all__ = ["Allocation", "Memory"]

PAD_BYTES = 2048
"""The size of a signal pad, as PyTorch gives it where `set_signal_pad_size` is not called."""


@dataclass(eq=False)
class Allocation:
    """A piece of symmetric memory of one rank.

    Attributes:
        rank: whose it is.
        number: its number among those of its rank.
        kind: "symmetric buffer" or "signal pad".
        whole: its bytes, for as long as the simulation.
        zeroing: the operation that makes it ready for use.
        lent: the memory as the rank got it; over when it has let go of every view.
        handles: those that the rank has of it.
        pad: the signal pad that goes with it, one for all groups as in PyTorch.
        freed: whether the rank has let go of all that, and gone on.
    """

    rank: int
    number: int
    kind: str
    whole: torch.Tensor
    zeroing: Operation | None = None
    lent: StorageWeakRef | None = None
    handles: weakref.WeakSet[Handle] = field(default_factory=weakref.WeakSet)
    pad: Allocation | None = None
    freed: bool = False

    def __post_init__(self) -> None:
        self.begin, self.size = self.whole.data_ptr(), len(self.whole)

    def __contains__(self, address: int) -> bool:
        return self.begin <= address < self.begin + self.size

    @property
    def abandoned(self) -> bool:
        """Whether its rank has let go of it."""
        if self.lent is None or self.handles:
            return False
        return bool(self.lent.expired())  # type: ignore[no-untyped-call]

    def __str__(self) -> str:
        return f"{self.kind} {self.number} of rank {self.rank}"


class Memory:
    """The symmetric memory of a world."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self.pad_bytes = PAD_BYTES

    def allocate(self, rank: int, content: Any, kind: str) -> Allocation:
        """New memory of a rank; not by an operation of its stream."""
        number = sum(a.rank == rank and a.kind == kind for a in self.allocations)
        whole = torch.from_numpy(content.view(np.uint8))
        found = Allocation(rank, number, kind, whole)
        self.allocations.append(found)
        return found

    def find(self, address: int) -> Allocation | None:
        """Whose an address is."""
        return next((a for a in self.allocations if address in a), None)

    def borrowed(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor for what runs later: a GPU does not keep the memory that it was given."""
        found = self.find(tensor.data_ptr()) if self.allocations and tensor.numel() else None
        if found is None or found.lent is None:
            return tensor
        start = tensor.data_ptr() - found.begin
        if start % tensor.element_size():
            return tensor
        place = start // tensor.element_size()
        with torch.no_grad(), _disable_current_modes():
            again = torch.empty(0, dtype=tensor.dtype)
            return again.set_(found.whole.untyped_storage(), place, tensor.shape, tensor.stride())

    def free(self, rank: Rank) -> None:
        """Give up what a rank has let go of; told when it goes on, not when its program ends."""
        for each in self.allocations:
            if each.rank != rank.number or each.freed or not each.abandoned:
                continue
            if each.zeroing is not None:  # PyTorch waits for the device, then frees it
                rank.learn(each.zeroing.clock)
            for gone in filter(None, (each, each.pad)):
                gone.freed = True
                if rank.world.accesses is not None:
                    rank.world.accesses.free(gone.whole, rank)

    def describe(self, address: int) -> str:
        """Whose an address is, in words; empty where it is nobody's."""
        found = self.find(address)
        return str(found) if found is not None else ""
