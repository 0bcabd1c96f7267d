"""Barriers of all ranks: in stream order, and inside kernels."""

import tilelang.language as T
import torch

from tlmatrix_kernels.distributed import signals
from tlmatrix_kernels.distributed.memory import SymmetricBuffer
from tlmatrix_kernels.distributed.pull import pull_order, wait_by_stream, write_flag


def barrier(buffer: SymmetricBuffer, channel: int = 0) -> None:
    """Enqueue a barrier of all ranks on the current stream.

    Work after it sees all writes before the barrier of any rank. It is a small kernel that waits:
    enqueue it before kernels whose blocks wait for peers, since it may find no free multiprocessor
    after them.

    Args:
        buffer: the symmetric buffer whose signal pads are used; the same on every rank.
        channel: concurrent barriers, on several streams, need different channels.
    """
    if buffer.world > 1:
        buffer.handle.barrier(channel)


def barrier_without_kernel(flags: SymmetricBuffer, epoch: int) -> None:
    """Like `barrier`, with stream memory operations instead of a kernel.

    It needs no multiprocessor, so kernels whose blocks wait for later work may already fill the
    GPU. Not possible while a CUDA graph is captured.

    Args:
        flags: one int32 per rank, used for nothing else (`Context.flags`).
        epoch: increases with every call, and is the same on every rank; its low 32 bits are used.
    """
    world = [flags.world]
    for peer in pull_order(flags.rank, flags.world):
        write_flag(flags.on(peer, world, torch.int32), flags.rank, epoch)
    for peer in pull_order(flags.rank, flags.world):
        wait_by_stream(flags.local(world, torch.int32), peer, epoch)


@T.macro
def all_ranks_barrier(counter, index, expected):
    """In a kernel: every block of every rank waits until `expected` arrivals are counted.

    For a `T.prim_func` that includes `signals.source`. All blocks of all ranks must be co-resident,
    since waiting blocks keep their multiprocessor.

    Args:
        counter: int32 flags of *one* rank, which all ranks pass (`SymmetricBuffer.on`).
        index: the flag that counts; used for nothing else.
        expected: arrivals since it was zero, modulo 2^32: blocks per rank times ranks times the
            number of barriers so far.
    """
    signals.add(counter, index, 1, order="acq_rel", scope="sys")
    signals.wait(counter, index, expected, order="acquire", scope="sys")
