"""Simulated symmetric memory: `torch.distributed._symmetric_memory` over memory of this process.

Buffers start as poison (NaN, or an integer no index can be), signal pads as zeros. As on a GPU, the
default stream does that: PyTorch up to 2.13 calls `cudaMemset` and goes on, and `rendezvous` waits
for it only after all ranks have met there (https://github.com/pytorch/pytorch/pull/192308). So a
peer may write before, and what it wrote is lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.interpreter.errors import InterpreterError, SynchronizationError
from tlmatrix.interpreter.reports import rendered
from tlmatrix.interpreter.runtime.memory import poison
from tlmatrix.interpreter.sync.context import current_rank
from tlmatrix.interpreter.sync.externs import Slot
from tlmatrix.interpreter.sync.flags import FlagWait, Pointer, access, last_write, wait_for, zero
from tlmatrix.interpreter.sync.world import meet

from .streams import Done, enqueue

if TYPE_CHECKING:
    from tlmatrix.interpreter.sync.agents import Request
    from tlmatrix.interpreter.sync.world import Rank

    from .allocations import Allocation
    from .streams import Stream


_ALIGNMENT = 512
"""Bytes of which PyTorch's allocations on a GPU begin at a multiple."""


def empty(*size: Any, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
    """`symm_mem.empty`: a tensor of the rank's own symmetric memory.

    Raises:
        RuntimeError: the current stream is being captured.
    """
    del device
    rank = current_rank()
    if rank.stream.capture is not None:
        rank.stream.capture.refuse("symmetric_memory.empty")
    shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
    dtype = dtype or torch.get_default_dtype()
    count = math.prod(int(n) for n in shape)
    name = str(dtype).removeprefix("torch.")
    content = _aligned(max(count, 1) * dtype.itemsize)
    if dtype.is_floating_point or dtype == torch.uint8:
        # All bits set is NaN in every float dtype; bytes are for something to be seen in them.
        content.fill(255)
    else:
        content.view(name).fill(poison(name))
    rank.world.memory.free(rank)
    found = rank.world.memory.allocate(rank.number, content, "symmetric buffer")
    lent = rank.world.memory.lend(found, content)
    zeros = np.zeros(rank.world.memory.pad_bytes, np.uint8)
    found.pad = pad = rank.world.memory.allocate(rank.number, zeros, "signal pad")
    if rank.world.accesses is not None:
        rank.world.accesses.follow(found.whole, str(found), lent)
        rank.world.accesses.follow(pad.whole, str(pad))
    found.zeroing = enqueue("symmetric_memory.empty", partial(_zero, rank, found), rank.streams[0])
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():  # noqa: SLF001
        tensor: torch.Tensor = lent[: count * dtype.itemsize].view(dtype).view(shape)
        return tensor


def _aligned(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """New memory that begins where that of a GPU does, at a multiple of the widest access."""
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size]


def _zero(rank: Rank, own: Allocation, stream: Stream) -> None:
    """Zero the signal pad, all of it as PyTorch does; a buffer is not zeroed."""
    if own.freed:
        return
    assert own.pad is not None
    zero(rank.world, own.pad.words(np.uint32), stream)
    if rank.world.accesses is not None:
        for each in (own, own.pad):
            rank.world.accesses.zero(each.whole, stream)


def rendezvous(tensor: torch.Tensor, group: Any) -> Handle:
    """`symm_mem.rendezvous`: every rank of the group gets at the buffers of all."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    rank = current_rank()
    memory = rank.world.memory
    if isinstance(group, str):
        names = c10d._world.pg_names  # noqa: SLF001  # where PyTorch keeps them
        group = next((pg for pg, name in names.items() if name == group), None)
        if group is None:
            raise ValueError("rendezvous: no process group has that name")
    members = tuple(dist.get_process_group_ranks(group))
    own = memory.find(tensor.data_ptr())
    if own is None or own.rank != rank.number:
        raise ValueError(
            "rendezvous: the tensor is not this rank's symmetric memory; allocate it with "
            "torch.distributed._symmetric_memory.empty"
        )
    known = rank.state.setdefault("rendezvous", {})
    key = (id(own), group.group_name)
    if key in known:
        return Handle(rank, members, known[key])
    what = "symmetric_memory.rendezvous"
    buffers = meet(("rendezvous", group.group_name), what, members, own)
    sizes = {buffer.size for buffer in buffers}
    if len(sizes) > 1:
        each = ", ".join(f"rank {b.rank}: {b.size}" for b in buffers)
        raise ValueError(
            f"rendezvous: the buffers must have one size on all ranks, in bytes they have {each}"
        )
    assert own.zeroing is not None
    rank.world.wait(rank, Done(own.zeroing, f"for {own} to be zeroed"))
    known[key] = buffers
    return Handle(rank, members, buffers)


@dataclass
class _Signals:
    """The signal pads of all ranks; what is enqueued has these, and not the user's handle."""

    host: Rank
    rank: int
    pads: list[Allocation]

    def slot(self, owner: int, channel: int, of: int) -> Pointer:
        """A signal of rank `of` in the pad of another one."""
        world = len(self.pads)
        pad = self.pads[owner].words(np.uint32)
        index = channel * world + of
        if not 0 <= index < len(pad):
            raise InterpreterError(
                f"channel {channel} of {world} ranks is beyond {self.pads[owner]}, "
                f"which has {len(pad)} signals; see torch.distributed._symmetric_memory."
                "set_signal_pad_size"
            )
        return Pointer(pad, (index,), "signal_pad")

    def put(self, peer: int, channel: int) -> Iterator[Request]:
        """Wait until the signal is free, and set it."""
        slot = self.slot(peer, channel, self.rank)
        yield FlagWait(self.host.world, slot, "eq", 0)
        access(slot, "release", "sys", lambda _old: 1)

    def take(self, peer: int, channel: int) -> Iterator[Request]:
        """Wait until a signal is set, and free it."""
        slot = self.slot(self.rank, channel, peer)
        yield FlagWait(self.host.world, slot, "eq", 1)
        sent, meant = last_write(self.host.world, slot), self.pads[peer].rank
        if sent is not None and sent.rank != meant:
            raise SynchronizationError(
                f"rank {self.host.number} takes a signal of rank {sent.rank} (set by {sent.by}, "
                f"at {rendered(sent.place)}) for one of rank {meant}: all groups that meet over a "
                "buffer share its signal pads, and each counts its own ranks "
                "(https://github.com/pytorch/pytorch/issues/192581); give each group a buffer of "
                "its own, or channels that no other one uses"
            )
        access(slot, "acq_rel", "sys", lambda _old: 0)


class Handle:
    """What `rendezvous` gives: the buffers and signal pads of all ranks of a group."""

    multicast_ptr = 0

    def __init__(
        self,
        rank: Rank,
        members: tuple[int, ...],
        buffers: list[Allocation],
    ) -> None:
        self._host = rank
        self._members = members
        self._buffers = buffers
        self._pads = [pad for each in buffers if (pad := each.pad) is not None]
        self._signals = _Signals(rank, members.index(rank.number), self._pads)
        rank.world.memory.use(buffers[members.index(rank.number)], self)

    @property
    def rank(self) -> int:
        """This rank's number in the group."""
        return self._members.index(self._host.number)

    @property
    def world_size(self) -> int:
        """How many ranks the group has."""
        return len(self._members)

    @property
    def buffer_size(self) -> int:
        """The size of a buffer in bytes."""
        return self._buffers[0].size

    @property
    def signal_pad_size(self) -> int:
        """The size of a signal pad in bytes."""
        return self._pads[0].size

    @property
    def buffer_ptrs(self) -> list[int]:
        """Where the buffers lie, by rank."""
        return [b.begin for b in self._buffers]

    @property
    def signal_pad_ptrs(self) -> list[int]:
        """Where the signal pads lie, by rank."""
        return [p.begin for p in self._pads]

    @property
    def device(self) -> torch.device:
        """The device of the buffers."""
        return torch.device("cpu")

    def _view(
        self, of: Allocation, sizes: Sequence[int], dtype: torch.dtype, offset: int
    ) -> torch.Tensor:
        count = math.prod(int(n) for n in sizes)
        size = dtype.itemsize
        if offset < 0 or (offset + count) * size > of.size:
            raise InterpreterError(
                f"{of} has {of.size} bytes, asked for are {count} elements of {dtype} "
                f"from element {offset} on: bytes {offset * size} to {(offset + count) * size}"
            )
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():  # noqa: SLF001
            found: torch.Tensor = of.whole[offset * size : (offset + count) * size].view(dtype)
            return found.view(tuple(int(n) for n in sizes))

    def get_buffer(
        self, rank: int, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int = 0
    ) -> torch.Tensor:
        """A view of the buffer of a rank of the group.

        Raises:
            InterpreterError: for a view past its end.
        """
        return self._view(self._buffers[rank], sizes, dtype, int(storage_offset or 0))

    def get_remote_tensor(
        self, peer: int, sizes: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """A view of the buffer of a rank of the group."""
        return self.get_buffer(peer, sizes, dtype)

    def get_signal_pad(
        self,
        rank: int,
        sizes: Sequence[int] = (),
        dtype: torch.dtype | None = None,
        storage_offset: int = 0,
    ) -> torch.Tensor:
        """A view of the signal pad of a rank of the group, whole where no sizes are given.

        Raises:
            InterpreterError: for a view past its end.
        """
        dtype = dtype or torch.uint32
        offset = int(storage_offset or 0)
        pad = self._pads[rank]
        whole = pad.size // dtype.itemsize - offset
        return self._view(pad, sizes or (whole,), dtype, offset)

    # -- signals, on the current stream

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """What the current stream is given from now on comes after what all ranks' were given."""
        del timeout_ms
        signals, rank, world = self._signals, self.rank, self.world_size
        signals.slot(rank, channel, world - 1)

        def work(_stream: Stream) -> Iterator[Request]:
            yield Slot(signals.host, f"barrier on channel {channel}")
            for step in range(1, world):
                yield from signals.put((rank + step) % world, channel)
            for step in range(1, world):
                yield from signals.take((rank + step) % world, channel)

        enqueue(f"barrier on channel {channel}", work)

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Signal a rank from the current stream."""
        del timeout_ms
        signals = self._signals
        signals.slot(dst_rank, channel, self.rank)
        enqueue(f"put_signal to {dst_rank}", lambda _stream: signals.put(dst_rank, channel))

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """The current stream waits for the signal of a rank."""
        del timeout_ms
        signals = self._signals
        signals.slot(self.rank, channel, src_rank)
        enqueue(f"wait_signal of {src_rank}", lambda _stream: signals.take(src_rank, channel))


def write_value(tensor: torch.Tensor, offset: int, val: int, count: int = 1) -> torch.Tensor:
    """`memset32`: the current stream sets flags, with no kernel.

    What the stream did before is ordered before what acquires them, on any rank.

    Raises:
        InterpreterError: for flags past the end of the tensor.
        RuntimeError: the value is no uint32, as PyTorch requires.
    """
    if not 0 <= val < 2**32:
        raise RuntimeError(
            f"a flag's value must be in the range of [0, 4294967295] (uint32), got {val}; "
            "pass its low 32 bits (value & 0xFFFFFFFF)"
        )
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():  # noqa: SLF001
        flags = tensor.detach().view(-1)
        if offset < 0 or offset + count > len(flags):
            raise InterpreterError(
                f"flags {offset} to {offset + count - 1} are written of a tensor that has "
                f"{len(flags)}"
            )
        array = current_rank().world.memory.borrowed(flags.view(torch.int32)).numpy()

    def work(_stream: Stream) -> None:
        for k in range(offset, offset + count):
            access(Pointer(array, (k,), "flags"), "release", "sys", lambda _old: val, atomic=False)

    enqueue(f"write of {val} to flag {offset}", work)
    return tensor


def stream_write_value(tensor: torch.Tensor, offset: int, val: int) -> torch.Tensor:
    """`stream_write_value32`: as `write_value`, but of one flag, and of nothing that is captured.

    Raises:
        InterpreterError: for a flag past the end of the tensor.
        RuntimeError: the value is no uint32, or the current stream is captured to a CUDA graph.
    """
    capture = current_rank().stream.capture
    if capture is not None:
        capture.refuse("stream_write_value32 (memset32 can be captured)")
    return write_value(tensor, offset, val)


_COMPARISONS = {0: "ge", 1: "eq"}
"""By the flags of `cuStreamWaitValue32`: CU_STREAM_WAIT_VALUE_GEQ and _EQ."""


def _flag_of_stream(call: str, stream: Any, addr: Any, value: Any) -> tuple[Stream, Pointer]:
    """The stream and the flag that a function of the driver names.

    Raises:
        InterpreterError: for a stream that the rank does not have, or an address outside of
            symmetric memory.
        OverflowError: the value is no uint32, as for the driver's bindings.
        RuntimeError: the stream is captured to a CUDA graph.
    """
    if not 0 <= int(value) < 2**32:
        raise OverflowError(
            f"{call}: the value must be an unsigned number of 32 bits, got "
            f"{int(value)}; pass its low 32 bits (value & 0xFFFFFFFF)"
        )
    rank, address = current_rank(), int(addr)
    known = next((each for each in rank.streams if each.cuda_stream == int(stream)), None)
    if known is None:
        raise InterpreterError(
            f"{call}: rank {rank.number} has no stream {int(stream)}; "
            "give torch.cuda.current_stream().cuda_stream"
        )
    if known.capture is not None:
        known.capture.refuse(f"{call} (a replay would have the same value again)")
    found = rank.world.memory.find(address)
    if found is None or (address - found.begin) % 4:
        raise InterpreterError(
            f"{call}: {address:#x} is no flag of 32 bits in symmetric memory; flags "
            "that peers write belong there (torch.distributed._symmetric_memory.empty)"
        )
    return known, Pointer(found.words(np.int32), ((address - found.begin) // 4,), "flags")


def stream_write_flag(stream: Any, addr: Any, value: Any, flags: Any) -> None:
    """`cuda.bindings.driver.cuStreamWriteValue32`: a stream sets a flag, with no kernel.

    What the stream did before is ordered before what acquires the flag, unless `flags` is 1
    (CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER).
    """
    if current_rank().world.state["traced"]:
        return  # kernels are only traced
    known, pointer = _flag_of_stream("cuStreamWriteValue32", stream, addr, value)
    order = "relaxed" if int(flags) else "release"

    def work(_stream: Stream) -> None:
        access(pointer, order, "sys", lambda _old: int(value), atomic=False)

    enqueue(f"write of {int(value)} to flag {pointer.index[0]}", work, known)


def stream_wait_value(stream: Any, addr: Any, value: Any, flags: Any) -> None:
    """`cuda.bindings.driver.cuStreamWaitValue32`: a stream waits for a flag, with no kernel.

    It learns what the write made known that it waited for.

    Raises:
        InterpreterError: for a comparison other than at least (0) and equal (1).
    """
    if current_rank().world.state["traced"]:
        return  # kernels are only traced, those too that would raise the flag
    known, pointer = _flag_of_stream("cuStreamWaitValue32", stream, addr, value)
    compare = _COMPARISONS.get(int(flags))
    if compare is None:
        raise InterpreterError(
            f"cuStreamWaitValue32: flags must be 0 (at least) or 1 (equal), got {int(flags)}"
        )

    def work(_stream: Stream) -> Iterator[Request]:
        yield from wait_for(pointer, int(value), compare, "acquire", "sys")

    enqueue(f"wait for {int(value)} in flag {pointer.index[0]}", work, known)
