"""Barriers: of all ranks in the order of a stream, and of all blocks of all ranks in a kernel."""

import tilelang.language as T
import torch

from tlmatrix_kernels.distributed import signals
from tlmatrix_kernels.distributed.memory import SymmetricBuffer
from tlmatrix_kernels.distributed.pull import pull_order, wait_by_stream, write_flag

__all__ = ["all_ranks_barrier", "barrier", "barrier_without_kernel"]


def barrier(buffer: SymmetricBuffer, channel: int = 0) -> None:
    """Hold what follows on the current stream until every rank's stream has come to its barrier.

    What follows sees all that any rank's stream did before. A barrier is a small kernel that waits,
    so enqueue it before kernels whose blocks wait for others: once they fill the GPU it might find
    no place.

    Args:
        buffer: whose signal pads are used; every rank passes its own part of the same buffer.
        channel: barriers that may be under way at once, on several streams, need one each.
    """
    if buffer.world > 1:
        buffer.handle.barrier(channel)


def barrier_without_kernel(flags: SymmetricBuffer, epoch: int) -> None:
    """As `barrier`, but the streams themselves raise flags and wait for them.

    It takes no multiprocessor, so kernels whose blocks wait for what comes behind it may fill the
    GPU before. Not while a CUDA graph is captured.

    Args:
        flags: one int32 for each rank, for this alone (`Context.flags`).
        epoch: larger in every call, and the same on every rank; its low 32 bits count.
    """
    world = [flags.world]
    for peer in pull_order(flags.rank, flags.world):
        write_flag(flags.on(peer, world, torch.int32), flags.rank, epoch)
    for peer in pull_order(flags.rank, flags.world):
        wait_by_stream(flags.local(world, torch.int32), peer, epoch)


@T.macro
def all_ranks_barrier(counter, index, expected):
    """In a kernel: every block of every rank waits until `expected` arrivals were counted.

    For a `T.prim_func` that includes `signals.source`. All blocks of all ranks must fit on their
    GPUs at once, for a block that waits keeps its place.

    Args:
        counter: int32 flags of *one* rank, which all ranks pass (`SymmetricBuffer.on`).
        index: the flag that counts; nothing else touches it.
        expected: arrivals since it was zero: blocks a rank, times ranks, times barriers so far with
            this one; a multiple of 2^32 may be left out.
    """
    signals.add(counter, index, 1, order="acq_rel", scope="sys")
    signals.wait(counter, index, expected, order="acquire", scope="sys")
