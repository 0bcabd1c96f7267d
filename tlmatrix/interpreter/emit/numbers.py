"""Values computed: arrays in memory that is free, integers, floats, conversions.

Each function takes values of the emitter, writes lines where it must, and returns a value.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.runtime.mathematics import fills_vectors, to_int
from tlmatrix.interpreter.runtime.mathematics import wrap as wrapped_number

from .instrument import Instrument
from .values import (
    LOW_PRECISION,
    Affine,
    Code,
    Integer,
    Val,
    expression,
    is_float,
    literal,
    numpy_name,
    numpy_type,
    parts_of,
)

if TYPE_CHECKING:
    from .emitter import Emitter


# Operations on arrays, written into memory that is free -------------------------------------------

# Functions that torch computes faster than NumPy on the memory of a tile.
_TORCH = frozenset({"exp", "exp2", "log2", "log", "tanh", "rsqrt"})
_TORCH_SPREADS = {"np.add": "add", "np.subtract": "sub", "np.multiply": "mul", "np.divide": "div"}
"""What torch computes faster where one operand is the same along each row."""


def axes_of(values: tuple[Val, ...]) -> frozenset[int]:
    """The axes over which some of the values vary."""
    return frozenset[int]().union(*(v.axes for v in values))


def consume(e: Emitter, *values: Val) -> None:
    """Note that views of the destination were used up."""
    if e.dest is not None:
        for value in values:
            if value.alias == e.dest.name:
                e.dest.live -= 1


def free_dest(e: Emitter, axes: frozenset[int], np_dtype: str) -> str | None:
    """The destination's view, where a result of this kind may be written to it now."""
    dest = e.dest
    if (
        dest is not None
        and dest.axes == axes
        and dest.np_dtype == np_dtype
        and dest.reads_left == 0
        and dest.live == 0
    ):
        return dest.view
    return None


def is_last_use(e: Emitter, value: Val) -> bool:
    """Whether a value is the last user of the destination's memory."""
    dest = e.dest
    return dest is not None and value.code == dest.view and dest.live == 1 and dest.reads_left == 0


def result(e: Emitter, code: str, dtype: str, axes: frozenset[int], *, exact: bool) -> Val:
    """A value that an operation has just written to `code`."""
    dest = e.dest
    if dest is not None and code == dest.view:
        dest.live += 1
        return Val(code, dtype, axes, exact=exact, owned=True, alias=dest.name)
    return Val(code, dtype, axes, exact=exact, owned=True)


def apply(
    e: Emitter, function: str, args: tuple[Val, ...], dtype: str, *, exact: bool = True
) -> Val:
    """Write `function(*args)` into a place that is free: the destination or a temporary."""
    axes = axes_of(args)
    in_numpy = function.startswith("np.")
    operands = [
        e.constant(a) if in_numpy and a.lit is not None and is_float(a.dtype) else a.code
        for a in args
    ]
    codes = ", ".join(operands)
    consume(e, *args)
    np_dtype = numpy_name(dtype)
    out = free_dest(e, axes, np_dtype)
    if out is None:
        for a in args:
            same = a.axes == axes and numpy_name(a.dtype) == np_dtype
            if a.owned and same and a.alias is None:
                out = a.code
                break
    in_torch = function if function in _TORCH else _spread(e, function, args, axes, np_dtype)
    if function == "exp2" and not (_fills_vectors(e, out) and _fills_vectors(e, args[0].code)):
        in_torch = None
    if out is not None and in_torch and out in e.fixed and args[0].code in e.fixed:
        operand, *others, target = (e.tensor(code) for code in (*(a.code for a in args), out))
        if operand == target:
            e.w.line(f"{target}.{in_torch}_({', '.join(others)})")
        else:
            e.w.line(f"torch.{in_torch}({', '.join([operand, *others])}, out={target})")
    elif out is not None:
        e.w.line(f"{function}({codes}, out={out})")
    else:
        out = e.temp()
        e.w.line(f"{out} = {function}({codes})")
    return result(e, out, dtype, axes, exact=exact)


