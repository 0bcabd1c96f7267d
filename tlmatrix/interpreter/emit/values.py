"""The values of the emitter: what an expression of the IR became in the generated source.

A value is a scalar (a Python number, or a NumPy scalar of the value's own precision) or varies
over parallel axes (a NumPy array that broadcasts over them). Low-precision floats travel as
float32; `exact` says whether a value is already representable in its own dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.runtime.codecs import CODECS

_INTERPRETED = {name: dtype for name, dtype in TILE_DTYPES.items() if dtype.interpreted}
LOW_PRECISION = {name: dtype.codec for name, dtype in _INTERPRETED.items() if dtype.codec}
FLOATS = frozenset(name for name, dtype in _INTERPRETED.items() if dtype.floating)
INTEGERS = frozenset(n for n, dtype in _INTERPRETED.items() if dtype.kind in ("int", "uint"))


def is_float(dtype: str) -> bool:
    """Whether values of `dtype` are floating point."""
    return dtype in FLOATS


def is_float8(dtype: str) -> bool:
    """Whether values of `dtype` are floating point of 8 bits."""
    return dtype in FLOATS and TILE_DTYPES[dtype].bits == 8


def is_int(dtype: str) -> bool:
    """Whether values of `dtype` are integers (bool is not)."""
    return dtype in INTEGERS


def is_value(dtype: str) -> bool:
    """Whether `dtype` has values that the interpreter computes with."""
    return dtype in _INTERPRETED


def numpy_name(dtype: str) -> str:
    """The NumPy dtype that carries values of `dtype` between loads and stores."""
    return TILE_DTYPES[dtype].carrier


def memory_name(dtype: str) -> str:
    """The NumPy dtype of memory that holds a low-precision `dtype` as the GPU does."""
    return TILE_DTYPES[dtype].memory


def numpy_type(dtype: str) -> str:
    """The name of the NumPy scalar type (NumPy has no `np.bool` before 2)."""
    return "bool_" if dtype == "bool" else numpy_name(dtype)


@dataclass(frozen=True)
class Integer:
    """Code of a scalar integer, in the parts of other code: a name, or as good as one."""

    code: str


class Code(str):
    """Code whose origin is known.

    Attributes:
        parts: text and integers, of code that follows from scalar integers and positions along
            parallel loops; None for other code.
        wrapped: whether it is an integer in two's complement.
        key: by which a block shares the integer; None if it does not (`sharing.Invariants`).
    """

    __slots__ = ("key", "parts", "wrapped")

    parts: tuple[str | Integer, ...] | None
    wrapped: bool
    key: Any

    def __new__(
        cls,
        text: str,
        parts: tuple[str | Integer, ...] | None = None,
        *,
        wrapped: bool = False,
        key: Any = None,
    ) -> Self:
        """Code with this text."""
        code = super().__new__(cls, text)
        code.parts, code.wrapped, code.key = parts, wrapped, key
        return code


def integer_code(text: str) -> Code:
    """Code of a scalar integer that other code refers to by its name."""
    return Code(text, (Integer(text),))


def parts_of(code: str) -> tuple[str | Integer, ...] | None:
    """The parts of code; None if they are not known."""
    return code.parts if isinstance(code, Code) else None


def expression(template: str, *operands: Val) -> str:
    """Code of an expression: operands in the place of `{}`."""
    text = template.format(*[operand.code for operand in operands])
    parts: list[str | Integer] = []
    for between, operand in zip(template.split("{}"), operands, strict=False):
        found = parts_of(operand.code)
        if found is None:
            return text
        parts += [between, *found]
    return Code(text, (*parts, template.rpartition("{}")[2]))


@dataclass(frozen=True)
class Affine:
    """An integer `base + sum(coefficient * index of axis)`, with a scalar base."""

    base: Val
    coefficients: tuple[tuple[int, int], ...]


@dataclass(slots=True, unsafe_hash=True)
class Val:
    """One value: source code, dtype, and what is known of it.

    It never changes, but a frozen class takes three times as long to make.

    Attributes:
        code: an expression of the generated source.
        dtype: the IR's dtype.
        axes: the parallel axes over which it varies; none for a scalar.
        lit: the value, if it is a constant.
        affine: its form as a base plus multiples of axis indices, if it has one.
        lo: a lower bound, if known (integers).
        hi: an upper bound, if known (integers).
        exact: whether a low-precision value is already rounded to its dtype.
        owned: whether it is a temporary array that the next operation may overwrite.
        alias: the buffer whose memory `code` is a view of, if any.
        below: code of a scalar that the value is known to be smaller than.
        inverse: code of the negated comparison, if it is an integer comparison.
        mutable: whether `code` is a variable that the kernel may set again.
        unwrapped: whether a scalar integer may have left its dtype's range (`integers.settle`).
    """

    code: str
    dtype: str
    axes: frozenset[int] = frozenset()
    lit: Any = None
    affine: Affine | None = None
    lo: int | None = None
    hi: int | None = None
    exact: bool = True
    owned: bool = False
    alias: str | None = None
    below: str | None = None
    inverse: str | None = None
    mutable: bool = False
    unwrapped: bool = False

    @property
    def scalar(self) -> bool:
        """Whether the value is the same in every iteration."""
        return not self.axes


def literal(value: Any, dtype: str) -> Val:
    """A constant of the IR."""
    if dtype == "bool":
        return Val(repr(bool(value)), dtype, lit=bool(value))
    if is_float(dtype):
        number = float(value)
        if dtype in LOW_PRECISION:
            number = float(CODECS[LOW_PRECISION[dtype]].round(number))
        code = "NAN" if number != number else repr(number)  # noqa: PLR0124  # NaN is unequal to itself
        code = {"inf": "INF", "-inf": "(-INF)"}.get(code, code)
        if code.startswith("-"):
            code = f"({code})"
        return Val(code, dtype, lit=number)
    return _integer(int(value), dtype)


@lru_cache(maxsize=1 << 12)
def _integer(number: int, dtype: str) -> Val:
    code = repr(number) if number >= 0 else f"({number})"
    return Val(Code(code, (code,)), dtype, lit=number, lo=number, hi=number)
