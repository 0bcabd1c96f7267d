"""Symmetric memory: buffers of the same size on every rank that all ranks can read and write.

A thin layer over `torch.distributed._symmetric_memory`, which allocates buffers and maps those of
all GPUs of a node into each process. A view of a peer's buffer is an ordinary tensor for kernels
and copies.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed._symmetric_memory as symm_mem
from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class SymmetricBuffer:
    """A buffer on every rank of a group; `storage` is the local one.

    With a `world` of one, `handle` is None.
    """

    storage: torch.Tensor
    """[bytes] uint8"""
    handle: Any
    rank: int
    world: int

    def on(
        self, peer: int, shape: Sequence[int], dtype: torch.dtype, offset: int = 0
    ) -> torch.Tensor:
        """The buffer of rank `peer`, as a contiguous tensor of `shape` from byte `offset`.

        Raises:
            ValueError: peer is not a rank of the group, offset is inside an element, or the tensor
                exceeds the buffer.
        """
        if not 0 <= peer < self.world:
            raise ValueError(f"peer must be a rank from 0 to {self.world - 1}, got {peer}")
        if offset % dtype.itemsize:
            raise ValueError(f"offset must be a multiple of {dtype.itemsize} bytes, got {offset}")
        end = offset + math.prod(shape) * dtype.itemsize
        if offset < 0 or end > self.storage.numel():
            raise ValueError(
                f"bytes {offset} to {end} exceed the buffer of {self.storage.numel()} bytes"
            )
        if peer == self.rank or offset == end:
            return self.storage[offset:end].view(dtype).view(*shape)
        return self.handle.get_buffer(peer, tuple(shape), dtype, offset // dtype.itemsize)

    def local(self, shape: Sequence[int], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
        """The buffer of this rank; see `on`."""
        return self.on(self.rank, shape, dtype, offset)


def allocate(
    size: int, device: torch.device, group: ProcessGroup | None, rank: int, world: int
) -> SymmetricBuffer:
    """Allocate a buffer of `size` bytes on every rank of `group`; a collective, with equal sizes.

    With several ranks it synchronizes with the device.
    """
    if world == 1:
        storage = torch.empty(size, dtype=torch.uint8, device=device)
        return SymmetricBuffer(storage, None, rank, world)
    storage = symm_mem.empty(size, dtype=torch.uint8, device=device)
    # PyTorch zeroes the signal pad on the default stream, and up to 2.13 `rendezvous` does not wait
    # for that: earlier signals of a peer are lost (github.com/pytorch/pytorch/pull/192308).
    torch.cuda.synchronize(device)
    return SymmetricBuffer(storage, symm_mem.rendezvous(storage, group), rank, world)
