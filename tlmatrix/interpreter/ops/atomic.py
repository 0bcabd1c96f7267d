"""Atomics: on tiles, on single elements, loads and stores of flags."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.expressions import is_constant_index
from tlmatrix.interpreter.emit.access import (
    check_constants,
    classify,
    skips_outside,
)
from tlmatrix.interpreter.emit.emitter import Atomic, Rules
from tlmatrix.interpreter.emit.instrument import Instrument
from tlmatrix.interpreter.emit.memory import buffer, load_access, store, to_dims
from tlmatrix.interpreter.emit.numbers import add, affine_of, cast, rounded
from tlmatrix.interpreter.emit.threads import threads_of
from tlmatrix.interpreter.emit.threads.roles import issue
from tlmatrix.interpreter.emit.tiles import Effect, TileOperation, matched, operand, region
from tlmatrix.interpreter.emit.values import Val, is_float, literal
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.rewrites.vectors import TOGETHER
from tlmatrix.interpreter.runtime.memory import atomic_block, atomic_lanes

from .tables import Operations, tile_rule_of_threads

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.access import Access
    from tlmatrix.interpreter.emit.emitter import Emitter

# By operation: what it does, whether its previous value is used, how many elements it spans.
_ELEMENT = {
    "tl.atomic_add_elem_op": ("add", False, 1),
    "tl.atomic_add_ret_elem_op": ("add", True, 1),
    "tl.atomic_addx2_elem_op": ("add", False, 2),
    "tl.atomic_addx4_elem_op": ("add", False, 4),
    "tl.atomic_addx2_ret_elem_op": ("add", True, 2),
    "tl.atomic_addx4_ret_elem_op": ("add", True, 4),
    "tl.atomic_max_elem_op": ("max", False, 1),
    "tl.atomic_max_ret_elem_op": ("max", True, 1),
    "tl.atomic_min_elem_op": ("min", False, 1),
    "tl.atomic_min_ret_elem_op": ("min", True, 1),
    "tl.atomic_or_elem_op": ("or", False, 1),
}
# Memory orders, numbered as in C++.
_ORDERS = ("neither", "acquire", "acquire", "release", "both", "both")


class TileAtomic(TileOperation):
    """`T.atomic_add`, `max`, `min` of a tile, or of one value, into a region."""

    name = rule = "atomic"

    def __init__(self, e: Emitter, call: ir.Call) -> None:
        self.call = call
        self.kind = call.op.removeprefix("tl.tileop.atomic")
        self.dst = region(e, call.args[1])
        if isinstance(call.args[0], ir.Region):
            self.reads = ("src",)
            self.src, self.dst = matched(e, region(e, call.args[0]), self.dst, "an atomic")
        self.predicated = (self.dst,)

    @property
    def effects(self) -> Sequence[Effect]:
        """Reads the source, adds to the destination."""
        return [*super().effects[: len(self.reads)], Effect(self.dst, "atomic", kind=self.kind)]

    def emit(self, e: Emitter) -> None:
        """Write the atomic."""
        buf = self.dst.buf
        if self.reads:
            value = operand(e, self.src)
        else:
            value = cast(e, e.scalar(self.call.args[0], "an atomic of a value"), buf.dtype).code
        check_constants(e, self.dst)
        # Predicated like T.copy on its ranges; a single index is guarded in global memory only.
        guard = skips_outside(e, buf) or all(d.extent is not None for d in self.dst.dims)
        e.w.line(
            f"atomic_block({self.kind!r}, {buf.code}, {buf.codec}, {self.dst.dims_code}, {value}, "
            f"None, {buf.name!r}, {guard})"
        )


def _by_tma(e: Emitter, call: ir.Call) -> None:
    """An atomic of a tile in a block of several roles.

    TMA reads the tile through the asynchronous proxy; the thread that issues it waits for that
    (TileLang, `src/cuda/op/atomic_add.cc`).
    """
    threads = threads_of(e, "T.atomic_add")
    if not (call.annotations.get("use_tma") and threads.races):
        tile_rule_of_threads(TileAtomic)(e, call)
        return
    with threads.without_threads(e):
        issue(e, "TMA store", TileAtomic(e, call))
        e.w.line("me.commit('TMA store')")
        e.w.line("yield me.wait_groups('TMA store', 0, reads=True)")


# Single elements --------------------------------------------------------------------------


def _ordering(e: Emitter, call: ir.Call, *, is_access: bool) -> AbstractContextManager[None]:
    """Inside, accesses belong to an atomic operation with a memory order."""
    return e.inside(atomic=Atomic(is_access or e.atomic.is_access, _memory_order(call)))


def _memory_order(call: ir.Call) -> str:
    """What an atomic orders; T.atomic_max and T.atomic_min give the weakest order by default."""
    position = 1 if call.op == "tl.atomic_load_elem_op" else 2
    if len(call.args) <= position or not isinstance(call.args[position], ir.IntImm):
        return "unsaid"
    order = call.args[position].value
    if order == 0 and ("atomic_max" in call.op or "atomic_min" in call.op):
        return "unsaid"
    return _ORDERS[order]


def _element_atomic(e: Emitter, call: ir.Call) -> Val:
    """An atomic on one element (or 2 or 4 consecutive ones) for each iteration."""
    kind, previous, width = _ELEMENT[call.op]
    if e.agents.several and not e.axes:
        threads_of(e, "an atomic").thread_axis(e, "an atomic")  # every thread does it
    target = pointed_to(e, call.args[0], "an atomic")
    buf = buffer(e, target.buffer)
    value = literal(0, buf.dtype)
    together = int(call.annotations.get(TOGETHER, width))
    if together > 1:
        e.vector_atomics[buf.name] = max(together, e.vector_atomics.get(buf.name, 1))
    constant = [is_constant_index(i) for i in target.indices]
    with _ordering(e, call, is_access=False):
        for k in range(width):
            indices = [e.expr(i) for i in target.indices]
            if width == 1:
                value = cast(e, e.expr(call.args[1]), buf.dtype)
            else:
                source = pointed_to(e, call.args[1], "an atomic")
                others = [e.expr(i) for i in source.indices]
                others[-1] = _shifted(others[-1], k)
                access = classify(e, buffer(e, source.buffer), others, [False] * len(others))
                value = cast(e, load_access(e, access), buf.dtype)
                indices[-1] = _shifted(indices[-1], k)
            access = classify(e, buf, indices, constant)
            value = emit_atomic(e, access, value, kind, previous=previous)
    return value


def pointed_to(e: Emitter, pointer: Any, what: str) -> ir.BufferLoad:
    """The element that a pointer argument points to."""
    if not isinstance(pointer, ir.Call) or pointer.op != "tl.access_ptr":
        name = pointer.op if isinstance(pointer, ir.Call) else type(pointer).__name__
        raise e.refuse(f"{what} through {name}")
    load: ir.BufferLoad = pointer.args[0]
    return load


def _shifted(index: Val, offset: int) -> Val:
    if offset == 0:
        return index
    other = literal(offset, "int32")
    if index.scalar:
        return add(index, other)
    affine = affine_of("+", index, other)
    return Val(f"({index.code} + {offset})", index.dtype, index.axes, affine=affine)


def emit_atomic(e: Emitter, access: Access, value: Val, kind: str, *, previous: bool) -> Val:
    """Write an atomic on an element for each iteration; returns its previous values."""
    value = rounded(e, value)
    check_constants(e, access)
    atomic = replace(e.atomic, kind=kind, reorderable=value.lit is not None)
    with e.inside(atomic=atomic):
        e.notify(Instrument.before_atomic, access, value, previous=previous)
    found = _emit_atomic(e, access, value, kind, previous=previous)
    e.notify(Instrument.after_write)
    return found


def _emit_atomic(e: Emitter, access: Access, value: Val, kind: str, *, previous: bool) -> Val:
    buf = access.buf
    everything = access.axes | value.axes | e.mask_axes
    if e.all_axes - everything:
        # Every iteration performs the atomic, whether or not it shows in the index.
        everything = e.all_axes
    skips = skips_outside(e, buf)
    if access.block and access.axes and access.axes == everything and not previous:
        where = to_dims(e, e.mask, access) if e.mask is not None else "None"
        e.w.line(
            f"atomic_block({kind!r}, {buf.code}, {buf.codec}, {access.dims_code}, "
            f"{to_dims(e, value, access)}, {where}, {buf.name!r}, {skips})"
        )
        return literal(0, buf.dtype)
    shape = e.shape_of(everything) if everything else "()"
    name = e.temp("old")
    e.w.line(
        f"{name} = atomic_lanes({kind!r}, {buf.code}, {buf.codec}, {access.index_code}, "
        f"{value.code}, {e.mask_code}, {shape}, {buf.name!r}, {skips}, {previous})"
    )
    if not everything and not is_float(buf.dtype):
        return Val(f"int({name})", buf.dtype)
    return Val(name if everything else f"{name}[()]", buf.dtype, everything)


def _atomic_load(e: Emitter, call: ir.Call) -> Val:
    with _ordering(e, call, is_access=True), e.agents.untracked():
        return e.expr(call.args[0].args[0])


def _atomic_store(e: Emitter, call: ir.Call) -> None:
    load = call.args[0].args[0]
    with _ordering(e, call, is_access=True), e.agents.untracked():
        store(e, buffer(e, load.buffer), load.indices, call.args[1])


OPERATIONS = Operations(
    tiles={f"tl.tileop.atomic{kind}": TileAtomic for kind in ("add", "max", "min")},
    rules=Rules(
        calls={**dict.fromkeys(_ELEMENT, _element_atomic), "tl.atomic_load_elem_op": _atomic_load},
        effects={"tl.atomic_store_elem_op": _atomic_store},
    ),
    of_threads=Rules(effects={"tl.tileop.atomicadd": _by_tma}),
    each_thread=_ELEMENT,
    functions=(atomic_block, atomic_lanes),
)
