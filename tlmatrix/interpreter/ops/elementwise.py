"""Elementwise operations of numbers and of their bits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.emit.emitter import Rules
from tlmatrix.interpreter.emit.expressions import emit_select
from tlmatrix.interpreter.emit.numbers import (
    as_scalar,
    bits_of,
    call_float,
    cast,
    float_operation,
    named,
    plain,
    pure,
    settle,
    wrap,
)
from tlmatrix.interpreter.emit.values import Val, expression, is_float, is_int, literal, numpy_type
from tlmatrix.interpreter.ir.rewrites.vectors import WRAPPED_INDEX

from .tables import Operations

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call
    from tlmatrix.interpreter.runtime.codecs import Array


# Elementwise functions: exponentials, roots, trigonometry, rounding, tests, choices ---------------

# Operations of floats: the function of the generated source.
FLOAT = {
    "tirx.exp": "exp",
    "tl.__exp": "exp",
    "tirx.exp2": "exp2",
    "tirx.exp10": "exp10",
    "tl.__exp10": "exp10",
    "tirx.log": "log",
    "tl.__log": "log",
    "tirx.log2": "log2",
    "tl.__log2": "log2",
    "tirx.log10": "np.log10",
    "tl.__log10": "np.log10",
    "tirx.log1p": "np.log1p",
    "tirx.sqrt": "np.sqrt",
    "tl.ieee_fsqrt": "np.sqrt",
    "tirx.rsqrt": "rsqrt",
    "tl.ieee_frsqrt": "rsqrt",
    "tirx.tanh": "tanh",
    "tirx.sigmoid": "sigmoid",
    "tirx.erf": "erf",
    "tirx.sin": "sin",
    "tirx.cos": "cos",
    "tirx.tan": "np.tan",
    "tl.__sin": "sin",
    "tl.__cos": "cos",
    "tl.__tan": "np.tan",
    "tirx.sinh": "np.sinh",
    "tirx.cosh": "np.cosh",
    "tirx.asin": "np.arcsin",
    "tirx.acos": "np.arccos",
    "tirx.atan": "np.arctan",
    "tirx.asinh": "np.arcsinh",
    "tirx.acosh": "np.arccosh",
    "tirx.atanh": "np.arctanh",
    "tl.fast_rcp": "np.reciprocal",
    "tl.ieee_frcp": "np.reciprocal",
    "tirx.pow": "power",
    "tl.pow_of_int": "np.power",
    "tirx.fmod": "np.fmod",
    "tirx.atan2": "np.arctan2",
    "tirx.hypot": "np.hypot",
    "tirx.copysign": "np.copysign",
    "tirx.ldexp": "np.ldexp",
    "tl.ieee_add": "np.add",
    "tl.ieee_sub": "np.subtract",
    "tl.ieee_mul": "np.multiply",
    "tl.ieee_fdiv": "np.divide",
    "tl.fmul": "np.multiply",
    "tl.max_nan": "np.maximum",
    "tl.min_nan": "np.minimum",
    # Of packed pairs, which are loops over their elements.
    "tl.add2": "np.add",
    "tl.sub2": "np.subtract",
    "tl.mul2": "np.multiply",
    "tl.max2": "np.fmax",
    "tl.min2": "np.fmin",
}
BINARY = frozenset(
    {"tirx.pow", "tl.pow_of_int", "tirx.fmod", "tirx.atan2", "tirx.hypot", "tirx.copysign"}
    | {"tirx.ldexp", "tl.ieee_add", "tl.ieee_sub", "tl.ieee_mul", "tl.ieee_fdiv", "tl.fmul"}
    | {"tl.max_nan", "tl.min_nan", "tl.add2", "tl.sub2", "tl.mul2", "tl.max2", "tl.min2"}
)
ROUNDING = {
    "tirx.fabs": "np.abs",
    "tl.abs2": "np.abs",
    "tirx.floor": "np.floor",
    "tirx.ceil": "np.ceil",
    "tirx.trunc": "np.trunc",
    "tirx.nearbyint": "np.rint",
    "tirx.round": "np.rint",
    "tl.round_ties_away_from_zero": "round_away",
}
TESTS = {"tirx.isnan": "np.isnan", "tirx.isinf": "np.isinf", "tirx.isfinite": "np.isfinite"}


def _float(e: Emitter, call: Call) -> Val:
    count = 2 if call.op in BINARY else 1
    args = tuple(e.expr(a) for a in call.args[:count])
    return call_float(e, FLOAT[call.op], args, call.dtype)


def _rounded(e: Emitter, call: Call) -> Val:
    value = e.expr(call.args[0])
    if not is_float(call.dtype):
        return pure(e, f"abs({value.code})", call.dtype, (value,))
    exact = value.exact and ROUNDING[call.op] == "np.abs"
    return call_float(e, ROUNDING[call.op], (value,), call.dtype, exact=exact)


def _test(e: Emitter, call: Call) -> Val:
    value, function = e.expr(call.args[0]), TESTS[call.op]
    if value.scalar:
        return Val(f"{function}({as_scalar(value)})", call.dtype)
    return named(e, f"{function}({value.code})", call.dtype, (value,))


def _infinity(e: Emitter, call: Call) -> Val:
    del e
    return replace(literal(float("inf"), "float32"), dtype=call.dtype)


def _first_argument(e: Emitter, call: Call) -> Val:
    return e.expr(call.args[0])


def _clamp(e: Emitter, call: Call) -> Val:
    value, low, high = (e.expr(a) for a in call.args)
    if is_float(call.dtype):
        bounded = call_float(e, "np.fmax", (value, low), call.dtype, exact=True)
        return call_float(e, "np.fmin", (bounded, high), call.dtype, exact=True)
    if value.scalar and low.scalar and high.scalar:
        code = f"min(max({value.code}, {low.code}), {high.code})"
    else:
        code = f"np.clip({value.code}, {low.code}, {high.code})"
    return pure(e, code, call.dtype, (value, low, high))


def _multiply_add(e: Emitter, call: Call) -> Val:
    a, b, c = (e.expr(x) for x in call.args[:3])
    product = float_operation(e, "np.multiply", "*", a, b, call.dtype)
    return float_operation(e, "np.add", "+", product, c, call.dtype)


# Operations on the bits of integers and floats ----------------------------------------------------

_BITWISE = {"tirx.bitwise_and": "&", "tirx.bitwise_or": "|", "tirx.bitwise_xor": "^"}
_COUNTS = {
    "tirx.popcount": "popcount",
    "tirx.clz": "leading_zeros",
    "tl.__ffs": "first_set",
}
_PROMOTED = frozenset({"int8", "uint8", "int16", "uint16"})


def _bitwise(e: Emitter, call: Call) -> Val:
    a, b = (e.expr(arg) for arg in call.args[:2])
    positive = a.lo is not None and a.lo >= 0 and b.lo is not None and b.lo >= 0
    hi = b.hi if call.op == "tirx.bitwise_and" and positive else None
    code = expression(f"({{}} {_BITWISE[call.op]} {{}})", a, b)
    return pure(e, code, call.dtype, (a, b), lo=0 if positive else None, hi=hi)


def _shift_left(e: Emitter, call: Call) -> Val:
    a, b = (e.expr(arg) for arg in call.args[:2])
    dtype = call.dtype
    if a.lit is not None and b.lit is not None:
        return literal(a.lit << b.lit, dtype)
    if dtype in _PROMOTED:
        # C shifts an int: what leaves the narrow dtype is there until it is stored.
        a, dtype = cast(e, a, "int32"), "int32"
    value = pure(e, expression("({} << {})", a, b), dtype, (a, b))
    return wrap(e, value, dtype) if value.scalar else value


def _shift_right(e: Emitter, call: Call) -> Val:
    a, b = (e.expr(arg) for arg in call.args[:2])
    a = settle(e, a)
    if a.lit is not None and b.lit is not None:
        return literal(a.lit >> b.lit, call.dtype)
    value = pure(e, expression("({} >> {})", a, b), call.dtype, (a, b))
    return replace(value, lo=0, hi=a.hi) if a.lo is not None and a.lo >= 0 else value


def _invert(e: Emitter, call: Call) -> Val:
    value = e.expr(call.args[0])
    inverted = pure(e, expression("(~{})", value), call.dtype, (value,))
    if value.scalar and call.dtype.startswith("uint"):
        return wrap(e, inverted, call.dtype)
    return inverted


def _count(e: Emitter, call: Call) -> Val:
    value = settle(e, e.expr(call.args[0]))
    bits = bits_of(value.dtype)
    code = f"{_COUNTS[call.op]}({value.code}, {bits})"
    if value.scalar:
        return Val(code, call.dtype, lo=0, hi=bits)
    found = named(e, f"{code}.astype(np.{numpy_type(call.dtype)})", call.dtype, (value,))
    return replace(found, lo=0, hi=bits)


def _nth_set(e: Emitter, call: Call) -> Val:
    """`__fns(mask, base, offset)`."""
    values = [settle(e, e.expr(arg)) for arg in call.args]
    code = f"nth_set_bit({', '.join(v.code for v in values)})"
    if all(v.scalar for v in values):
        return Val(f"int({code})", call.dtype, lo=0)
    return named(e, f"{code}.astype(np.{numpy_type(call.dtype)})", call.dtype, tuple(values))


def _reinterpret(e: Emitter, call: Call) -> Val:
    value, dtype, held = plain(e, call.args[0]), call.dtype, call.args[0].dtype
    if value.dtype != held:
        value = settle(e, cast(e, value, held))  # narrow integers are computed as int32
    if not (is_float(dtype) or is_int(dtype)):
        raise e.refuse(f"reinterpret of {value.dtype} as {dtype}")
    code = f"bits({value.code}, {value.dtype!r}, {dtype!r})"
    return named(e, code, dtype, (value,)) if value.axes else Val(code, dtype)


def _wrapped_index(e: Emitter, call: Call) -> Val:
    value, extent = (e.expr(arg) for arg in call.args)
    if value.lo is not None and value.lo >= 0:
        return value
    if value.scalar:
        return Val(
            f"({value.code} + {extent.code} if {value.code} < 0 else {value.code})", call.dtype
        )
    code = f"np.where({value.code} < 0, {value.code} + {extent.code}, {value.code})"
    return pure(e, code, call.dtype, (value, extent))


def nth_set_bit(mask: Any, base: Any, offset: Any) -> Array:
    """The bit that is set number `offset` from bit `base` on, upwards or, if negative, downwards.

    Offset 0 asks for bit `base` itself. 2**32 - 1 where there is none (PTX ISA, `fns.b32`).
    """
    mask, base, offset = (np.asarray(n, np.int64)[..., None] for n in (mask, base, offset))
    places = np.arange(32)
    ahead = np.where(offset > 0, places >= base, places <= base)
    hit = (mask >> places & 1 == 1) & np.where(offset == 0, places == base, ahead)
    hit &= (base >= 0) & (base < len(places))
    upwards = np.cumsum(hit, -1)
    rank = np.where(offset < 0, upwards[..., -1:] - upwards + 1, upwards)
    found = hit & (rank == np.maximum(np.abs(offset), 1))
    number: Array = np.where(found.any(-1), found.argmax(-1), 2**32 - 1)
    return number


OPERATIONS = Operations(
    rules=Rules(
        calls={
            **dict.fromkeys(FLOAT, _float),
            **dict.fromkeys(ROUNDING, _rounded),
            **dict.fromkeys(TESTS, _test),
            **dict.fromkeys(("tl.ieee_fmaf", "tl.fma", "tirx.fma", "tl.fma2"), _multiply_add),
            **dict.fromkeys(("tirx.likely", "tl.__ldg"), _first_argument),
            **dict.fromkeys(("tl.infinity", "tirx.infinity"), _infinity),
            **dict.fromkeys(_BITWISE, _bitwise),
            **dict.fromkeys(_COUNTS, _count),
            "tirx.if_then_else": emit_select,
            "tl.clamp": _clamp,
            "tl.__fns": _nth_set,
            "tirx.shift_left": _shift_left,
            "tirx.shift_right": _shift_right,
            "tirx.bitwise_not": _invert,
            "tirx.reinterpret": _reinterpret,
            WRAPPED_INDEX: _wrapped_index,
        }
    ),
    functions=(nth_set_bit,),
)
