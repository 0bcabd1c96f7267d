"""Sequences, bindings, branches, attributes, assertions, calls for their effect, and blocks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.usage import sums_from_zero
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.rewrites.threads import is_thread_index
from tlmatrix.interpreter.ir.walk import walk
from tlmatrix.interpreter.runtime.memory import poison

from .access import Buf
from .expressions import both, invert, uniform
from .instrument import Instrument
from .numbers import cast, keep, settle
from .sharing import keep_mask
from .values import LOW_PRECISION, is_float, is_value, literal, memory_name, numpy_name

if TYPE_CHECKING:
    from .emitter import Emitter
    from .values import Val


# Sequences, bindings, branches, attributes, assertions, and calls for their effect ----------------

# Hints to the compiler that do not change what a kernel computes.
_IGNORED_ATTRIBUTES = frozenset(
    {
        "threadblock_swizzle_pattern",
        "tl.assume",
        "tirx.assume",
        "tir.assume",
        "pragma_unroll",
        "tl.min_blocks_per_sm",
        "async_scope",  # TVM's: TileLang has no pass that looks at it
    }
)


def emit_sequence(e: Emitter, node: ir.SeqStmt) -> None:
    """A `SeqStmt`."""
    for child, following in pairwise([*node.seq, None]):
        assert child is not None
        if e.may_shorten and sums_from_zero(child, following):
            assert isinstance(child, ir.Evaluate)
            assert isinstance(following, ir.Evaluate)
            e.from_zero = (child.value, following.value)
        e.stmt(child)


def emit_bind(e: Emitter, node: ir.Bind) -> None:
    """A `Bind`: evaluated here, or where it is used if a variable of it is not bound yet."""
    if is_thread_index(node.value):
        e.vars[node.var] = "the thread index (threadIdx) used as data"  # refused at its use
        return
    if _is_undefined(e, node.value):
        e.deferred[node.var] = node.value
        e.vars.pop(node.var, None)
        return
    # The variable is an `int` in C, whatever the width of the index that it is used in.
    e.vars[node.var] = keep(e, settle(e, e.expr(node.value)), node.var.name)
    e.notify(Instrument.bound, node.var, e.vars[node.var])


def _is_undefined(e: Emitter, value: Any) -> bool:
    return any(
        (node not in e.vars and node not in e.deferred) or isinstance(e.vars.get(node), str)
        for node in walk(value)
        if isinstance(node, ir.Var) and node.dtype != "handle"
    )


def emit_branch(e: Emitter, node: ir.IfThenElse) -> None:
    """An `IfThenElse`: a branch, or both sides under masks."""
    outer = e.mask
    tests = uniform(e, node.condition) if e.axes and outer is None else None
    test = e.expr(node.condition)
    for instrument in e.instruments:
        test = instrument.guard(e, "if", node.condition, test)
    if test.lit is not None:
        case = node.then_case if test.lit else node.else_case
        if case is not None:
            e.stmt(case)
        return
    if test.scalar:
        with e.w.block(f"if {test.code}"), e.where(node.condition, holds=True):
            e.stmt(node.then_case)
        if node.else_case is not None:
            with e.w.block("else"), e.where(node.condition, holds=False):
                e.stmt(node.else_case)
        return
    if tests is None:
        _emit_masked(e, node, test, outer)
        return
    every, none = tests
    with e.w.block(f"if {every}"), e.where(node.condition, holds=True):
        e.stmt(node.then_case)
    with e.w.block(f"elif not {none}"):
        # The condition is written again: this branch may not see temporaries of another.
        _emit_masked(e, node, e.expr(node.condition), outer)
    if node.else_case is not None:
        with e.w.block("else"), e.where(node.condition, holds=False):
            e.stmt(node.else_case)


def _emit_masked(e: Emitter, node: ir.IfThenElse, test: Val, outer: Val | None) -> None:
    """Both branches, each under its mask."""
    for instrument in e.instruments:
        test = instrument.mask(e, node.condition, test)
    test = keep_mask(e, test)
    inverted = invert(e, test) if node.else_case is not None else None
    if inverted is not None and test.inverse is None:
        inverted = keep_mask(e, inverted)
    for case, mask, holds in ((node.then_case, test, True), (node.else_case, inverted, False)):
        if case is not None and mask is not None:
            inner = mask if outer is None else keep_mask(e, both(e, outer, mask))
            with e.inside(mask=inner), e.where(node.condition, holds=holds):
                e.stmt(case)


def emit_attribute(e: Emitter, node: ir.AttrStmt) -> None:
    """An `AttrStmt`, if it is a hint to the compiler."""
    key = node.attr_key
    if key not in _IGNORED_ATTRIBUTES and not key.startswith("pragma_"):
        raise e.refuse(f"the attribute {key}")
    e.stmt(node.body)


def _emit_assertion(e: Emitter, node: ir.AssertStmt) -> None:
    test = e.scalar(node.condition, "an assertion")
    with e.w.block(f"if not {test.code}"):
        e.w.line("raise AssertionError")


def emit_evaluate(e: Emitter, node: ir.Evaluate) -> None:
    """An `Evaluate`: an operation for its effect; a value that nothing uses is dropped."""
    call = node.value
    if not isinstance(call, ir.Call):
        return
    effect = e.rules.effects.get(call.op)
    if effect is not None:
        effect(e, call)
    elif call.op.startswith("tl.tileop."):
        raise e.refuse(f"the tile operation T.{call.op.removeprefix('tl.tileop.')}")
    else:
        e.expr(call)


def emit_call(e: Emitter, node: ir.Call) -> Val:
    """A call whose value is used."""
    rule = e.rules.calls.get(node.op)
    if rule is None:
        raise e.refuse(f"the operation {node.op}")
    return rule(e, node)


# Blocks: their buffers, fresh for every block of the grid, and their annotations ------------------

_SCOPES = frozenset(
    {"global", "shared", "shared.dyn", "shared.tmem"}
    | {"local", "local.fragment", "local.var", "local.reducer"}
)


def emit_block(
    e: Emitter, node: ir.Block, allocate: Callable[[Emitter, ir.Buffer], None] | None = None
) -> None:
    """A block: its annotations, its buffers, its body."""
    outer = [(buf, buf.safe) for buf in e.buffers.values()]
    _annotate(e, node)
    for buffer in node.alloc_buffers:
        (allocate or allocate_buffer)(e, buffer)
    e.stmt(node.body)
    for buf, safe in outer:
        buf.safe = safe  # an annotation holds in its block


def _annotate(e: Emitter, node: ir.Block) -> None:
    """Take note of reducers, safe values and layouts."""
    allocated = {buffer.data: buffer for buffer in node.alloc_buffers}
    for key in ("reducer_info", "reducer_info_v2"):
        for data, info in node.annotations.get(key, {}).items():
            if data in allocated:
                e.reducers[allocated[data].name] = str(_plain(info["op"]))
    for data, value in node.annotations.get("safe_value_map", {}).items():
        for buffer, buf in e.buffers.items():
            if buffer.data is data:
                buf.safe = _safe_value(e, value, buf.dtype)
        if data in allocated:
            e.safe_values[allocated[data].name] = value
    for data, layout in node.annotations.get("layout_map", {}).items():
        if data not in allocated:
            e.layouts[_global_name(e, data)] = layout


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


def _safe_value(e: Emitter, value: Any, dtype: str) -> str:
    if isinstance(value, (bool, int, float)):
        return literal(value, dtype).code
    return cast(e, e.scalar(value, "a safe value"), dtype).code


def _global_name(e: Emitter, data: Any) -> str:
    for buffer, buf in e.buffers.items():
        if buffer.data is data:
            return buf.name
    raise e.refuse(f"a layout of {data.name}, which is not a buffer of the kernel")


def allocate_buffer(e: Emitter, buffer: ir.Buffer) -> None:
    """Make a buffer, poisoned anew for every block that might read what it did not write."""
    e.w.location = buffer.location or e.w.location
    scope, dtype, name = buffer.scope, buffer.dtype, buffer.name
    if scope not in _SCOPES:
        raise e.refuse(f"memory of scope {scope} ({name})")
    if not is_value(dtype):
        raise e.refuse(f"a buffer of dtype {dtype} ({name})")
    shape = tuple(e.scalar(n, "a buffer shape") for n in buffer.shape)
    code = e.w.fresh(name)
    low = LOW_PRECISION.get(dtype)
    packed = buffer.data in e.facts.mixed_views and low is not None
    np_dtype = memory_name(dtype) if packed else numpy_name(dtype)
    variable = scope == "local.var" and buffer not in e.facts.addressed and not packed
    buf = Buf(
        name,
        code,
        dtype,
        shape,
        scope,
        codec=low if packed else None,
        rounding=None if packed else low,
        variable=variable,
    )
    if name in e.safe_values:
        buf.safe = _safe_value(e, e.safe_values[name], dtype)
    e.buffers[buffer] = buf
    extents = "(" + ", ".join(n.code for n in shape) + ",)"
    # TileLang defines a variable with the value 0 where the user gives it none.
    blank = "0" if scope == "local.var" else poison_code(np_dtype, packed=packed)
    if variable:
        e.w.line(f"{code} = {f'np.{np_dtype}({blank})' if is_float(dtype) else blank}")
    elif scope == "global":
        # A workspace of the whole launch, which every block sees.
        e.launch_prologue.line(f"{code} = allocate({extents}, {np_dtype!r})")
    elif buf.static_shape is not None:
        e.fixed.add(code)
        e.prologue.line(f"{code} = np.empty({extents}, {np_dtype!r})")
        if not (e.may_shorten and buffer.data in e.facts.initialized):
            e.w.line(f"{code}.fill({blank})")
    else:
        e.w.line(f"{code} = allocate({extents}, {np_dtype!r})")
    e.notify(Instrument.allocated, buf)


def private_buffer(e: Emitter, buffer: ir.Buffer, threads: str) -> None:
    """Make memory of which each of `threads` threads has a copy, along axis 0."""
    dtype, name = buffer.dtype, buffer.name
    shape = tuple(e.scalar(n, "a buffer shape") for n in buffer.shape)
    code = e.w.fresh(name)
    extents = ", ".join([*(n.code for n in shape), threads])
    e.w.line(f"{code} = allocate(({extents},), {numpy_name(dtype)!r})")
    buf = e.buffers[buffer] = Buf(
        name,
        code,
        dtype,
        shape,
        buffer.scope,
        rounding=LOW_PRECISION.get(dtype),
        private_axes=(0,),
        per_thread=True,
    )
    e.notify(Instrument.allocated, buf)


def poison_code(np_dtype: str, *, packed: bool = False) -> str:
    """Code of what uninitialized memory holds (`runtime.memory.poison`)."""
    if packed and np_dtype in ("int16", "uint8"):
        # All bits set is NaN in every low-precision dtype that lies as integers.
        return "-1" if np_dtype == "int16" else "255"
    value = poison(np_dtype)
    return "NAN" if is_float(np_dtype) else repr(value.item() if hasattr(value, "item") else value)


STATEMENTS: dict[type, Callable[[Emitter, Any], None]] = {
    ir.SeqStmt: emit_sequence,
    ir.Bind: emit_bind,
    ir.IfThenElse: emit_branch,
    ir.AttrStmt: emit_attribute,
    ir.AssertStmt: _emit_assertion,
    ir.Evaluate: emit_evaluate,
    ir.Block: emit_block,
}
