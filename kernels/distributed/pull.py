"""Copies from peers by the copy engines, on a stream of their own, with completion flags.

`Tensor.copy_` between contiguous tensors of one dtype is a `cudaMemcpyAsync`; between GPUs the copy
engines run it. It needs no multiprocessor, so it proceeds beside kernels that fill the GPU, even
with blocks that wait for the copy. For the same reason flags are set by the stream
(`cuStreamWriteValue32`, after a system-scope fence) and not by a kernel, and can be awaited by a
stream (`cuStreamWaitValue32`).
"""

from collections.abc import Callable, Iterable

import tilelang
import tilelang.language as T
import torch
import torch.distributed._symmetric_memory as symm_mem

from tlmatrix_kernels.distributed import signals


def pull_order(rank: int, world: int) -> list[int]:
    """The other ranks in the order in which `rank` pulls from them: rank + 1, rank + 2, ...

    All ranks start with a different peer, which balances the links.
    """
    return [(rank + step) % world for step in range(1, world)]


def pull(
    peers: Iterable[int],
    source: Callable[[int], torch.Tensor],
    target: Callable[[int], torch.Tensor],
    arrived: Callable[[int], None] | None = None,
) -> None:
    """Enqueue `target(p).copy_(source(p))` on the current stream for each of `peers`, in order.

    Args:
        peers: the ranks to copy from.
        source: the tensor of a peer, contiguous, in symmetric memory.
        target: its destination, contiguous, with the same shape and dtype.
        arrived: called after each copy, to enqueue its completion flag (`write_flag`).
    """
    for peer in peers:
        target(peer).copy_(source(peer), non_blocking=True)
        if arrived is not None:
            arrived(peer)


def write_flag(flags: torch.Tensor, index: int, value: int) -> None:
    """Enqueue `flags[index] = value` on the current stream, after a system-scope fence.

    Args:
        flags: [n] int32, on this device or a peer's.
        index: of the flag.
        value: any integer; its low 32 bits are written.
    """
    unsigned, low = flags.view(torch.uint32), value & 0xFFFFFFFF
    write = symm_mem._SymmetricMemory.stream_write_value32  # noqa: SLF001  (has no public name)
    if torch.cuda.is_current_stream_capturing():
        write = symm_mem._SymmetricMemory.memset32  # noqa: SLF001  (supported in graphs)
    write(unsigned, index, low)


@tilelang.jit
def wait_kernel():
    """Build a kernel of one warp that waits until `flags[index]` is at least `value`."""
    size = T.dynamic("size")

    @T.prim_func
    def wait_for_flag(flags: T.Tensor([size], "int32"), index: T.int32, value: T.int32):
        with T.Kernel(1, threads=32) as _:
            T.import_source(signals.source(32))
            signals.wait(flags, index, value)

    return wait_for_flag


def wait_by_kernel(flags: torch.Tensor, index: int, value: int) -> None:
    """Enqueue a wait on the current stream until `flags[index]` is at least `value`.

    A kernel of one warp, which needs a multiprocessor: deadlocks if blocks that wait for later work
    on this stream occupy all of them.

    Args:
        flags: [n] int32, on this device or a peer's.
        index: of the flag.
        value: any integer; its low 32 bits are compared as in `signals`.
    """
    wait_kernel()(flags, index, to_int32(value))


def wait_by_stream(flags: torch.Tensor, index: int, value: int) -> None:
    """Like `wait_by_kernel`, with a stream memory operation, which needs no multiprocessor.

    Not possible while a CUDA graph is captured: each replay would wait for the same value.

    Args:
        flags: [n] int32 in symmetric memory, on this device.
        index: of the flag.
        value: any integer; its low 32 bits are compared as in `signals`.

    Raises:
        RuntimeError: the driver returns an error.
    """
    from cuda.bindings import driver  # comes with PyTorch for GPUs; simulated ranks have it too

    stream = torch.cuda.current_stream().cuda_stream
    address = flags.data_ptr() + index * flags.element_size()
    (status,) = driver.cuStreamWaitValue32(stream, address, value & 0xFFFFFFFF, _AT_LEAST)
    if int(status) != 0:
        raise RuntimeError(f"cuStreamWaitValue32 failed for flag {index}: {status}")


_AT_LEAST = 0
"""CU_STREAM_WAIT_VALUE_GEQ."""


def to_int32(value: int) -> int:
    """The low 32 bits of an integer, as an int32."""
    return (value + 2**31) % 2**32 - 2**31