def _fills_vectors(e: Emitter, code: str | None) -> bool:
    """Whether `code` is a whole buffer, and `exp2` computes all of it in vectors."""
    shapes = (buf.static_shape for buf in e.buffers.values() if buf.code == code)
    shape = next(shapes, None)
    return shape is not None and fills_vectors(math.prod(shape))


def _spread(
    e: Emitter, function: str, args: tuple[Val, ...], axes: frozenset[int], np_dtype: str
) -> str | None:
    """Torch's name of a float operation of a tile and a column; None of others."""
    in_torch = _TORCH_SPREADS.get(function)
    if in_torch is None or np_dtype != "float32" or args[0].axes != axes:
        return None
    column = args[1]
    # NumPy copies an operand that is a part of the target; torch refuses it.
    in_target = e.dest is not None and column.alias == e.dest.name
    if column.scalar or max(axes) in column.axes or in_target:
        return None
    return in_torch if all(numpy_name(a.dtype) == np_dtype for a in args) else None


def named(e: Emitter, code: str, dtype: str, args: tuple[Val, ...], *, exact: bool = True) -> Val:
    """Evaluate `code` now, so that later stores do not change what it reads."""
    consume(e, *args)
    name = e.temp()
    e.w.line(f"{name} = {code}")
    return Val(name, dtype, axes_of(args), exact=exact, owned=True)


def pure(e: Emitter, code: str, dtype: str, args: tuple[Val, ...], **known: Any) -> Val:
    """An integer or boolean expression: left inline unless it reads memory."""
    axes = axes_of(args)
    if axes and any(a.alias is not None for a in args):
        return named(e, code, dtype, args)
    return Val(code, dtype, axes, **known)


# Integer arithmetic: constants folded, bounds and affine forms tracked, two's complement ----------


def add(a: Val, b: Val) -> Val:
    """The scalar integer `a + b`, folded where it can be."""
    if a.lit is not None and b.lit is not None:
        return literal(a.lit + b.lit, a.dtype)
    if a.lit == 0:
        return b
    if b.lit == 0:
        return a
    lo, hi = bounds("+", a, b)
    if b.lit is not None and b.lit < 0:
        code = expression("({} - {})", a, literal(-b.lit, b.dtype))
    else:
        code = expression("({} + {})", a, b)
    return Val(code, a.dtype, lo=lo, hi=hi)


def subtract(a: Val, b: Val) -> Val:
    """The scalar integer `a - b`."""
    if b.lit is not None:
        return add(a, literal(-b.lit, b.dtype))
    lo, hi = bounds("-", a, b)
    code = expression("(-{})", b) if a.lit == 0 else expression("({} - {})", a, b)
    return Val(code, a.dtype, lo=lo, hi=hi)


def times(a: Val, factor: int) -> Val:
    """The scalar integer `a * factor`."""
    if a.lit is not None:
        return literal(a.lit * factor, a.dtype)
    if factor == 1:
        return a
    ends = [
        None if a.lo is None else a.lo * factor,
        None if a.hi is None else a.hi * factor,
    ]
    lo, hi = ends if factor >= 0 else reversed(ends)
    return Val(expression("({} * {})", a, literal(factor, a.dtype)), a.dtype, lo=lo, hi=hi)


def bounds(symbol: str, a: Val, b: Val) -> tuple[int | None, int | None]:
    """What is known of the least and the largest value of a sum, difference or product."""
    if symbol == "+":
        return (
            a.lo + b.lo if a.lo is not None and b.lo is not None else None,
            a.hi + b.hi if a.hi is not None and b.hi is not None else None,
        )
    if symbol == "-":
        return (
            a.lo - b.hi if a.lo is not None and b.hi is not None else None,
            a.hi - b.lo if a.hi is not None and b.lo is not None else None,
        )
    if a.lo is not None and a.hi is not None and b.lo is not None and b.hi is not None:
        corners = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
        return min(corners), max(corners)
    if a.lo is not None and b.lo is not None and a.lo >= 0 and b.lo >= 0:
        return a.lo * b.lo, None
    return None, None


def scalar_affine(value: Val) -> Affine | None:
    """A scalar integer as an affine form without axes."""
    return Affine(value, ()) if value.scalar else None


