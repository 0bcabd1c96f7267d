"""Copies from peers by the copy engines, on a stream of their own, with flags that tell of them.

`Tensor.copy_` between contiguous tensors of one dtype is a `cudaMemcpyAsync`, which between GPUs
the copy engines do: no multiprocessor is needed, so a copy goes on beside kernels that fill the
GPU, even with blocks that wait for it. For the same reason the flag behind a copy is written by the
stream itself (`cuStreamWriteValue32`, behind a fence of system scope) and not by a kernel, and may
be awaited by a stream itself (`cuStreamWaitValue32`).
"""

from collections.abc import Callable, Iterable

import tilelang
import tilelang.language as T
import torch
import torch.distributed._symmetric_memory as symm_mem

from tlmatrix_kernels.distributed import signals

__all__ = ["pull", "pull_order", "to_int32", "wait_by_kernel", "wait_by_stream", "write_flag"]


def pull_order(rank: int, world: int) -> list[int]:
    """The other ranks in the order in which `rank` pulls from them: the next one first.

    Every rank begins with another, so no GPU is asked by all at once.
    """
    return [(rank + step) % world for step in range(1, world)]


def pull(
    peers: Iterable[int],
    source: Callable[[int], torch.Tensor],
    target: Callable[[int], torch.Tensor],
    arrived: Callable[[int], None] | None = None,
) -> None:
    """Enqueue, on the current stream, `target(p).copy_(source(p))` for each of `peers` in turn.

    Args:
        peers: the ranks to copy from, in order.
        source: a peer's tensor, contiguous, in symmetric memory.
        target: where it goes, contiguous, of its shape and dtype.
        arrived: called behind each copy, to enqueue what tells of it (`write_flag`).
    """
    for peer in peers:
        target(peer).copy_(source(peer), non_blocking=True)
        if arrived is not None:
            arrived(peer)


def write_flag(flags: torch.Tensor, index: int, value: int) -> None:
    """Enqueue `flags[index] = value` on the current stream, behind a fence of system scope.

    Args:
        flags: [n] int32, on this device or a peer's.
        index: which.
        value: any integer; its low 32 bits are written.
    """
    unsigned, low = flags.view(torch.uint32), value & 0xFFFFFFFF
    write = symm_mem._SymmetricMemory.stream_write_value32  # noqa: SLF001  (has no public name)
    if torch.cuda.is_current_stream_capturing():
        write = symm_mem._SymmetricMemory.memset32  # noqa: SLF001  (what a graph can hold)
    write(unsigned, index, low)


@tilelang.jit
def wait_kernel():
    """A kernel of one warp that ends when `flags[index]` is at least `value`."""
    size = T.dynamic("size")

    @T.prim_func
    def wait_for_flag(flags: T.Tensor([size], "int32"), index: T.int32, value: T.int32):
        with T.Kernel(1, threads=32) as _:
            T.import_source(signals.source(32))
            signals.wait(flags, index, value)

    return wait_for_flag


def wait_by_kernel(flags: torch.Tensor, index: int, value: int) -> None:
    """Enqueue on the current stream a wait until `flags[index]` is at least `value`.

    A kernel of one warp, which needs a place on a multiprocessor: do not enqueue it where blocks
    that wait for what comes behind it may hold every place.

    Args:
        flags: [n] int32, on this device or a peer's.
        index: which.
        value: any integer, compared as `signals` compares, by its low 32 bits.
    """
    wait_kernel()(flags, index, to_int32(value))


def wait_by_stream(flags: torch.Tensor, index: int, value: int) -> None:
    """As `wait_by_kernel`, but the stream itself waits: no kernel, so no place on a multiprocessor.

    Not while a CUDA graph is captured: each replay would wait for the same value.

    Args:
        flags: [n] int32 in symmetric memory, on this device.
        index: which.
        value: any integer, compared as `signals` compares, by its low 32 bits.

    Raises:
        RuntimeError: the driver refuses.
    """
    from cuda.bindings import driver  # comes with PyTorch for GPUs; simulated ranks have it too

    stream = torch.cuda.current_stream().cuda_stream
    address = flags.data_ptr() + index * flags.element_size()
    (status,) = driver.cuStreamWaitValue32(stream, address, value & 0xFFFFFFFF, _AT_LEAST)
    if int(status) != 0:
        raise RuntimeError(f"cuStreamWaitValue32 of flag {index} gave {status}")


_AT_LEAST = 0
"""CU_STREAM_WAIT_VALUE_GEQ."""


def to_int32(value: int) -> int:
    """The low 32 bits of an integer as an int32."""
    return (value + 2**31) % 2**32 - 2**31
