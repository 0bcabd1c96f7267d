"""Conversions between dtypes, and values held in variables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.runtime.mathematics import to_int
from tlmatrix.interpreter.runtime.mathematics import wrap as wrapped_number

from .arrays import consume, named, pure
from .floats import as_scalar, rounded
from .integers import bits_of, fits, settle, wrap
from .values import LOW_PRECISION, Val, is_float, literal, numpy_name, numpy_type

if TYPE_CHECKING:
    from .emitter import Emitter

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
        return pure(e, f"({value.code} != 0)", "bool", (value,))
    code = f"np.asarray({value.code}).astype(np.{numpy_type(dtype)})"
    if source in _EXTENDED and dtype in ("int32", "int64"):
        known = {"affine": value.affine, "lo": value.lo, "hi": value.hi}
        return pure(e, code, dtype, (value,), **known)
    return pure(e, code, dtype, (value,))


def _scalar_to_int(e: Emitter, value: Val, dtype: str) -> Val:
    if dtype == "bool":
        return Val(f"({value.code} != 0)", "bool")
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
