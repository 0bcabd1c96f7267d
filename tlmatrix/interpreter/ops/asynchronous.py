"""Asynchronous copies and products, and what threads wait for and arrive at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tlmatrix.dtypes import size_in_bits
from tlmatrix.interpreter.emit.access import skips_outside
from tlmatrix.interpreter.emit.emitter import Rules
from tlmatrix.interpreter.emit.expressions import both
from tlmatrix.interpreter.emit.memory import buffer
from tlmatrix.interpreter.emit.numbers import named
from tlmatrix.interpreter.emit.sharing import keep_mask
from tlmatrix.interpreter.emit.threads import threads_of
from tlmatrix.interpreter.emit.threads.axis import has_pairs, rank_in_cluster
from tlmatrix.interpreter.emit.threads.roles import (
    arrives_at,
    barrier_code,
    barriers_of_pair,
    by_active_threads,
    issue,
    issue_lines,
    together,
    writing_to,
)
from tlmatrix.interpreter.emit.tiles import Effect, TileOperation, region
from tlmatrix.interpreter.emit.values import numpy_name
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.rewrites.memory import ROWS_LOAD, ROWS_STORE

from .atomic import pointed_to
from .blockscaled import BlockScaledGemm, PairBlockScaledGemm
from .copy import Copy
from .gemm import Gemm, PairGemm, SparseGemm, barrier_of
from .tables import Operations, tile_rule_of_threads

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.access import Buf
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call


# Asynchronous tile operations: TMA, cp.async, wgmma and tcgen05, and waits for their groups -------

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


# `T.ptx_cp_async`: every thread, or iteration of `T.Parallel`, copies some elements in a row ------


def _cp_async(e: Emitter, call: Call) -> None:
    """The copy, issued; where the predicate does not hold it reads nothing and writes zeros."""
    t = threads_of(e, "T.ptx_cp_async")
    if t.in_threads(e) or not e.axes:
        t.thread_axis(e, "T.ptx_cp_async")
    copies = e.shape_of(e.all_axes)
    count = e.scalar(call.args[2], "a number of elements").code
    (dst, dst_index), (src, src_index) = (_row(e, arg) for arg in call.args[:2])
    mask = reads = e.mask_code
    test = None
    if len(call.args) > 3:
        test = e.expr(call.args[3])
        test = keep_mask(e, named(e, f"({test.code} != 0)", "bool", (test,)))
        reads = keep_mask(e, both(e, e.mask, test)).code
    element = e.temp("e")
    source, target = _at(src_index, element), _at(dst_index, element)
    loaded = (
        f"gather({src.code}, {src.codec}, {source}, {reads}, {src.safe}, "
        f"{src.name!r}, {skips_outside(e, src)})"
    )
    if test is not None:
        loaded = f"np.where({test.code}, {loaded}, 0).astype(np.{numpy_name(src.dtype)})"
    with (
        writing_to(e, e.w.sharing_names(e.w.location)) as body,
        body.block(f"for {element} in range({count})"),
    ):
        for instrument in e.instruments:
            instrument.copied_element(e, src, source, reads, write=False)
            instrument.copied_element(e, dst, target, mask, write=True)
        body.line(
            f"scatter({dst.code}, {dst.codec}, {target}, {loaded}, {mask}, "
            f"{dst.name!r}, {skips_outside(e, dst)})"
        )
    accesses = [
        f"({buf.code!r}, {written}, row_cells(({', '.join(index)},), {count}, "
        f"{active}, {copies}, {buf.code}.shape), {buf.code}.shape)"
        for buf, index, active, written in (
            (src, src_index, reads, False),
            (dst, dst_index, mask, True),
        )
        if t.can_race(e, buf)
    ]
    issue_lines(e, "cp.async", body, accesses)


def _row(e: Emitter, pointer: Any) -> tuple[Buf, list[str]]:
    load = pointed_to(e, pointer, "T.ptx_cp_async")
    index = []
    for node in load.indices:
        name = e.temp("at")
        e.w.line(f"{name} = {e.expr(node).code}")
        index.append(name)
    return buffer(e, load.buffer), index


def _at(index: list[str], element: str) -> str:
    return f"({', '.join([*index[:-1], f'{index[-1]} + {element}'])},)"


# `T.tma_gather4`, `T.tma_scatter4`: four rows of a matrix, in any order ---------------------------

_ROWS = 4


class _Rows(TileOperation):
    """Copies of rows; one outside of the matrix reads as zeros, and is not written."""

    name = "tma_rows"

    def __init__(self, e: Emitter, call: ir.Call) -> None:
        self.call = call
        pairs = zip(call.args[: 2 * _ROWS : 2], call.args[1 : 2 * _ROWS : 2], strict=True)
        self.rows = [Copy(e, ir.Call("handle", "tl.tileop.copy", pair, {})) for pair in pairs]
        self.predicated = [region for row in self.rows for region in row.predicated]

    @property
    def effects(self) -> Sequence[Effect]:
        """Those of all rows."""
        return [effect for row in self.rows for effect in row.effects]

    def emit(self, e: Emitter) -> None:
        """Write the copies."""
        for row in self.rows:
            row.emit(e)


def _load_rows(e: Emitter, call: ir.Call) -> None:
    first = call.args[0]
    columns = e.scalar(first.extents[1], "an extent").code
    size = f"{columns} * {_ROWS * size_in_bits(first.buffer.dtype)} // 8"
    bars = f"({barrier_code(e, call.args[-1])},)"
    issue(e, "TMA load", _Rows(e, call), f"delivers={bars}, size={size}")


def _store_rows(e: Emitter, call: ir.Call) -> None:
    issue(e, "TMA store", _Rows(e, call))


# Barriers: of the threads of a block, mbarriers, named barriers, of the grid ----------------------


def _sync(e: Emitter, call: Call) -> None:
    """`T.sync_threads`; there is nothing to order where nothing can race."""
    if str(call.args[0].value) == "warp" or not threads_of(e, "T.sync_threads").races:
        return
    arguments = ", ".join(e.scalar(a, "a barrier").code for a in call.args[1:])
    e.w.line(f"yield me.sync({arguments})")


def _sync_grid(e: Emitter, call: Call) -> None:
    del call
    if e.mask is not None and not e.mask.scalar:
        raise e.refuse("T.sync_grid of some threads")
    e.w.line("yield me.sync_grid()")


def _named_arrive(e: Emitter, call: Call) -> None:
    identity, count = (e.scalar(a, "a barrier").code for a in call.args)
    e.w.line(f"me.named_arrive({identity}, {count})")


def _wait_parity(e: Emitter, call: Call) -> None:
    barrier = barrier_code(e, call.args[0])
    parity = e.scalar(call.args[1], "the parity of a wait")
    e.w.line(f"yield me.wait({barrier}, {parity.code})")


def _arrive(e: Emitter, call: Call) -> None:
    """`T.mbarrier_arrive`, with or without a number of bytes to expect."""
    barrier = barrier_code(e, call.args[0])
    threads = threads_of(e, "an arrival").active_threads(e)
    if call.op != "tirx.ptx_arrive_barrier":
        size = e.scalar(call.args[1], "a number of bytes")
        e.w.line(f"me.expect({barrier}, {size.code} * {threads})")
    if call.op != "tl.mbarrier_expect_tx":
        arrives_at(e, barrier)
        e.w.line(f"me.arrive({barrier}, {threads})")
        e.w.line("yield")


def _tcgen05_arrive(e: Emitter, call: Call) -> None:
    barrier = barrier_code(e, call.args[0])
    arrives_at(e, barrier)
    both = call.annotations.get("use_2cta")
    for each in barriers_of_pair(e, call.args[0]) if both else [barrier]:
        e.w.line(f"me.commit_to('tcgen05 MMA', {each})")
    e.w.line("yield")


def _arrive_later(e: Emitter, call: Call) -> None:
    """An arrival when the copies of cp.async that were issued are done."""
    barrier = barrier_code(e, call.args[0])
    arrives_at(e, barrier)
    threads = threads_of(e, "an arrival").active_threads(e)
    e.w.line(f"me.arrive_later('cp.async', {barrier}, {threads})")
    e.w.line("yield")


def _commit_nothing(_e: Emitter, _call: Call) -> None:
    """A group of no `cp.async`: where there are some, threads have roles."""


_MASKED = {
    "tl.mbarrier_wait_parity": _wait_parity,
    "tirx.ptx_arrive_barrier": _arrive,
    "tirx.ptx_arrive_barrier_expect_tx": _arrive,
    "tl.mbarrier_expect_tx": _arrive,
    "tl.tcgen05_mma_arrive": _tcgen05_arrive,
    "tl.named_barrier_arrive": _named_arrive,
    "tl.sync_grid": _sync_grid,
}


OPERATIONS = Operations(
    rules=Rules(effects={"tirx.ptx_commit_group": _commit_nothing}),
    of_threads=Rules(
        effects={
            **dict.fromkeys(_GEMMS, _gemm),
            **{op: by_active_threads(_wait) for op in _WAITS},
            **{op: by_active_threads(_commit) for op in _COMMITS},
            **dict.fromkeys(_FENCES, _ordering_fence),
            **{op: by_active_threads(rule) for op, rule in _MASKED.items()},
            "tl.fence_proxy_async": _fence,
            "tl.ptx_cp_async": _cp_async,
            "tirx.tvm_storage_sync": by_active_threads(_sync),
            "tl.ptx_cp_async_barrier_noinc": _arrive_later,
        }
    ),
    asynchronous={
        "tl.tileop.tma_copy": together(_tma_copy),
        "tl.tileop.async_copy": together(_async_copy),
        "tl.tileop.wgmma_gemm": together(_wgmma_gemm),
        "tl.tileop.wgmma_gemm_sp": together(_wgmma_gemm),
        **dict.fromkeys(_TCGEN05, together(_tcgen05_gemm)),
        ROWS_LOAD: together(_load_rows),
        ROWS_STORE: together(_store_rows),
    },
    synchronizing={*_WAITS, "tl.tma_store_arrive", *_MASKED} - {"tl.warpgroup_wait"},
)
