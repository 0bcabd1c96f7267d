"""Operations at which threads meet: barriers, shuffles, reductions over threads, atomics."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.ops.control import PROFILER
from tlmatrix.interpreter.ops.warp import SHUFFLES
from tlmatrix.interpreter.runtime.lanes import source_lanes
from tlmatrix.interpreter.runtime.mathematics import fmax, fmin

from .arithmetic import NOTHING, statement
from .expressions import cast
from .scans import scan
from .values import Val, split

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from tlmatrix.interpreter.ir import nodes as ir
    from tlmatrix.interpreter.runtime.codecs import Array

    from .emit import Emitter
    from .machine import Machine

_REDUCTION = re.compile(
    r"tl::AllReduce<tl::(?P<op>\w+), (?P<threads>\d+), (?P<scale>\d+), (?P<offset>\d+), "
    r"(?:tl::NamedBarrier<(?P<named>\d+)>|tl::SyncThreadsBarrier)"
    r"(?:, (?P<batch>\d+), (?P<stride>\d+))?>::(?P<run>run|run_batch)$"
)
_COMBINE: dict[str, Any] = {
    "SumOp": np.add,
    "MaxOp": fmax,
    "MinOp": fmin,
    "MaxOpNan": np.maximum,
    "MinOpNan": np.minimum,
    "BitAndOp": np.bitwise_and,
    "BitOrOp": np.bitwise_or,
    "BitXorOp": np.bitwise_xor,
}
_WARP_REDUCTIONS = {
    "tl.warp_reduce_sum": "SumOp",
    "tl.warp_reduce_max": "MaxOp",
    "tl.warp_reduce_min": "MinOp",
    "tl.warp_reduce_bitand": "BitAndOp",
    "tl.warp_reduce_bitor": "BitOrOp",
}
# By operation: how values are combined, and how many there are.
_ATOMICS = {
    f"tl.atomic_{name}{returned}_elem_op": (combine, width)
    for name, combine, width in (
        *(("add", "add", 1), ("addx2", "add", 2), ("addx4", "add", 4)),
        *(("max", "maximum", 1), ("min", "minimum", 1), ("or", "bitwise_or", 1)),
    )
    for returned in ("", "_ret")
}


def _sync(e: Emitter, call: ir.Call) -> Val:
    """`tvm_storage_sync(scope[, barrier, threads])`."""
    scope = str(call.args[0].value)
    if scope == "warp":
        e.line(f"m.warp_synchronized({e.mask})")
        return NOTHING
    if scope not in ("shared", "shared.dyn"):
        raise e.refuse(f"a barrier of {scope}")
    numbers = [int(each.value) for each in call.args[1:]]
    synchronize(e, *numbers)
    return NOTHING


def synchronize(e: Emitter, number: int = 0, count: int = 0) -> None:
    """Write a wait at a barrier of the block."""
    if e.suspends:
        e.line(f"yield from m.synchronize({e.mask}, {number}, {count})")
    else:
        e.line(f"m.synchronize_all({e.mask}, {number}, {count})")


def _sync_grid(e: Emitter, call: ir.Call) -> Val:
    del call
    e.line(f"yield from m.synchronize_grid({e.mask})")
    return NOTHING


def _of_barrier(method: str) -> Callable[[Emitter, ir.Call], Val]:
    """What calls a method of the machine with an mbarrier, and a number if there is one."""

    def write(e: Emitter, call: ir.Call) -> Val:
        if len(call.args) > (1 if method.startswith("arrive") else 2):
            raise e.refuse("an arrival at a barrier of another block")
        numbers = [e.expr(each).code for each in call.args[1:]]
        e.line(f"m.{method}({', '.join([e.barrier(call.args[0]), *numbers, e.mask])})")
        return NOTHING

    return write


def _arrive_expect(e: Emitter, call: ir.Call) -> Val:
    _of_barrier("expect")(e, call)
    return _of_barrier("arrive")(e, replace(call, args=call.args[:1]))


def _wait(e: Emitter, call: ir.Call) -> Val:
    parity = e.expr(call.args[1])
    e.line(f"yield from m.wait({e.barrier(call.args[0])}, {parity.code}, {e.mask}, {e.site()})")
    return NOTHING


def _set_registers(e: Emitter, call: ir.Call) -> Val:
    e.line(f"m.set_registers({int(call.args[0].value)}, {e.mask}, {e.site()})")
    return NOTHING


def _elect(e: Emitter, call: ir.Call) -> Val:
    """`tl_shuffle_elect(threads)`: the first lane of every so many threads; 0 for of the block."""
    del e
    extent = int(call.args[0].value)
    span = -(-extent // 32) * 32
    code = f"(m.thread[0] % {span} == 0)" if extent else "(m.thread[0] == 0)"
    return Val(code, "bool", fixed=True)


def _shuffle(e: Emitter, call: ir.Call) -> Val:
    """`shfl(mask, value, lane or distance, width[, warp size])`."""
    value, delta = e.expr(call.args[1]), e.expr(call.args[2])
    width = int(call.args[3].value) if len(call.args) > 3 else 32
    code = f"shuffled(m, {SHUFFLES[call.op]!r}, {value.code}, {delta.code}, {width}, {e.mask})"
    return e.let(Val(code, split(call.dtype)[0]))


def _active(e: Emitter, call: ir.Call) -> Val:
    return e.let(Val(f"active(m, {e.mask})", call.dtype))


def _warp_reduce(e: Emitter, call: ir.Call) -> Val:
    value = e.expr(call.args[0])
    code = f"reduced(m, {_WARP_REDUCTIONS[call.op]!r}, {value.code}, 32, 1, {e.mask})"
    return e.let(Val(code, split(call.dtype)[0]))


def _extern(e: Emitter, call: ir.Call) -> Val:
    """`tl::AllReduce<...>`: `run(value, workspace)` or `run_batch(values, workspace)`; scans."""
    name = str(call.args[0].value)
    if name.startswith(PROFILER):
        return NOTHING
    found = _REDUCTION.match(name)
    if found is None:
        return scan(e, call)
    if found["run"] == "run":
        (total,) = _reduction(e, call, found, [e.expr(call.args[1])])
        return e.rounded(Val(total, split(call.dtype)[0]))
    place, dtype, first = e.pointer(call.args[1])
    if place.kind != "local":
        raise e.refuse(f"{name} of {place.name}")
    indices = [e.apply(f"({{}} + {k})", "int32", first) for k in range(int(found["batch"]))]
    values = [e.load_local(place, dtype, index, 1) for index in indices]
    for index, total in zip(indices, _reduction(e, call, found, values), strict=True):
        e.store_local(place, dtype, index, 1, e.rounded(Val(total, dtype)))
    return NOTHING


def _reduction(e: Emitter, call: ir.Call, found: re.Match[str], values: list[Val]) -> list[str]:
    """Write a reduction over threads of values that share barriers; the names of the totals."""
    threads, scale, offset = (int(found[k]) for k in ("threads", "scale", "offset"))
    if threads % scale or (threads // scale).bit_count() != 1 or scale.bit_count() != 1:
        raise e.refuse(f"a reduction over {threads // scale} threads that are {scale} apart")
    count, stride = int(found["named"] or 0), int(found["stride"] or 0)
    totals = [e.name("total") for _ in values]
    for total, value in zip(totals, values, strict=True):
        e.line(f"{total} = np.array({value.code})")
    while threads > max(scale, 32):
        place, kind, index = e.pointer(call.args[2])
        view = e.view(place, kind)
        slots = [f"{index.code} + {k * stride - offset}" for k in range(len(totals))]
        synchronize(e, 1 if found["named"] else 0, count)
        for total, slot in zip(totals, slots, strict=True):
            e.line(f"{view}.store({slot} + m.thread[0], {total}, 1, {e.mask}, {e.site()})")
        synchronize(e, 2 if found["named"] else 0, count)
        for k, total in enumerate(totals):
            other = f"{index.code} + {k * stride} + ((m.thread[0] - {offset}) ^ {threads // 2})"
            e.line(
                f"{total} = combined({found['op']!r}, {total}, "
                f"{view}.load({other}, 1, {e.mask}, {e.site()}))"
            )
        threads //= 2
    if threads > scale:
        for total in totals:
            e.line(f"{total} = reduced(m, {found['op']!r}, {total}, {threads}, {scale}, {e.mask})")
    return totals


def _atomic(e: Emitter, call: ir.Call) -> Val:
    combine, width = _ATOMICS[call.op]
    place, dtype, index = e.pointer(call.args[0])
    if place.kind == "local":
        raise e.refuse(f"{call.op} on {place.name}")
    view = e.view(place, dtype, writes=True)
    if width > 1 and split(getattr(call.args[1], "dtype", "handle"))[0] == "handle":
        source, kind, start = e.pointer(call.args[1])
        if source.kind == "local":
            value = e.load_local(source, kind, start, width)
        else:
            code = f"{e.view(source, kind)}.load({start.code}, {width}, {e.mask}, {e.site()})"
            value = Val(code, kind, width)
    else:
        value = e.expr(call.args[1])
    value = cast(e, value, dtype) if value.dtype != dtype else value
    old, returns = e.name("old"), "_ret_" in call.op
    e.by_order |= returns
    e.line(
        f"{old} = {view}.update({index.code}, {value.code}, np.{combine}, {width}, {e.mask}, "
        f"{e.site()}, {returns})"
    )
    return Val(old, dtype, width)


def _atomic_load(e: Emitter, call: ir.Call) -> Val:
    place, dtype, index = e.pointer(call.args[0])
    e.by_order = True
    # The complement of a site is an atomic there.
    code = f"{e.view(place, dtype)}.load({index.code}, 1, {e.mask}, ~{e.site()})"
    return e.let(Val(code, dtype))


def _atomic_store(e: Emitter, call: ir.Call) -> Val:
    place, dtype, index = e.pointer(call.args[0])
    view, value = e.view(place, dtype, writes=True), e.expr(call.args[1])
    rest = f"replaced, 1, {e.mask}, {e.site()}, False"
    e.line(f"{view}.update({index.code}, {value.code}, {rest})")
    return NOTHING


OPERATIONS: dict[str, Any] = {
    "tirx.tvm_storage_sync": _sync,
    "tl.sync_grid": _sync_grid,
    "tirx.ptx_init_barrier_thread_count": _of_barrier("initialize"),
    "tirx.ptx_arrive_barrier": _of_barrier("arrive"),
    "tirx.ptx_arrive_barrier_expect_tx": _arrive_expect,
    "tl.ptx_cp_async_barrier_noinc": _of_barrier("arrive_after_copies"),
    "tl.mbarrier_expect_tx": _of_barrier("expect"),
    "tl.mbarrier_wait_parity": _wait,
    "tl.fence_proxy_async": statement("m.fence_proxy({mask})"),
    "tl.sync_warp": statement("m.warp_synchronized({mask})"),
    "tl.set_max_nreg": _set_registers,
    "tl.tl_shuffle_elect": _elect,
    **dict.fromkeys(SHUFFLES, _shuffle),
    **dict.fromkeys(("tirx.tvm_warp_activemask", "tl.activemask"), _active),
    **dict.fromkeys(_WARP_REDUCTIONS, _warp_reduce),
    "tirx.call_extern": _extern,
    "tirx.call_pure_extern": _extern,
    **dict.fromkeys(_ATOMICS, _atomic),
    "tl.atomic_load_elem_op": _atomic_load,
    "tl.atomic_store_elem_op": _atomic_store,
    **dict.fromkeys(
        (
            "tl.ptx_fence_barrier_init",
            "tl.prefetch_tma_descriptor",
            "tl.no_set_max_nreg",
            "tl.annotate_producer_reg_dealloc",
            "tl.annotate_consumer_reg_alloc",
            "tl.warpgroup_fence_operand",
            "tl.pdl_sync",
            "tl.pdl_trigger",
        ),
        statement(""),  # without effect here
    ),
}


# What generated source calls ----------------------------------------------------------------------


def combined(kind: str, a: Any, b: Any) -> Array:
    """Two values of each lane as a reduction combines them."""
    combine: Callable[..., Array] = _COMBINE[kind]
    return combine(np.ascontiguousarray(a), np.ascontiguousarray(b))


def replaced(old: Any, new: Any) -> Any:
    """What an atomic store leaves of two values."""
    del old
    return new


def reduced(m: Machine, kind: str, value: Any, threads: int, scale: int, mask: Any) -> Array:
    """A value over the lanes of each `threads` that are `scale` apart, in all of them."""
    m.warp_synchronized(mask)
    total = np.broadcast_to(np.asarray(value), (m.count,))
    offset = threads // 2
    while offset >= scale:
        total = combined(kind, total, total[m.lanes ^ offset])
        offset //= 2
    return total


def shuffled(m: Machine, kind: str, value: Any, delta: Any, width: int, mask: Any) -> Array:
    """Values of other lanes of the warp, of groups of `width` lanes (CUDA's `__shfl_sync`)."""
    m.warp_synchronized(mask)
    full = np.broadcast_to(np.asarray(value), (m.count,))
    lane = m.lanes % 32
    source = source_lanes(kind, np.asarray(delta), width, lane)
    found: Array = full[m.lanes - lane + source]
    return found


def active(m: Machine, mask: Any) -> Array:
    """A bit for each lane of the warp that is switched on, in all lanes."""
    bits = m.warps(True if mask is None else mask) @ (1 << np.arange(32))
    return np.repeat(bits, 32)


def side_by_side(m: Machine, roles: Sequence[Generator[Any, None, None]]) -> Any:
    """Run parts of a program that wait for one another, each until it waits."""
    running = list(roles)
    while running:
        before, waits = m.progress, []
        for role in list(running):
            try:
                waits.append(next(role))
            except StopIteration:
                running.remove(role)
                m.progress += 1
        if running and m.progress == before:
            yield ", ".join(map(str, waits))


FUNCTIONS = (combined, replaced, reduced, shuffled, active, side_by_side)
