"""Conditions: comparisons, boolean operations, and tests of a condition for all iterations."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import any_of

from .arrays import consume, named, pure
from .integers import add, scalar_affine, settle, subtract, times
from .values import Val, is_float, is_int, literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from .emitter import Emitter

_INVERSE = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_COMPARE = {**_ORDER, "==": operator.eq, "!=": operator.ne}


def _compare(e: Emitter, node: ir.Compare) -> Val:
    symbol = node.symbol
    a, b = settle(e, e.expr(node.a)), settle(e, e.expr(node.b))
    if a.lit is not None and b.lit is not None:
        return literal(_COMPARE[symbol](a.lit, b.lit), "bool")
    known = _decided(symbol, a, b) if e.decides_comparisons else None
    if known is not None:
        return literal(known, "bool")
    code = f"({a.code} {symbol} {b.code})"
    if is_float(a.dtype):
        if a.scalar and b.scalar:
            return Val(code, "bool")
        return named(e, code, "bool", (a, b))
    return pure(e, code, "bool", (a, b), inverse=f"({a.code} {_INVERSE[symbol]} {b.code})")


def _decided(symbol: str, a: Val, b: Val) -> bool | None:
    """What a comparison is for all integers that its sides can be; None where that differs."""
    if symbol not in _ORDER or a.lo is None or a.hi is None or b.lo is None or b.hi is None:
        return None
    corners = {_ORDER[symbol](x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)}
    return corners.pop() if len(corners) == 1 else None


def _connective(e: Emitter, node: ir.Binary) -> Val:
    """`a and b`, or `a or b`."""
    is_or = isinstance(node, ir.Or)
    word, symbol = ("or", "|") if is_or else ("and", "&")
    a = e.expr(node.a)
    if a.lit is not None:
        # The second operand is not evaluated where the first decides.
        return a if a.lit == is_or else e.expr(node.b)
    outer = e.mask
    if a.scalar:
        b = _second(e, a, node.b, word)
    else:
        e.mask = both(e, outer, replace(invert(e, a), owned=False) if is_or else a)
        b = e.expr(node.b)
        e.mask = outer
    if b.lit is not None:
        return b if b.lit == is_or else a
    if a.scalar and b.scalar:
        return Val(f"({a.code} {word} {b.code})", "bool")
    return pure(e, f"({a.code} {symbol} {b.code})", "bool", (a, b))


def _second(e: Emitter, first: Val, node: Any, word: str) -> Val:
    """The second operand, evaluated only where the first, a scalar, does not decide."""
    start = len(e.w.lines)
    value = e.expr(node)
    written = e.w.take(start)
    if not written:
        return value
    name = e.temp()
    with e.w.block(f"if {first.code if word == 'and' else f'not {first.code}'}"):
        e.w.indented(written)
        e.w.line(f"{name} = {value.code}")
    decided = repr(word == "or")
    with e.w.block("else"):
        whole = f"np.full({e.shape_of(value.axes)}, {decided})"
        e.w.line(f"{name} = {decided if value.scalar else whole}")
    consume(e, value)
    return Val(name, "bool", value.axes)


def _not(e: Emitter, node: ir.Not) -> Val:
    return invert(e, e.expr(node.a))


def invert(e: Emitter, value: Val) -> Val:
    """The negation of a condition."""
    if value.lit is not None:
        return literal(not value.lit, "bool")
    if value.inverse is not None and value.alias is None:
        return replace(value, code=value.inverse, inverse=value.code, owned=False)
    if value.scalar:
        return Val(f"(not {value.code})", "bool")
    return pure(e, f"np.logical_not({value.code})", "bool", (value,))


def both(e: Emitter, a: Val | None, b: Val) -> Val:
    """Both of two conditions; None stands for true."""
    if a is None:
        return b
    symbol = "and" if a.scalar and b.scalar else "&"
    return pure(e, f"({a.code} {symbol} {b.code})", "bool", (a, b))


def uniform(e: Emitter, node: Any) -> tuple[str, str] | None:
    """Scalar tests that a condition holds in all iterations, and in none, where cheap to say."""
    if isinstance(node, (ir.And, ir.Or)):
        left = uniform(e, node.a)
        outer, e.speculative = e.speculative, True
        right = uniform(e, node.b)
        e.speculative = outer
        if left is None or right is None:
            return None
        word, dual = ("and", "or") if isinstance(node, ir.And) else ("or", "and")
        return f"({left[0]} {word} {right[0]})", f"({left[1]} {dual} {right[1]})"
    if isinstance(node, ir.Not):
        inner = uniform(e, node.a)
        return None if inner is None else (inner[1], inner[0])
    if not (isinstance(node, ir.Compare) and node.symbol in _ORDER and is_int(node.a.dtype)):
        if any_of(node, ir.BufferLoad, ir.Call):
            return None
        value = e.expr(node)
        return (value.code, f"(not {value.code})") if value.scalar else None
    if any_of(node, ir.Call):
        return None
    ends = _difference(e, settle(e, e.expr(node.a)), settle(e, e.expr(node.b)))
    if ends is None:
        return None
    low, high = ends[0].code, ends[1].code
    return {
        "<": (f"{high} < 0", f"{low} >= 0"),
        "<=": (f"{high} <= 0", f"{low} > 0"),
        ">": (f"{low} > 0", f"{high} <= 0"),
        ">=": (f"{low} >= 0", f"{high} < 0"),
    }[node.symbol]


def _difference(e: Emitter, a: Val, b: Val) -> tuple[Val, Val] | None:
    """Scalars `min(a - b)` and `max(a - b)` over all iterations, where both are affine."""
    left, right = a.affine or scalar_affine(a), b.affine or scalar_affine(b)
    if left is None or right is None:
        return None
    coefficients: dict[int, int] = dict(left.coefficients)
    for axis, c in right.coefficients:
        coefficients[axis] = coefficients.get(axis, 0) - c
    low = high = subtract(left.base, right.base)
    for axis, c in coefficients.items():
        if c == 0:
            continue
        span = times(add(e.axis_at(axis).extent, literal(-1, "int32")), c)
        if c > 0:
            high = add(high, span)
        else:
            low = add(low, span)
    return low, high


RULES: dict[type, Callable[[Emitter, Any], Val]] = {
    ir.Compare: _compare,
    ir.And: _connective,
    ir.Or: _connective,
    ir.Not: _not,
}
