"""Asynchronous tile operations: TMA, cp.async, wgmma and tcgen05, and waits for their groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.dtypes import size_in_bits
from tlmatrix.interpreter.emit.regions import region
from tlmatrix.interpreter.emit.threads import threads_of
from tlmatrix.interpreter.emit.threads.clusters import has_pairs, rank_in_cluster
from tlmatrix.interpreter.emit.threads.issue import (
    arrives_at,
    barrier_code,
    barriers_of_pair,
    by_active_threads,
    issue,
    together,
)
from tlmatrix.interpreter.ir import nodes as ir

from .copy import Copy
from .gemm import Gemm, barrier_of
from .gemm_blockscaled import BlockScaledGemm, PairBlockScaledGemm
from .gemm_pair import PairGemm
from .gemm_sp import SparseGemm
from .tile import tile_rule_of_threads

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call

# Which kind of group an operation waits for, and which it closes.
_WAITS = {
    "tl.wait_wgmma": "wgmma",
    "tl.warpgroup_wait": "wgmma",
    "tirx.ptx_wait_group": "cp.async",
    "tl.tma_store_wait": "TMA store",
}
_COMMITS = {"tirx.ptx_commit_group": "cp.async", "tl.tma_store_arrive": "TMA store"}
# They order what hardware might reorder within a thread; TileLang puts those of tcgen05 itself.
_FENCES = (
    "tl.warpgroup_arrive",
    "tl.warpgroup_commit_batch",
    "tl.warpgroup_fence_operand",
    "tl.tcgen05_before_thread_sync",
    "tl.tcgen05_after_thread_sync",
    "tl.deallocate_tmem",
    "tl.ptx_fence_barrier_init",
)


class _Issued(Copy):
    """A copy that an engine does."""

    name = "tma_copy"


def _tma_copy(e: Emitter, call: Call) -> None:
    """`T.tma_copy`: a load that an mbarrier counts, or a store that is waited for in groups."""
    op = _Issued(e, call)
    dst = region(e, call.args[1])
    if dst.buf.is_global:
        issue(e, "TMA store", op)
        e.w.line("me.commit('TMA store')")
        return
    if "barrier" not in call.annotations:
        raise e.refuse("T.tma_copy into shared memory without a barrier")
    barrier = barrier_code(e, call.annotations["barrier"])
    if has_pairs(e) and _is_of_cluster(call.annotations["barrier"]):
        barrier = barriers_of_pair(e, call.annotations["barrier"])[0]
    width = size_in_bits(dst.buf.dtype)
    ranges = dst.ranges or region(e, call.args[0]).ranges
    extents = " * ".join(d.extent.code for d in ranges if d.extent)
    issue(e, "TMA load", op, f"bar={barrier}, size=({extents or '1'}) * {width} // 8")


def _is_of_cluster(barrier: Any) -> bool:
    """Whether a barrier is one of `T.alloc_cluster_barrier`."""
    load = barrier.args[0] if isinstance(barrier, ir.Call) else barrier
    return isinstance(load, ir.BufferLoad) and load.buffer.scope == "shared.cluster_barrier"


def _async_copy(e: Emitter, call: Call) -> None:
    """`T.async_copy`: cp.async, waited for in groups."""
    issue(e, "cp.async", _Issued(e, call))
    e.w.line("me.commit('cp.async')")


def _wgmma_gemm(e: Emitter, call: Call) -> None:
    """`T.wgmma_gemm`: in order with those before it, waited for in groups."""
    make = SparseGemm if call.op.endswith("_sp") else Gemm
    issue(e, "wgmma", make(e, call), "ordered=True")
    e.w.line("me.commit('wgmma')")


def _tcgen05_gemm(e: Emitter, call: Call) -> None:
    """`T.tcgen05_gemm` with or without scales: in order; an mbarrier counts its end."""
    more = "ordered=True"
    named = barrier_of(call)
    make, make_pair = _TCGEN05[call.op]
    if call.annotations.get("use_2cta"):
        # TileLang issues it in the first block of a cluster alone.
        with e.w.block(f"if {rank_in_cluster(e)} == 0"):
            issue(e, "tcgen05 MMA", make_pair(e, call), more)
            for barrier in [] if named is None else barriers_of_pair(e, named):
                arrives_at(e, barrier_code(e, named))
                e.w.line(f"me.commit_to('tcgen05 MMA', {barrier})")
            e.w.line("yield")
        return
    if named is not None:
        barrier = barrier_code(e, named)
        arrives_at(e, barrier)
        more += f", arrive={barrier}"
    issue(e, "tcgen05 MMA", make(e, call), more)


def _gemm(e: Emitter, call: Call) -> None:
    """`T.gemm`: TileLang waits for its own product, and the barrier gets its one arrival."""
    _GEMMS[call.op](e, call)
    named = barrier_of(call)
    if named is not None:
        with threads_of(e, "T.gemm").without_threads(e):
            e.w.line(f"me.arrive({barrier_code(e, named)}, 1)")


_GEMMS = {
    "tl.tileop.gemm": tile_rule_of_threads(Gemm),
    "tl.tileop.gemm_blockscaled": tile_rule_of_threads(BlockScaledGemm),
}


def _wait(e: Emitter, call: Call) -> None:
    left = e.scalar(call.args[0], "a wait")
    reads = ""
    if call.op == "tl.tma_store_wait" and len(call.args) > 1 and int(call.args[1].value):
        reads = ", reads=True"
    e.w.line(f"yield me.wait_groups({_WAITS[call.op]!r}, {left.code}{reads})")


def _commit(e: Emitter, call: Call) -> None:
    e.w.line(f"me.commit({_COMMITS[call.op]!r})")


def _fence(e: Emitter, call: Call) -> None:
    del call
    if threads_of(e, "a fence").races:
        e.w.line("me.fence()")


def _ordering_fence(e: Emitter, call: Call) -> None:
    del e, call


_TCGEN05 = {
    "tl.tileop.tcgen05_gemm": (Gemm, PairGemm),
    "tl.tileop.tcgen05_gemm_blockscaled": (BlockScaledGemm, PairBlockScaledGemm),
}
ASYNCHRONOUS = {
    "tl.tileop.tma_copy": together(_tma_copy),
    "tl.tileop.async_copy": together(_async_copy),
    "tl.tileop.wgmma_gemm": together(_wgmma_gemm),
    "tl.tileop.wgmma_gemm_sp": together(_wgmma_gemm),
    **dict.fromkeys(_TCGEN05, together(_tcgen05_gemm)),
}
SYNCHRONIZING = frozenset(_WAITS.keys() - {"tl.warpgroup_wait"}) | {"tl.tma_store_arrive"}
EFFECTS = {
    **ASYNCHRONOUS,
    **dict.fromkeys(_GEMMS, _gemm),
    **{op: by_active_threads(_wait) for op in _WAITS},
    **{op: by_active_threads(_commit) for op in _COMMITS},
    **dict.fromkeys(_FENCES, _ordering_fence),
    "tl.fence_proxy_async": _fence,
}
