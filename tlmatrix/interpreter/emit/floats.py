"""Float operations, rounded to the precision of their dtype."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .arrays import apply, named
from .values import LOW_PRECISION, Val, is_float, literal, numpy_name

if TYPE_CHECKING:
    from .emitter import Emitter

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