def affine_of(symbol: str, a: Val, b: Val) -> Affine | None:
    """The affine form of a sum, difference or product, if it has one."""
    left, right = a.affine or scalar_affine(a), b.affine or scalar_affine(b)
    if left is None or right is None:
        return None
    if symbol in "+-":
        sign = 1 if symbol == "+" else -1
        coefficients = dict(left.coefficients)
        for axis, c in right.coefficients:
            coefficients[axis] = coefficients.get(axis, 0) + sign * c
        base = add(left.base, right.base) if sign > 0 else subtract(left.base, right.base)
        return Affine(base, tuple((x, c) for x, c in coefficients.items() if c))
    factor = b.lit if b.lit is not None else a.lit
    if factor is None:
        return None
    form = left if b.lit is not None else right
    return Affine(
        times(form.base, factor), tuple((x, c * factor) for x, c in form.coefficients if factor)
    )


def bits_of(dtype: str) -> int:
    """How many bits an integer dtype has."""
    return TILE_DTYPES[dtype].bits


def fits(value: Val, dtype: str) -> bool:
    """Whether a value is known to lie in the range of an integer dtype."""
    bits = bits_of(dtype)
    signed = not dtype.startswith("uint")
    low = -(1 << (bits - 1)) if signed else 0
    high = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
    return value.lo is not None and value.hi is not None and low <= value.lo <= value.hi <= high


def wrap(e: Emitter, value: Val, dtype: str, *, tested: bool = False) -> Val:
    """An integer in two's complement of its dtype; `tested` by instruments, where it must fit."""
    if e.host_integers:
        return replace(value, dtype=dtype)
    signed = not dtype.startswith("uint")
    half, most = 1 << (bits_of(dtype) - 1), (1 << bits_of(dtype)) - 1
    template = f"((({{}}) + {half} & {most}) - {half})" if signed else f"(({{}}) & {most})"
    text = expression(template, value)
    wrapped = Val(Code(text, parts_of(text), wrapped=True), dtype)
    if tested and signed:
        for instrument in e.instruments:
            wrapped = instrument.integer(e, value, wrapped)
    is_tested = wrapped.code != text
    if is_tested:
        parts = None if parts_of(text) is None else (Integer(wrapped.code),)
        wrapped = replace(wrapped, code=Code(wrapped.code, parts, wrapped=True))
    # A test of the active iterations alone does not stand for the rest of the block.
    if e.invariants is None or (is_tested and e.mask is not None):
        return wrapped
    return e.invariants.wrapped(e, value, wrapped, tested=is_tested)


def settle(e: Emitter, value: Val) -> Val:
    """A value within its dtype, for an operation that would see the difference."""
    return wrap(e, value, value.dtype, tested=True) if value.unwrapped else value


def _is_wrapped(value: Val) -> bool:
    """Whether a value is one in two's complement."""
    return isinstance(value.code, Code) and value.code.wrapped


def combine(e: Emitter, symbol: str, a: Val, b: Val, dtype: str) -> Val:
    """The sum, difference or product of two integers."""
    if e.wide_indices and dtype == "int32":
        dtype = "int64"
    if not (a.scalar and b.scalar):
        if bits_of(dtype) < 8:
            raise e.refuse(f"arithmetic of {dtype}: NumPy has no integers of 4 bits")
        a, b = settle(e, a), settle(e, b)
        lo, hi = bounds(symbol, a, b)
        left, right = (
            replace(v, code=f"{v.code}.astype(np.int64)") if e.wide_indices and v.axes else v
            for v in (a, b)
        )
        code = expression(f"({{}} {symbol} {{}})", left, right)
        value = pure(e, code, dtype, (a, b), affine=affine_of(symbol, a, b), lo=lo, hi=hi)
        if dtype == "int32" and not fits(value, dtype):
            e.notify(Instrument.integers, value)
        return value
    if symbol == "+":
        return _sum(e, add(a, b), dtype, a, b)
    if symbol == "-":
        return _sum(e, subtract(a, b), dtype, a, b)
    if b.lit is not None:
        value = times(a, b.lit)
    elif a.lit is not None:
        value = times(b, a.lit)
    else:
        lo, hi = bounds("*", a, b)
        value = Val(expression("({} * {})", a, b), dtype, lo=lo, hi=hi)
    if dtype == "int64" or value.lit is not None or fits(value, dtype):
        return _sum(e, replace(value, dtype=dtype), dtype, a, b)
    # A product that may not fit: two's complement, as on the GPU.
    return wrap(e, value, dtype, tested=True)


