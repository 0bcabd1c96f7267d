"""Pipelined loops that TileLang splits between warp groups: a producer, and consumers."""

import tilelang.language as T

from tlmatrix_kernels.target import HOPPER, capability


@T.macro
def keep_producer_together():
    """Before the first copy of a `T.Pipelined` loop of TMA copies: no warp stays behind.

    All four warps of the producer wait for a free stage, and one thread loads it. TileLang 0.1.15
    lets that thread alone arrive at the barrier of the consumers, who may use and free the stage
    while another warp of the producer has not seen that it was free. Two phases later the barrier
    has the parity again at which that warp waits, for ever. On an H200 this happened within seconds
    where kernels of several processes shared the multiprocessors (see docs/results/lowered.md).

    With an empty group of cp.async in the loop, TileLang lets every thread of the producer arrive.
    """
    if capability() >= HOPPER:
        T.ptx_commit_group()
