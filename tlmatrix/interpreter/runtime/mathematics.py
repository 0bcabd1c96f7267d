"""Functions of numbers and arrays, with the meaning they have on a GPU."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.errors import InterpreterError

from .codecs import CODECS, Array

__all__ = [
    "bits",
    "cos",
    "div",
    "erf",
    "exp",
    "exp2",
    "exp10",
    "first_set",
    "fmax",
    "fmin",
    "half_toward_zero",
    "leading_zeros",
    "log",
    "log2",
    "mod",
    "popcount",
    "power",
    "round_away",
    "rsqrt",
    "select",
    "show",
    "sigmoid",
    "sin",
    "tanh",
    "to_int",
    "trunc_div",
    "trunc_mod",
    "wrap",
]


_VECTOR = 32
"""A multiple of the elements that PyTorch computes at once, on any CPU."""
_PART = 1 << 15
"""PyTorch computes as many elements in one thread."""


def fills_vectors(size: int) -> bool:
    """Whether PyTorch computes contiguous arrays of this size in vectors alone.

    It computes what is left over by another function for some (`exp2`), with other last bits.
    """
    return size % _VECTOR == 0 and size <= _PART


class _Single(threading.local):
    """Memory for one number at a time, in a vector of its own, by its type."""

    def __init__(self) -> None:
        arrays = {kind: np.zeros(_VECTOR, kind) for kind in (np.float32, np.float64)}
        self.memory = {kind: (each, torch.from_numpy(each)) for kind, each in arrays.items()}


_single = _Single()


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of PyTorch whose values do not depend on the size of the array."""

    def call(x: Any, out: Array | None = None) -> Any:
        if not isinstance(x, np.ndarray):
            array, tensor = _single.memory[np.float32 if isinstance(x, np.float32) else np.float64]
            array[0] = x
            function(tensor, out=tensor)
            return array[0]
        # PyTorch warns of memory that cannot be written.
        tensor = torch.from_numpy(x if x.flags.writeable else x.copy())
        if out is None:
            return function(tensor).numpy()
        function(tensor, out=torch.from_numpy(out))
        return out

    return call


