"""Operations on the bits of integers and floats."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.emit.arrays import named, pure
from tlmatrix.interpreter.emit.casts import cast, plain
from tlmatrix.interpreter.emit.integers import bits_of, settle, wrap
from tlmatrix.interpreter.emit.values import Val, is_float, is_int, literal, numpy_type
from tlmatrix.interpreter.ir.rewrites.vectors import WRAPPED_INDEX

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call
    from tlmatrix.interpreter.runtime.codecs import Array

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
    code = f"({a.code} {_BITWISE[call.op]} {b.code})"
    return pure(e, code, call.dtype, (a, b), lo=0 if positive else None, hi=hi)


def _shift_left(e: Emitter, call: Call) -> Val:
    a, b = (e.expr(arg) for arg in call.args[:2])
    dtype = call.dtype
    if a.lit is not None and b.lit is not None:
        return literal(a.lit << b.lit, dtype)
    if dtype in _PROMOTED:
        # C shifts an int: what leaves the narrow dtype is there until it is stored.
        a, dtype = cast(e, a, "int32"), "int32"
    value = pure(e, f"({a.code} << {b.code})", dtype, (a, b))
    return wrap(e, value, dtype) if value.scalar else value


def _shift_right(e: Emitter, call: Call) -> Val:
    a, b = (e.expr(arg) for arg in call.args[:2])
    a = settle(e, a)
    if a.lit is not None and b.lit is not None:
        return literal(a.lit >> b.lit, call.dtype)
    value = pure(e, f"({a.code} >> {b.code})", call.dtype, (a, b))
    return replace(value, lo=0, hi=a.hi) if a.lo is not None and a.lo >= 0 else value


def _invert(e: Emitter, call: Call) -> Val:
    value = e.expr(call.args[0])
    inverted = pure(e, f"(~{value.code})", call.dtype, (value,))
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


CALLS = {
    WRAPPED_INDEX: _wrapped_index,
    **dict.fromkeys(_BITWISE, _bitwise),
    **dict.fromkeys(_COUNTS, _count),
    "tl.__fns": _nth_set,
    "tirx.shift_left": _shift_left,
    "tirx.shift_right": _shift_right,
    "tirx.bitwise_not": _invert,
    "tirx.reinterpret": _reinterpret,
}
FUNCTIONS = (nth_set_bit,)
