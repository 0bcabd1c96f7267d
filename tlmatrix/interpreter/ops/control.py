"""Jumps, assertions, assumptions, prints, tests over a buffer, and hints to the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.loops import JUMPS
from tlmatrix.interpreter.emit.arrays import named
from tlmatrix.interpreter.emit.casts import plain
from tlmatrix.interpreter.emit.logic import both, invert
from tlmatrix.interpreter.emit.memory import buffer
from tlmatrix.interpreter.emit.values import Val, literal
from tlmatrix.interpreter.ir.rewrites.builtins import HALF_TOWARD_ZERO, extern_name
from tlmatrix.interpreter.ir.text import text_of

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call

_MESSAGE = "debug_print_msg"
PRINTS = ("debug_print_var", "debug_print_buffer_value", _MESSAGE)
_PROFILER = "TL_IKET_EVENT"
"""How the names of the profiler's events begin."""
# Hints that do not change what a kernel computes.
_IGNORED = frozenset(
    {
        "tirx.tvm_storage_sync",
        "tl.sync_warp",
        "tl.pdl_trigger",
        "tl.pdl_sync",
        "tl.no_set_max_nreg",
        "tl.set_max_nreg",
        "tl.annotate_producer_reg_dealloc",
        "tl.annotate_consumer_reg_alloc",
    }
)


def _ignore(e: Emitter, call: Call) -> None:
    del e, call


def _jump(e: Emitter, call: Call) -> None:
    if e.agents.jump(e, call):
        return
    if e.mask is not None:
        raise e.refuse("a jump that only some iterations of a parallel loop take")
    e.w.line(JUMPS[call.op])


def _assert(e: Emitter, call: Call) -> None:
    _require(e, call.args[0], "T.device_assert failed")


def _assume(e: Emitter, call: Call) -> None:
    # The compiler drops guards on the strength of it: false, anything may happen.
    condition = text_of(call.args[0])
    _require(e, call.args[0], f"T.assume({condition}) does not hold (Assume: {condition})")


def _require(e: Emitter, condition: Any, message: str) -> None:
    """Raise unless the condition holds, in every active iteration."""
    test = e.expr(condition)
    if e.mask is not None:
        test = invert(e, both(e, e.mask, invert(e, test)))
    code = test.code if test.scalar else f"{test.code}.all()"
    with e.w.block(f"if not {code}"):
        e.w.line(f"raise AssertionError({message!r})")


def _any_or_all(e: Emitter, call: Call) -> Val:
    """`T.any_of` and `T.all_of` of some elements of a buffer."""
    load = call.args[0].args[0]
    buf = buffer(e, load.buffer)
    extent = e.scalar(call.args[1], "an extent")
    index = ", ".join(e.scalar(i, "an index").code for i in load.indices)
    start = e.temp("offset")
    e.w.line(f"{start} = int(np.ravel_multi_index(({index},), {buf.code}.shape))")
    function = "np.any" if call.op == "tl.any_of" else "np.all"
    return Val(f"bool({function}({buf.code}.reshape(-1)[{start}:{start} + {extent.code}]))", "bool")


def _call_extern(e: Emitter, call: Call) -> Val:
    """`T.print`, and events of the profiler; other functions are the user's own CUDA."""
    name = extern_name(call)
    if name == HALF_TOWARD_ZERO:
        half = plain(e, call.args[1])
        code = f"half_toward_zero({half.code})"
        return named(e, code, call.dtype, (half,)) if half.axes else Val(code, call.dtype)
    if name.startswith(_PROFILER):
        return literal(0, "int32")
    if name not in PRINTS:
        raise e.refuse(f"the operation {call.op} of {text_of(call.args[0])}")
    if name == _MESSAGE:
        e.w.line(f"show({str(call.args[1].value)!r}, None, {e.mask_code})")
        return literal(0, "int32")
    value = plain(e, call.args[-1])
    # A message, and for an element its buffer and index.
    text = " ".join(str(a.value) for a in call.args[1:3][: len(call.args) - 2])
    message = repr(text)
    if len(call.args) > 4:
        message = f"{text + '['!r} + str({e.expr(call.args[3]).code}) + ']'"
    e.w.line(f"show({message}, {value.code}, {e.mask_code})")
    return literal(0, "int32" if call.dtype == "handle" else call.dtype)


CALLS = {
    "tl.any_of": _any_or_all,
    "tl.all_of": _any_or_all,
    "tirx.call_extern": _call_extern,
}
EFFECTS = {
    **dict.fromkeys(_IGNORED, _ignore),
    **dict.fromkeys(JUMPS, _jump),
    **dict.fromkeys(("tl.device_assert", "tl.device_assert_with_msg"), _assert),
    "tirx.assume": _assume,
}
