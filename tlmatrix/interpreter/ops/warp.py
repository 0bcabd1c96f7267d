"""Operations of a warp or block on a value of each thread: shuffles, votes, ballots, reductions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.interpreter.emit.arrays import named
from tlmatrix.interpreter.emit.floats import as_scalar, rounded
from tlmatrix.interpreter.emit.threads import threads_of
from tlmatrix.interpreter.emit.values import Val, is_float, numpy_name

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call

_SHUFFLES = {
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
    return Val(f"({linear.code} {symbol} {size})", "int32", linear.axes, lo=0, hi=hi)


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
    kind = _SHUFFLES[call.op]
    delta = e.expr(call.args[2])
    width = e.scalar(call.args[3], "the width of a shuffle").code
    outer = e.stored
    if kind == "idx" and delta.scalar:
        # The values of other threads have no effect.
        lane = axis.iota
        e.stored = "", Val(f"({lane.code} % {width} == {delta.code} % {width})", "bool", lane.axes)
    else:
        e.stored = None
    value = e.expr(call.args[1])
    e.stored = outer
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


CALLS = {
    **dict.fromkeys(_INDICES, _index),
    **dict.fromkeys(_SHUFFLES, _shuffle),
    **dict.fromkeys(_VOTES, _vote),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(
        ("tl.ballot", "tl.ballot_sync", "tl.activemask", "tirx.tvm_warp_activemask"), _ballot
    ),
    **dict.fromkeys(("tl.match_any_sync", "tl.match_all_sync"), _match),
    "tl.tl_shuffle_elect": _elect,
}
