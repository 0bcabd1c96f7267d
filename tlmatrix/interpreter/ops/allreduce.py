"""`T.tvm_thread_allreduce`: combines a value of threads in some dimensions of the block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.interpreter.emit.memory import buffer
from tlmatrix.interpreter.emit.threads import threads_of
from tlmatrix.interpreter.emit.threads.statements import emit_attribute
from tlmatrix.interpreter.emit.values import numpy_name
from tlmatrix.interpreter.ir import nodes as ir

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter

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
    for instrument in e.instruments:
        instrument.overwritten(e, buf)


EFFECTS = {"tirx.tvm_thread_allreduce": _allreduce}
STATEMENTS = {ir.AttrStmt: _attribute}