def _sum(e: Emitter, value: Val, dtype: str, *operands: Val) -> Val:
    """Sums wrap where it shows: unsigned ones and those of wrapped products at once.

    Others stay as they are until they are settled, so that an index past 2^31 is outside rather
    than negative. Sums of sizes and loop variables (known not to be negative) are taken to fit.
    """
    if value.lit is None and (dtype.startswith("uint") or any(map(_is_wrapped, operands))):
        return replace(wrap(e, value, dtype, tested=True), dtype=dtype)
    unknown = any(o.unwrapped or (o.lo is None and o.lit is None) for o in operands)
    unwrapped = unknown and dtype != "int64" and not fits(value, dtype)
    return replace(value, dtype=dtype, unwrapped=unwrapped)


# Float operations, rounded to the precision of their dtype ----------------------------------------

_TORCH_ROUNDS = {"f16": "float16", "bf16": "bfloat16"}
"""Codecs that round as torch's conversion does, which does not saturate."""


def float_operation(e: Emitter, function: str, symbol: str, a: Val, b: Val, dtype: str) -> Val:
    """A float operation of two arguments."""
    low = dtype in LOW_PRECISION
    if a.lit is not None and b.lit is not None:
        kind = np.dtype(numpy_name(dtype)).type
        with np.errstate(all="ignore"):
            return literal(float(getattr(np, function[3:])(kind(a.lit), kind(b.lit))), dtype)
    if a.scalar and b.scalar:
        value = Val(f"({a.code} {symbol} {b.code})", dtype, exact=not low)
    else:
        value = apply(e, function, (a, b), dtype, exact=not low)
    return rounded(e, value) if low else value


def call_float(
    e: Emitter, function: str, args: tuple[Val, ...], dtype: str, *, exact: bool = False
) -> Val:
    """A float function; `exact` where it keeps a low-precision value representable."""
    exact = exact or dtype not in LOW_PRECISION
    if all(a.scalar for a in args):
        codes = ", ".join(as_scalar(a) for a in args)
        if dtype != "float64" and any(a.lit is None for a in args):
            codes = ", ".join(a.code for a in args)
            codes = f"F32({codes})" if len(args) == 1 else codes
        value = Val(f"{function}({codes})", dtype, exact=exact)
    else:
        value = apply(e, function, args, dtype, exact=exact)
    return rounded(e, value)


def as_scalar(value: Val) -> str:
    """Code of a scalar with its own precision (a literal alone would be a Python float)."""
    if value.lit is not None and is_float(value.dtype):
        return value.code if value.dtype == "float64" else f"F32({value.code})"
    return value.code


def rounded(e: Emitter, value: Val) -> Val:
    """A low-precision value rounded to its dtype."""
    codec = LOW_PRECISION.get(value.dtype)
    if codec is None or value.exact:
        return value
    if value.scalar:
        return replace(value, code=f"{codec}.round({value.code})", exact=True)
    if value.owned:
        round_into(e, codec, value.code, value.code)
        return replace(value, exact=True)
    return named(e, f"{codec}.round({value.code})", value.dtype, (value,))


def round_into(e: Emitter, codec: str, target: str, source: str) -> None:
    """Write the rounding of a float32 array into another (or itself)."""
    if target in e.fixed and source in e.fixed and codec in _TORCH_ROUNDS:
        low = e.tensor(source, _TORCH_ROUNDS[codec])
        e.w.line(f"{e.tensor(target)}.copy_({low}.copy_({e.tensor(source)}))")
    else:
        e.w.line(f"{codec}.round_into({target}, {source})")