def exp2(x: Any, out: Array | None = None) -> Any:
    """Two to the power `x`."""
    if not isinstance(x, np.ndarray):
        return _exp2(x)
    contiguous = x.flags.c_contiguous and (out is None or out.flags.c_contiguous)
    if contiguous and fills_vectors(x.size):
        return _exp2(x, out)
    padded = np.zeros(-(-x.size // _VECTOR) * _VECTOR, x.dtype)
    padded[: x.size] = x.ravel()
    for start in range(0, padded.size, _PART):
        torch.from_numpy(padded[start : start + _PART]).exp2_()
    found = padded[: x.size].reshape(x.shape)
    if out is None:
        return found
    np.copyto(out, found)
    return out


def sigmoid(x: Any, out: Array | None = None) -> Any:
    """`1 / (1 + exp(-x))`, as TileLang's CUDA computes it."""
    one = _one(x)
    total = one + exp(-x)
    return one / total if out is None else np.divide(one, total, out)


def rsqrt(x: Any, out: Array | None = None) -> Any:
    """The inverse of the square root, rounded twice."""
    one, root = _one(x), np.sqrt(x)
    return one / root if out is None else np.divide(one, root, out)


def _one(x: Any) -> Any:
    return x.dtype.type(1) if hasattr(x, "dtype") else np.float64(1)


_exp2 = _elementwise(torch.exp2)
exp = _elementwise(torch.exp)
sin = _elementwise(torch.sin)
cos = _elementwise(torch.cos)
log = _elementwise(torch.log)
log2 = _elementwise(torch.log2)
tanh = _elementwise(torch.tanh)
erf = _elementwise(torch.erf)


def _extreme(in_numpy: Any, of_zeros: Callable[..., Any]) -> Callable[..., Any]:
    """`fmax` or `fmin` with signed zeros as in PTX: of two zeros NumPy takes the second."""

    def call(a: Any, b: Any, out: Array | None = None) -> Any:
        if _has_no_zero(a) or _has_no_zero(b):  # most often
            return in_numpy(a, b) if out is None else in_numpy(a, b, out)
        found = np.where((a == 0) & (b == 0), of_zeros(a, b), in_numpy(a, b))
        if out is None:
            return found if found.ndim else found[()]
        np.copyto(out, found)
        return out

    return call


def _has_no_zero(x: Any) -> bool:
    return bool(x.all() if isinstance(x, np.ndarray) else x)


fmax = _extreme(np.fmax, lambda a, b: a + b)
fmin = _extreme(np.fmin, lambda a, b: -(-a - b))


def power(x: Any, y: Any, out: Array | None = None) -> Any:
    """`x` to the power `y`, of floats, by float64."""
    kind = np.result_type(x, y)
    x, y = np.asarray(x, kind), np.asarray(y, kind)
    found = np.power(x, y, out, dtype=np.float64, casting="same_kind")
    return found if out is not None else found.astype(kind)


def round_away(x: Any, out: Any = None) -> Any:
    """Round half away from zero, as C's `round`."""
    whole = np.trunc(x)
    return np.add(whole, np.copysign(np.abs(x - whole) >= x.dtype.type(0.5), x), out)


def exp10(x: Any, out: Any = None) -> Any:
    """Ten to the power `x`."""
    return power(x.dtype.type(10), x, out)


def to_int(x: Any, dtype: str) -> Any:
    """Float to integer: towards zero, saturating, NaN to 0, as CUDA converts."""
    info = np.iinfo(dtype)
    if not isinstance(x, np.ndarray):
        number = float(x)
        if math.isnan(number):
            return 0
        return int(min(max(number, info.min), info.max))
    with np.errstate(invalid="ignore"):
        out = x.astype(dtype)
    odd = ~(np.abs(x) < float(info.max))
    if odd.any():
        out[x >= float(info.max)] = info.max
        out[x <= float(info.min)] = info.min
        out[np.isnan(x)] = 0
    return out


def wrap(x: int, bits: int, signed: bool) -> int:
    """A Python integer in two's complement of `bits`."""
    x &= (1 << bits) - 1
    return x - (1 << bits) if signed and x >> (bits - 1) else x


def div(a: Any, b: Any) -> Any:
    """Integer division that rounds down."""
    if not isinstance(b, np.ndarray) and b == 0:
        raise InterpreterError("integer division by zero")
    return a // b


def mod(a: Any, b: Any) -> Any:
    """The remainder of `div`; has the sign of `b`."""
    if not isinstance(b, np.ndarray) and b == 0:
        raise InterpreterError("integer modulo by zero")
    return a % b


def trunc_div(a: Any, b: Any) -> Any:
    """Integer division towards zero, as C's `/`."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        quotient = np.floor_divide(a, b)
        return quotient + ((quotient < 0) & (quotient * b != a)).astype(quotient.dtype)
    if b == 0:
        raise InterpreterError("integer division by zero")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def trunc_mod(a: Any, b: Any) -> Any:
    """The remainder of `trunc_div`; has the sign of `a`."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.fmod(a, b)
    return a - b * trunc_div(a, b)


def select(condition: Any, a: Any, b: Any, dtype: Any) -> Array:
    """`a` where `condition` holds, else `b`, as a new array of `dtype`."""
    if not isinstance(a, np.ndarray) or a.dtype != dtype:
        a = np.asarray(a, dtype)
    if not isinstance(b, np.ndarray) or b.dtype != dtype:
        b = np.asarray(b, dtype)
    chosen: Array = np.where(condition, a, b)
    return chosen


_BY_NAME = {name: CODECS[dtype.codec] for name, dtype in TILE_DTYPES.items() if dtype.codec}


def bits(value: Any, source: str, target: str) -> Any:
    """`T.reinterpret`: the same bits as another dtype of the same width."""
    array = np.array(value, ndmin=1)
    array = _BY_NAME[source].pack(array) if source in _BY_NAME else array.astype(source)
    if target in _BY_NAME:
        codec = _BY_NAME[target]
        array = codec.widen(array.view(codec.pack(0.0).dtype))
    else:
        array = array.view(target)
    if isinstance(value, np.ndarray):
        return array.reshape(value.shape)
    return array[0] if array.dtype.kind == "f" else array[0].item()


def show(message: str, value: Any, mask: Any) -> None:
    """`T.print`: once for a value that all threads share, else for every lane that is active."""
    if mask is not None and not np.any(mask):
        return
    if value is None:
        sys.stdout.write(f"{message}\n")
        return
    if isinstance(value, np.ndarray) and mask is not None:
        value = value[np.broadcast_to(mask, value.shape)]
    sys.stdout.write(f"{message}: {value}\n")


def popcount(x: Any, bits: int) -> Any:
    """How many of `bits` bits are set."""
    if isinstance(x, np.ndarray):
        return np.bitwise_count(_unsigned(x))
    return (x & ((1 << bits) - 1)).bit_count()


def leading_zeros(x: Any, bits: int) -> Any:
    """How many of the highest of `bits` bits are clear before the first that is set."""
    if not isinstance(x, np.ndarray):
        return bits - (x & ((1 << bits) - 1)).bit_length()
    unsigned = _unsigned(x)
    out = np.full(x.shape, bits, np.int64)
    for bit in range(bits):  # the last that is set decides
        out[(unsigned >> unsigned.dtype.type(bit)) & 1 != 0] = bits - 1 - bit
    return out


def first_set(x: Any, bits: int) -> Any:
    """Which bit is the lowest that is set, from 1; 0 if none is."""
    if not isinstance(x, np.ndarray):
        x &= (1 << bits) - 1
        return (x & -x).bit_length()
    return np.where(x == 0, 0, bits - leading_zeros(x & -x, bits))


def _unsigned(x: Any) -> Any:
    return x.view(x.dtype.str.replace("i", "u"))


def half_toward_zero(x: Any) -> Any:
    """Float32 to float16 towards zero, as CUDA's `__float2half_rz`; as float32."""
    values = np.array(x, np.float32, ndmin=1)
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    bits = halves.view(np.uint16)
    bits[np.abs(halves.astype(np.float32)) > np.abs(values)] -= 1
    found = halves.astype(np.float32)
    return found.reshape(x.shape) if isinstance(x, np.ndarray) else found[0]
