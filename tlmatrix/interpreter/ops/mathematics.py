"""Elementwise functions: exponentials, roots, trigonometry, rounding, tests, choices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.interpreter.emit.arrays import named, pure
from tlmatrix.interpreter.emit.choices import emit_select
from tlmatrix.interpreter.emit.floats import as_scalar, call_float, float_operation
from tlmatrix.interpreter.emit.values import Val, is_float, literal

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call

# Operations of floats: the function of the generated source.
_FLOAT = {
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
_BINARY = frozenset(
    {"tirx.pow", "tl.pow_of_int", "tirx.fmod", "tirx.atan2", "tirx.hypot", "tirx.copysign"}
    | {"tirx.ldexp", "tl.ieee_add", "tl.ieee_sub", "tl.ieee_mul", "tl.ieee_fdiv", "tl.fmul"}
    | {"tl.max_nan", "tl.min_nan", "tl.add2", "tl.sub2", "tl.mul2", "tl.max2", "tl.min2"}
)
_ROUNDING = {
    "tirx.fabs": "np.abs",
    "tl.abs2": "np.abs",
    "tirx.floor": "np.floor",
    "tirx.ceil": "np.ceil",
    "tirx.trunc": "np.trunc",
    "tirx.nearbyint": "np.rint",
    "tirx.round": "np.rint",
    "tl.round_ties_away_from_zero": "round_away",
}
_TESTS = {"tirx.isnan": "np.isnan", "tirx.isinf": "np.isinf", "tirx.isfinite": "np.isfinite"}


def _float(e: Emitter, call: Call) -> Val:
    count = 2 if call.op in _BINARY else 1
    args = tuple(e.expr(a) for a in call.args[:count])
    return call_float(e, _FLOAT[call.op], args, call.dtype)


def _rounded(e: Emitter, call: Call) -> Val:
    value = e.expr(call.args[0])
    if not is_float(call.dtype):
        return pure(e, f"abs({value.code})", call.dtype, (value,))
    exact = value.exact and _ROUNDING[call.op] == "np.abs"
    return call_float(e, _ROUNDING[call.op], (value,), call.dtype, exact=exact)


def _test(e: Emitter, call: Call) -> Val:
    value, function = e.expr(call.args[0]), _TESTS[call.op]
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


CALLS = {
    **dict.fromkeys(_FLOAT, _float),
    **dict.fromkeys(_ROUNDING, _rounded),
    **dict.fromkeys(_TESTS, _test),
    **dict.fromkeys(("tl.ieee_fmaf", "tl.fma", "tirx.fma", "tl.fma2"), _multiply_add),
    **dict.fromkeys(("tirx.likely", "tl.__ldg"), _first_argument),
    **dict.fromkeys(("tl.infinity", "tirx.infinity"), _infinity),
    "tirx.if_then_else": emit_select,
    "tl.clamp": _clamp,
}