# Conversions between dtypes, and values held in variables -----------------------------------------

_EXTENDED = ("bool", "int8", "uint8", "int16", "uint16", "int32")


def plain(e: Emitter, node: Any) -> Val:
    """The value of an expression as memory would hold it: wrapped and rounded."""
    return rounded(e, settle(e, e.expr(node)))


def cast(e: Emitter, value: Val, dtype: str) -> Val:
    """A value converted to another dtype."""
    source = value.dtype
    if source == dtype:
        return value
    value = settle(e, value)
    if value.lit is not None:
        return _literal(value, dtype)
    if is_float(dtype):
        return _to_float(e, value, dtype)
    if is_float(source):
        if dtype == "bool":
            return named(e, f"({value.code} != 0)", "bool", (value,))
        value = rounded(e, value)
        if bits_of(dtype) < 8:
            raise e.refuse(f"a conversion of {source} to {dtype}")
        code = f"to_int({value.code}, {dtype!r})"
        return Val(code, dtype) if value.scalar else named(e, code, dtype, (value,))
    if value.scalar:
        return _scalar_to_int(e, value, dtype)
    if dtype != "bool" and bits_of(dtype) < 8:
        raise e.refuse(f"a conversion of {source} to {dtype}")
    if dtype == "bool":
        return pure(e, expression("({} != 0)", value), "bool", (value,))
    code = f"np.asarray({value.code}).astype(np.{numpy_type(dtype)})"
    if source in _EXTENDED and dtype in ("int32", "int64"):
        known = {"affine": value.affine, "lo": value.lo, "hi": value.hi}
        return pure(e, code, dtype, (value,), **known)
    return pure(e, code, dtype, (value,))


def _scalar_to_int(e: Emitter, value: Val, dtype: str) -> Val:
    if dtype == "bool":
        return Val(expression("({} != 0)", value), "bool")
    if value.dtype == "bool":
        return Val(f"int({value.code})", dtype, lo=0, hi=1)
    if fits(value, dtype) or (dtype == "int64" and value.dtype == "int32"):
        return replace(value, dtype=dtype)
    return wrap(e, value, dtype)


def _literal(value: Val, dtype: str) -> Val:
    if dtype == "bool":
        return literal(bool(value.lit), dtype)
    if is_float(dtype):
        return literal(float(value.lit), dtype)
    if is_float(value.dtype):
        return literal(to_int(value.lit, dtype), dtype)
    signed = not dtype.startswith("uint")
    return literal(wrapped_number(int(value.lit), bits_of(dtype), signed), dtype)


def _to_float(e: Emitter, value: Val, dtype: str) -> Val:
    exact = dtype not in LOW_PRECISION
    if is_float(value.dtype):
        value = rounded(e, value)
        if "float64" not in (dtype, value.dtype):
            return rounded(e, replace(value, dtype=dtype, exact=exact))
    target = numpy_name(dtype)
    if value.scalar:
        return rounded(e, Val(f"np.{target}({value.code})", dtype, exact=exact))
    code = f"np.asarray({value.code}).astype(np.{target})"
    return rounded(e, named(e, code, dtype, (value,), exact=exact))


def fitted_code(e: Emitter, value: Val, dtype: str) -> str:
    """Code of a scalar in the range of `dtype`, for a store of it."""
    if is_float(dtype) or dtype == "bool" or value.lit is not None or fits(value, dtype):
        return value.code
    return wrap(e, value, dtype).code


def keep(e: Emitter, value: Val, name: str) -> Val:
    """A value that several expressions may use: held in a variable where that matters."""
    if value.lit is not None or (value.axes and not is_float(value.dtype) and not value.alias):
        return replace(value, owned=False)
    if value.scalar and not value.mutable and value.code.isidentifier():
        return value
    value = settle(e, value)
    code = e.temp(name)
    consume(e, value)
    source = f"{value.code}.copy()" if value.alias is not None else value.code
    if is_float(value.dtype) and value.scalar:
        source = as_scalar(value)
    e.w.line(f"{code} = {source}")
    return replace(value, code=code, owned=False, alias=None, mutable=False)
