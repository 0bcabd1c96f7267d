"""Symmetric memory: buffers of one size on every rank that each rank can read and write.

A thin layer over PyTorch's symmetric memory: `torch.distributed._symmetric_memory` allocates them,
and maps those of every GPU of a node into each process. A view of a peer's part is an ordinary
tensor, which kernels and copies take as they take a local one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed._symmetric_memory as symm_mem
from torch.distributed import ProcessGroup

__all__ = ["SymmetricBuffer", "allocate"]


@dataclass(frozen=True)
class SymmetricBuffer:
    """Bytes on every rank of a group; `storage` is what this rank has of them.

    With a `world` of one there is nothing to share, and `handle` is None.
    """

    storage: torch.Tensor
    """[bytes] uint8"""
    handle: Any
    rank: int
    world: int

    def on(
        self, peer: int, shape: Sequence[int], dtype: torch.dtype, offset: int = 0
    ) -> torch.Tensor:
        """What rank `peer` has, as a contiguous tensor of that shape from byte `offset` on.

        Raises:
            ValueError: a rank that the group does not have, an offset inside an element, or more
                than the buffer holds.
        """
        if not 0 <= peer < self.world:
            raise ValueError(f"peer must be a rank from 0 to {self.world - 1}, got {peer}")
        if offset % dtype.itemsize:
            raise ValueError(f"offset must be a multiple of {dtype.itemsize} bytes, got {offset}")
        end = offset + math.prod(shape) * dtype.itemsize
        if offset < 0 or end > self.storage.numel():
            raise ValueError(
                f"bytes {offset} to {end} are asked of a buffer of {self.storage.numel()} bytes"
            )
        if peer == self.rank or offset == end:
            return self.storage[offset:end].view(dtype).view(*shape)
        return self.handle.get_buffer(peer, tuple(shape), dtype, offset // dtype.itemsize)

    def local(self, shape: Sequence[int], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
        """What this rank has; see `on`."""
        return self.on(self.rank, shape, dtype, offset)


def allocate(
    size: int, device: torch.device, group: ProcessGroup | None, rank: int, world: int
) -> SymmetricBuffer:
    """A buffer of `size` bytes on every rank of `group`; all of them call it, with equal sizes.

    With more ranks than one it waits for all that is enqueued on the device.
    """
    if world == 1:
        storage = torch.empty(size, dtype=torch.uint8, device=device)
        return SymmetricBuffer(storage, None, rank, world)
    storage = symm_mem.empty(size, dtype=torch.uint8, device=device)
    # PyTorch zeroes it on the default stream, and up to 2.13 ranks that meet in `rendezvous` do not
    # wait for that: what a peer signals before is lost (github.com/pytorch/pytorch/pull/192308).
    torch.cuda.synchronize(device)
    return SymmetricBuffer(storage, symm_mem.rendezvous(storage, group), rank, world)
