"""Operations of a warp or block on a value of each thread: shuffles, votes, ballots, reductions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.interpreter.emit.emitter import Rules, Stored
from tlmatrix.interpreter.emit.instrument import Instrument
from tlmatrix.interpreter.emit.memory import buffer
from tlmatrix.interpreter.emit.numbers import as_scalar, named, rounded
from tlmatrix.interpreter.emit.threads import threads_of
from tlmatrix.interpreter.emit.threads.statements import emit_attribute
from tlmatrix.interpreter.emit.values import Val, expression, is_float, numpy_name
from tlmatrix.interpreter.ir import nodes as ir

from .tables import Operations

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call


SHUFFLES = {
    "tl.shfl_xor_sync": "xor",
    "tl.shfl_down_sync": "down",
    "tl.shfl_up_sync": "up",
    "tl.shfl_sync": "idx",
    "tirx.tvm_warp_shuffle": "idx",
    "tirx.tvm_warp_shuffle_up": "up",
    "tirx.tvm_warp_shuffle_down": "down",
}
# By operation: what it asks, the position of its value, whether it asks the whole block.
_VOTES = {
    "tl.any_sync": ("any", 1, False),
    "tl.all_sync": ("all", 1, False),
    "tl.syncthreads_count": ("count", 0, True),
    "tl.syncthreads_and": ("all", 0, True),
    "tl.syncthreads_or": ("any", 0, True),
}
_REDUCTIONS = tuple(f"tl.warp_reduce_{kind}" for kind in ("sum", "max", "min", "bitand", "bitor"))
_INDICES = ("tl.get_lane_idx", "tl.get_warp_idx", "tl.get_warp_idx_sync", "tl.get_warp_group_idx")


def _index(e: Emitter, call: Call) -> Val:
    """The number of the lane in its warp, of the warp, of the warp group."""
    linear = threads_of(e, call.op).linear_index(e)
    sizes = [int(a.value) for a in call.args]
    size = sizes[0] if sizes else 32
    if call.op == "tl.get_warp_group_idx":
        size *= sizes[1] if sizes[1:] else 4
    symbol = "%" if call.op == "tl.get_lane_idx" else "//"
    hi = size - 1 if symbol == "%" else None
    code = expression(f"({{}} {symbol} {size})", linear)
    return Val(code, "int32", linear.axes, lo=0, hi=hi)


def _of_each_thread(e: Emitter, code: str, dtype: str) -> Val:
    """A value of each thread, from a runtime function of the mask and the number of threads."""
    axis = threads_of(e, "an operation of a warp").thread_axis(e, "an operation of a warp")
    name = e.temp("lanes")
    e.w.line(f"{name} = {code.format(f'{e.mask_code}, {axis.extent.code}')}")
    return Val(name, dtype, axis.iota.axes, owned=True)


def _array(value: Val) -> str:
    if value.scalar:
        code = as_scalar(value) if is_float(value.dtype) else value.code
        return f"np.asarray({code}, np.{numpy_name(value.dtype)})"
    return value.code


def _shuffle(e: Emitter, call: Call) -> Val:
    axis = threads_of(e, call.op).thread_axis(e, call.op)
    kind = SHUFFLES[call.op]
    delta = e.expr(call.args[2])
    width = e.scalar(call.args[3], "the width of a shuffle").code
    stored = None
    if kind == "idx" and delta.scalar:
        # The values of other threads have no effect.
        code = f"({axis.iota.code} % {width} == {delta.code} % {width})"
        stored = Stored("", Val(code, "bool", axis.iota.axes))
    with e.inside(stored=stored):
        value = e.expr(call.args[1])
    code = f"shuffle({kind!r}, {_array(value)}, {delta.code}, {width}, {{}})"
    return _of_each_thread(e, code, value.dtype)


def _vote(e: Emitter, call: Call) -> Val:
    kind, position, whole = _VOTES[call.op]
    t = threads_of(e, call.op)
    axis = t.thread_axis(e, call.op)
    if whole and len(t.intervals) > 1:
        raise e.refuse(f"{call.op} in a block of several roles")
    value = e.expr(call.args[position])
    code = f"vote({kind!r}, {value.code}, {e.mask_code}, {axis.extent.code}, {whole})"
    return named(e, code, "int32", (axis.iota,))


def _reduce(e: Emitter, call: Call) -> Val:
    threads_of(e, call.op).thread_axis(e, call.op)
    value = e.expr(call.args[0])
    kind = call.op.removeprefix("tl.warp_reduce_")
    found = _of_each_thread(e, f"warp_reduce({kind!r}, {_array(value)}, {{}})", value.dtype)
    return rounded(e, replace(found, exact=False))


def _ballot(e: Emitter, call: Call) -> Val:
    threads_of(e, call.op).thread_axis(e, call.op)
    if call.op.endswith("activemask"):
        return _of_each_thread(e, "ballot(True, {})", call.dtype)
    return _of_each_thread(e, f"ballot({e.expr(call.args[-1]).code}, {{}})", "uint64")


def _match(e: Emitter, call: Call) -> Val:
    value = e.expr(call.args[1])
    kind = "any" if "any" in call.op else "all"
    return _of_each_thread(e, f"match_lanes({kind!r}, {value.code}, {{}})", "uint32")


def _elect(e: Emitter, call: Call) -> Val:
    t = threads_of(e, "T.shuffle_elect")
    size = int(call.args[0].value) or t.index.count
    axis = t.thread_axis(e, "T.shuffle_elect")
    low = t.intervals[t.role][0]
    return named(e, f"elect({size}, {low}, {axis.extent.code})", "bool", (axis.iota,))


# `T.tvm_thread_allreduce`: combines a value of threads in some dimensions of the block ------------

_COMBINERS = {ir.Add: "add", ir.Mul: "multiply", ir.Max: "fmax", ir.Min: "fmin"}


def _attribute(e: Emitter, node: ir.AttrStmt) -> None:
    """The attribute around a reduction says how it combines values."""
    if node.attr_key != "reduce_scope":
        emit_attribute(e, node)
        return
    kind = node.node.combiner
    if kind not in _COMBINERS:
        raise e.refuse(f"a reduction over threads by {kind.__name__}")
    t = threads_of(e, "a reduction over threads")
    outer, t.combiner = t.combiner, _COMBINERS[kind]
    e.stmt(node.body)
    t.combiner = outer


def _allreduce(e: Emitter, call: ir.Call) -> None:
    """The reduction of one value."""
    t = threads_of(e, "T.tvm_thread_allreduce")
    axis = t.thread_axis(e, "T.tvm_thread_allreduce")
    if not t.combiner or int(call.args[0].value) != 1 or len(t.intervals) > 1:
        raise e.refuse("T.tvm_thread_allreduce of several values or in a role")
    value = e.expr(call.args[1])
    reduced = {t.index.axis_of(v) for v in call.args[4:] if t.index.is_axis(v)}
    load = call.args[3]
    buf = buffer(e, load.buffer)
    if not buf.private_axes:
        raise e.refuse(f"T.tvm_thread_allreduce into {buf.name}")
    index = ", ".join(e.scalar(i, "an index").code for i in load.indices)
    groups = e.prologue.fresh("groups")
    x, y, _ = t.index.extents
    linear = f"np.arange({t.index.count})"
    parts = [f"{linear} % {x}", f"{linear} // {x} % {y}", f"{linear} // {x * y}"]
    kept = [k for k in range(3) if k not in reduced]
    key = " + ".join(f"({parts[k]}) * {t.index.count**n}" for n, k in enumerate(kept))
    e.prologue.line(f"{groups} = np.unique({key or '0 * ' + linear}, return_inverse=True)[1]")
    code = value.code
    if value.scalar:
        code = f"np.full({axis.extent.code}, {value.code}, np.{numpy_name(value.dtype)})"
    e.w.line(f"{buf.code}[{index}] = over_threads(np.{t.combiner}, {code}, {groups})")
    e.notify(Instrument.overwritten, buf)


OPERATIONS = Operations(
    of_threads=Rules(
        statements={ir.AttrStmt: _attribute},
        calls={
            **dict.fromkeys(_INDICES, _index),
            **dict.fromkeys(SHUFFLES, _shuffle),
            **dict.fromkeys(_VOTES, _vote),
            **dict.fromkeys(_REDUCTIONS, _reduce),
            **dict.fromkeys(
                ("tl.ballot", "tl.ballot_sync", "tl.activemask", "tirx.tvm_warp_activemask"),
                _ballot,
            ),
            **dict.fromkeys(("tl.match_any_sync", "tl.match_all_sync"), _match),
            "tl.tl_shuffle_elect": _elect,
        },
        effects={"tirx.tvm_thread_allreduce": _allreduce},
    ),
)
