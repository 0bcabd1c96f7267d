"""Choices (`T.if_then_else`, `T.Select`): each value evaluated where it is chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.ir import nodes as ir

from .arrays import consume, free_dest, is_last_use, result
from .floats import as_scalar
from .logic import both, invert
from .masks import keep_mask
from .values import Val, is_float, numpy_name, numpy_type

if TYPE_CHECKING:
    from .emitter import Emitter


def root_choice(value: Any) -> tuple[Any, Any, Any] | None:
    """Condition and both values of an expression that is a choice."""
    if isinstance(value, ir.Call) and value.op == "tirx.if_then_else":
        return value.args[0], value.args[1], value.args[2]
    if isinstance(value, ir.Select):
        return value.condition, value.true_value, value.false_value
    return None


def emit_select(e: Emitter, choice: Any) -> Val:
    """A `Select`, or a call of `T.if_then_else`; each value is evaluated under its mask."""
    parts = root_choice(choice)
    assert parts is not None
    condition, if_true, if_false = parts
    test = e.expr(condition)
    for instrument in e.instruments:
        test = instrument.guard(e, "select", condition, test)
    if test.lit is not None:
        return e.expr(if_true if test.lit else if_false)

    outer = e.mask
    if test.scalar:
        return _by_scalar(e, test, choice)
    if not test.code.isidentifier():
        kept = keep_mask(e, test)
        test = kept if kept.inverse is not None else replace(kept, inverse=test.inverse)
    e.mask = both(e, outer, test)
    a = _value(e, choice, holds=True)
    e.mask = both(e, outer, replace(invert(e, test), owned=False))
    b = _value(e, choice, holds=False)
    e.mask = outer
    return _by_mask(e, test, a, b, choice.dtype)


def _value(e: Emitter, choice: Any, *, holds: bool) -> Val:
    """The value that a choice has where its condition holds, or does not."""
    parts = root_choice(choice)
    assert parts is not None
    condition, if_true, if_false = parts
    node = if_true if holds else if_false
    if isinstance(choice, ir.Select):  # its condition proves nothing to TileLang
        return e.expr(node)
    with e.where(condition, holds=holds):
        return e.expr(node)


def _by_scalar(e: Emitter, test: Val, choice: Any) -> Val:
    dtype = choice.dtype
    dest, e.dest = e.dest, None
    start = len(e.w.lines)
    a = _value(e, choice, holds=True)
    a_lines = e.w.take(start)
    b = _value(e, choice, holds=False)
    b_lines = e.w.take(start)
    e.dest = dest
    if dest is not None:
        dest.reads_left = 1 << 30  # views of it may be read in either branch: do not reuse it
    exact = a.exact and b.exact
    axes = a.axes | b.axes
    if not a_lines and not b_lines and not axes:
        code = f"({a.code} if {test.code} else {b.code})"
        if a.lit is not None and b.lit is not None and is_float(dtype) and dtype != "float64":
            code = f"F32{code}"
        lo = None if a.lo is None or b.lo is None else min(a.lo, b.lo)
        hi = None if a.hi is None or b.hi is None else max(a.hi, b.hi)
        return Val(code, dtype, exact=exact, lo=lo, hi=hi)
    name = e.temp()
    for header, value, lines in ((f"if {test.code}", a, a_lines), ("else", b, b_lines)):
        with e.w.block(header):
            e.w.indented(lines)
            chosen = as_scalar(value)
            if value.axes != axes:
                chosen = f"np.full({e.shape_of(axes)}, {chosen}, np.{numpy_type(dtype)})"
            e.w.line(f"{name} = {chosen}")
    return Val(name, dtype, axes, exact=exact)


def _by_mask(e: Emitter, test: Val, a: Val, b: Val, dtype: str) -> Val:
    """`a` where the mask holds, else `b`, in a place that is free."""
    axes = test.axes | a.axes | b.axes
    exact = a.exact and b.exact
    np_dtype = numpy_name(dtype)
    for kept, other, where in ((a, b, invert(e, test)), (b, a, test)):
        same = kept.axes == axes and numpy_name(kept.dtype) == np_dtype
        if same and (is_last_use(e, kept) or (kept.owned and kept.alias is None)):
            consume(e, kept, other)
            e.w.line(f"np.copyto({kept.code}, {other.code}, where={where.code})")
            return result(e, kept.code, dtype, axes, exact=exact)
    consume(e, a, b)
    out = free_dest(e, axes, np_dtype)
    if out is not None and a.alias is None and b.alias is None:
        e.w.line(f"{out}.fill({b.code})" if b.scalar else f"{out}[...] = {b.code}")
        e.w.line(f"np.copyto({out}, {a.code}, where={test.code})")
        return result(e, out, dtype, axes, exact=exact)
    name = e.temp()
    e.w.line(f"{name} = select({test.code}, {a.code}, {b.code}, np.{numpy_type(dtype)})")
    return Val(name, dtype, axes, exact=exact, owned=True)
