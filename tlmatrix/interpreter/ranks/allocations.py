"""The symmetric memory of simulated ranks: which allocation has an address, and which are freed."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from tlmatrix.interpreter.sync.world import Rank

    from .streams import Operation


@dataclass(eq=False)
class Allocation:
    """A piece of symmetric memory of one rank.

    Attributes:
        rank: the number of the rank that allocated it.
        number: its number among those of its rank and kind.
        kind: "symmetric buffer" or "signal pad".
        whole: its bytes, for as long as the simulation.
        zeroing: the operation that makes it ready for use.
        users: how many storages of the rank, and handles of `rendezvous`, still refer to it.
        lent: whether the rank got a tensor of it.
        pad: the signal pad that goes with it, one for all groups as in PyTorch.
        freed: whether the rank has dropped its last reference, and gone on.
    """

    rank: int
    number: int
    kind: str
    whole: torch.Tensor
    zeroing: Operation | None = None
    users: int = 0
    lent: bool = False
    pad: Allocation | None = None
    freed: bool = False

    def __post_init__(self) -> None:
        with torch._C.DisableTorchFunction():  # noqa: SLF001  # has no public name
            self.begin, self.size = self.whole.data_ptr(), self.whole.numel()
            self._bytes = self.whole.numpy()

    def words(self, dtype: type[np.generic]) -> Any:
        """Its words of 32 bits, as a NumPy array."""
        return self._bytes[: self.size // 4 * 4].view(dtype)

    def __str__(self) -> str:
        return f"{self.kind} {self.number} of rank {self.rank}"


class Memory:
    """The symmetric memory of a world."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self.pad_bytes = 2048
        """The size of a signal pad, PyTorch's own where `set_signal_pad_size` is not called."""
        self._begins: list[int] = []
        """The addresses of `allocations`, which are in this order."""
        self._numbers: Counter[tuple[int, str]] = Counter()
        self._unused: list[Allocation] = []
        """Allocations whose last user has ended."""

    def allocate(self, rank: int, content: Any, kind: str) -> Allocation:
        """New memory of a rank; not by an operation of its stream."""
        number = self._numbers[rank, kind]
        self._numbers[rank, kind] += 1
        found = Allocation(rank, number, kind, torch.from_numpy(content.view(np.uint8)))
        place = bisect_right(self._begins, found.begin)
        self._begins.insert(place, found.begin)
        self.allocations.insert(place, found)
        return found

    def lend(self, own: Allocation, content: Any) -> torch.Tensor:
        """The memory as its rank gets it: a tensor of bytes, followed until its storage ends."""
        memory = content.view(np.uint8)
        self.use(own, memory)
        own.lent = True
        return torch.from_numpy(memory)

    def use(self, own: Allocation, user: Any) -> None:
        """Count something as a user of an allocation until it is collected."""
        own.users += 1
        weakref.finalize(user, self._ended, own).atexit = False

    def _ended(self, own: Allocation) -> None:
        own.users -= 1
        if own.users == 0:
            self._unused.append(own)

    def find(self, address: int) -> Allocation | None:
        """The allocation that an address is in."""
        place = bisect_right(self._begins, address) - 1
        if place < 0:
            return None
        found = self.allocations[place]
        return found if address < found.begin + found.size else None

    def borrowed(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor for what runs later: a GPU does not keep the memory that it was given."""
        if not self.allocations:
            return tensor
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():  # noqa: SLF001  # have no public names
            address = tensor.data_ptr()  # 0 of an empty tensor
            found = self.find(address)
            if found is None or not found.lent:
                return tensor
            place, rest = divmod(address - found.begin, tensor.element_size())
            if rest:
                return tensor
            again = torch.empty(0, dtype=tensor.dtype)
            return again.set_(found.whole.untyped_storage(), place, tensor.shape, tensor.stride())

    def free(self, rank: Rank) -> None:
        """Free what a rank has dropped; called when it goes on, not when its program ends."""
        if not self._unused:
            return
        unused = [each for each in self._unused if each.rank == rank.number]
        for each in unused:
            self._unused.remove(each)
            if each.users:  # a handle was made of another reference
                continue
            if each.zeroing is not None:  # PyTorch waits for the device, then frees it
                rank.learn(each.zeroing.clock)
            for gone in filter(None, (each, each.pad)):
                gone.freed = True
                if rank.world.accesses is not None:
                    rank.world.accesses.free(gone.whole, rank)

    def describe(self, address: int) -> str:
        """The allocation that an address is in, as text; empty if there is none."""
        found = self.find(address)
        return str(found) if found is not None else ""
