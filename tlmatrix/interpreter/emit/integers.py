"""Integer arithmetic: constants folded, bounds and affine forms tracked, two's complement."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.dtypes import TILE_DTYPES

from .arrays import pure
from .values import TESTED, WRAPPED, Affine, Val, literal

if TYPE_CHECKING:
    from .emitter import Emitter


def add(a: Val, b: Val) -> Val:
    """The scalar integer `a + b`, folded where it can be."""
    if a.lit is not None and b.lit is not None:
        return literal(a.lit + b.lit, a.dtype)
    if a.lit == 0:
        return b
    if b.lit == 0:
        return a
    code = f"({a.code} - {-b.lit})" if b.lit is not None and b.lit < 0 else f"({a.code} + {b.code})"
    lo, hi = bounds("+", a, b)
    return Val(code, a.dtype, lo=lo, hi=hi)


def subtract(a: Val, b: Val) -> Val:
    """The scalar integer `a - b`."""
    if b.lit is not None:
        return add(a, literal(-b.lit, b.dtype))
    lo, hi = bounds("-", a, b)
    code = f"(-{b.code})" if a.lit == 0 else f"({a.code} - {b.code})"
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
    return Val(f"({a.code} * {factor})", a.dtype, lo=lo, hi=hi)


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
    wrapped = Val(f"wrap({value.code}, {bits_of(dtype)}, {signed})", dtype)
    if tested and signed:
        for instrument in e.instruments:
            wrapped = instrument.integer(e, value, wrapped)
    # A test of the active iterations alone does not stand for the rest of the block.
    masked = tested and e.mask is not None and wrapped.code.startswith(TESTED)
    return wrapped if e.invariants is None or masked else e.invariants.wrapped(e, value, wrapped)


def settle(e: Emitter, value: Val) -> Val:
    """A value within its dtype, for an operation that would see the difference."""
    return wrap(e, value, value.dtype, tested=True) if value.unwrapped else value


def _is_wrapped(e: Emitter, value: Val) -> bool:
    """Whether a value is one in two's complement."""
    shared = e.invariants is not None and e.invariants.is_wrapped(value)
    return shared or value.code.startswith(WRAPPED)


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
            f"{v.code}.astype(np.int64)" if e.wide_indices and v.axes else v.code for v in (a, b)
        )
        code = f"({left} {symbol} {right})"
        value = pure(e, code, dtype, (a, b), affine=affine_of(symbol, a, b), lo=lo, hi=hi)
        if dtype == "int32" and not fits(value, dtype):
            for instrument in e.instruments:
                instrument.integers(e, value)
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
        value = Val(f"({a.code} * {b.code})", dtype, lo=lo, hi=hi)
    if dtype == "int64" or value.lit is not None or fits(value, dtype):
        return _sum(e, replace(value, dtype=dtype), dtype, a, b)
    # A product that may not fit: two's complement, as on the GPU.
    return wrap(e, value, dtype, tested=True)


def _sum(e: Emitter, value: Val, dtype: str, *operands: Val) -> Val:
    """Sums wrap where it shows: unsigned ones and those of wrapped products at once.

    Others stay as they are until they are settled, so that an index past 2^31 is outside rather
    than negative. Sums of sizes and loop variables (known not to be negative) are taken to fit.
    """
    if value.lit is None and (dtype.startswith("uint") or any(_is_wrapped(e, o) for o in operands)):
        return replace(wrap(e, value, dtype, tested=True), dtype=dtype)
    unknown = any(o.unwrapped or (o.lo is None and o.lit is None) for o in operands)
    unwrapped = unknown and dtype != "int64" and not fits(value, dtype)
    return replace(value, dtype=dtype, unwrapped=unwrapped)
