"""Barriers: of the threads of a block, mbarriers, named barriers, of the grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.interpreter.emit.threads import threads_of
from tlmatrix.interpreter.emit.threads.issue import (
    arrives_at,
    barrier_code,
    barriers_of_pair,
    by_active_threads,
)

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call


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


_MASKED = {
    "tl.mbarrier_wait_parity": _wait_parity,
    "tirx.ptx_arrive_barrier": _arrive,
    "tirx.ptx_arrive_barrier_expect_tx": _arrive,
    "tl.mbarrier_expect_tx": _arrive,
    "tl.tcgen05_mma_arrive": _tcgen05_arrive,
    "tl.named_barrier_arrive": _named_arrive,
    "tl.sync_grid": _sync_grid,
}
SYNCHRONIZING = frozenset(_MASKED)
EFFECTS = {
    **{op: by_active_threads(rule) for op, rule in _MASKED.items()},
    "tirx.tvm_storage_sync": by_active_threads(_sync),
    "tl.ptx_cp_async_barrier_noinc": _arrive_later,
}
