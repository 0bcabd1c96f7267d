"""Clusters: the rank of a block, barriers of all threads, arrivals at another block's mbarrier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.interpreter.emit.memory import buffer
from tlmatrix.interpreter.emit.threads import threads_of
from tlmatrix.interpreter.emit.threads.clusters import cluster_of, rank_in_cluster
from tlmatrix.interpreter.emit.threads.issue import arrives_at, by_active_threads
from tlmatrix.interpreter.emit.values import Val
from tlmatrix.interpreter.ir import nodes as ir

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter


def _rank(e: Emitter, call: ir.Call) -> Val:
    threads_of(e, "T.block_rank_in_cluster")
    return Val(rank_in_cluster(e), call.dtype, lo=0)


def _barrier(e: Emitter, call: ir.Call) -> None:
    """`T.cluster_sync`, or one half of it: every thread of the cluster arrives, then waits."""
    if e.mask is not None and not e.mask.scalar:
        raise e.refuse("a barrier of a cluster by some threads")
    cluster = cluster_of(e)
    if call.op != "tl.cluster_wait":
        e.w.line(f"me.cluster_arrive({cluster})")
    if call.op in ("tl.cluster_wait", "tl.cluster_sync"):
        e.w.line("yield me.cluster_wait()")


def _arrive(e: Emitter, call: ir.Call) -> None:
    """`T.mbarrier_arrive(barrier, block)` at the mbarrier of a block of the cluster."""
    load = call.args[0]
    if not isinstance(load, ir.BufferLoad):
        raise e.refuse("a barrier of a cluster given by its address")
    code = buffer(e, load.buffer).code
    index, rank = (e.scalar(n, "a barrier").code for n in (load.indices[0], call.args[1]))
    arrives_at(e, f"{code}[{index}]")
    threads = threads_of(e, "an arrival").active_threads(e)
    e.w.line(f"me.arrive({code}.of_block({rank})[{index}], {threads})")
    e.w.line("yield")


_BARRIERS = ("tl.cluster_sync", "tl.cluster_arrive", "tl.cluster_arrive_relaxed", "tl.cluster_wait")
CALLS = {"tl.block_rank_in_cluster": _rank}
EFFECTS = {
    **dict.fromkeys(_BARRIERS, _barrier),
    "tl.ptx_arrive_cluster_barrier": by_active_threads(_arrive),
}
SYNCHRONIZING = frozenset(EFFECTS)
