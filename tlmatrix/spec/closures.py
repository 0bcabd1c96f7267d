"""How the pieces of an expression are evaluated: one closure for each.

A closure takes the names and gives the value; what cannot be evaluated raises `Failed`. Values
are Python's, but arithmetic takes numbers only and powers are bounded: a hostile expression
must be able neither to hang a run nor to fill the memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

__all__ = [
    "FUNCTIONS",
    "Evaluate",
    "Failed",
    "arithmetic",
    "called",
    "chained",
    "collected",
    "compared",
    "comparison",
    "constant",
    "first_false",
    "first_true",
    "fixed",
    "negated",
    "shorten",
    "signed",
]

Evaluate = Callable[[Mapping[str, Any]], Any]
"""A piece of an expression: from the names to the value."""

MAX_POWER_BITS = 4096
"""Bits an integer power may have."""


class Failed(Exception):  # noqa: N818 - `ExpressionError` is what users see
    """Why evaluation stopped, before the text of the expression is known."""

    def __init__(self, reason: str, offset: int) -> None:
        self.reason = reason
        self.offset = offset


def shorten(text: str, width: int = 80) -> str:
    """`text`, or its beginning where it is too long for one line of a message."""
    return text if len(text) <= width else text[: width - 3] + "..."


_NUMBERS = (int, float)


def constant(value: object) -> Evaluate:
    """What is written out."""
    return lambda _names: value


def fixed(evaluate: Evaluate) -> Evaluate:
    """The closure of a piece that looks up no name, evaluated now (later if that fails)."""
    try:
        return constant(evaluate({}))
    except Failed:
        return evaluate


def negated(evaluate: Evaluate) -> Evaluate:
    """`not`."""
    return lambda names: not evaluate(names)


def first_true(parts: list[Evaluate]) -> Evaluate:
    """`or`: the first operand that is true, else the last one."""
    if len(parts) == 2:
        left, right = parts
        return lambda names: left(names) or right(names)
    *leading, last = parts

    def evaluate(names: Any) -> Any:  # noqa: ANN401
        for each in leading:
            if value := each(names):
                return value
        return last(names)

    return evaluate


def first_false(parts: list[Evaluate]) -> Evaluate:
    """`and`: the first operand that is false, else the last one."""
    if len(parts) == 2:
        left, right = parts
        return lambda names: left(names) and right(names)
    *leading, last = parts

    def evaluate(names: Any) -> Any:  # noqa: ANN401
        for each in leading:
            if not (value := each(names)):
                return value
        return last(names)

    return evaluate


def collected(parts: list[Evaluate]) -> Evaluate:
    """A list."""
    return lambda names: [part(names) for part in parts]


def compared(left: Evaluate, compare: Callable[[Any, Any], Any], right: Evaluate) -> Evaluate:
    """One comparison."""
    return lambda names: compare(left(names), right(names))


def chained(
    first: Evaluate, links: list[tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]]
) -> Evaluate:
    """`a < b < c`: every operand evaluated at most once, and none after the first failure."""

    def evaluate(names: Any) -> Any:  # noqa: ANN401
        left = first(names)
        result: Any = True
        for compare, right_of in links:
            right = right_of(names)
            result = compare(left, right)
            if not result:
                return result
            left = right
        return result

    return evaluate


def comparison(name: str, offset: int) -> Callable[[Any, Any], Any]:
    """A comparison of two values; identity and equality cannot fail, order and `in` can."""
    match name:
        case "is":
            return operator.is_
        case "is not":
            return operator.is_not
        case "==":
            return _equal
        case "!=":
            return lambda left, right: not _equal(left, right)
        case "in" | "not in":
            return _membership(name, offset)
    compare = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[name]

    def ordered(left: Any, right: Any) -> Any:  # noqa: ANN401
        try:
            return compare(left, right)
        except TypeError:
            reason = f"cannot compare {_show(left)} {name} {_show(right)}"
            raise Failed(reason, offset) from None

    return ordered


def _equal(left: Any, right: Any) -> bool:  # noqa: ANN401
    """`==`, where a list from YAML equals the same values in a tuple from Python."""
    if (
        type(left) is not type(right)
        and type(left) in (list, tuple)
        and type(right) in (list, tuple)
    ):
        return list(left) == list(right)
    return bool(left == right)


def _membership(name: str, offset: int) -> Callable[[Any, Any], Any]:
    wanted = name == "in"

    def contained(left: Any, right: Any) -> bool:  # noqa: ANN401
        try:
            return (left in right) is wanted
        except TypeError:
            reason = f"{_show(right)} is no list to look for {_show(left)} in"
            raise Failed(reason, offset) from None

    return contained


def signed(sign: str, offset: int, evaluate: Evaluate) -> Evaluate:
    """`-x` and `+x`."""
    apply = operator.neg if sign == "-" else operator.pos

    def evaluated(names: Any) -> Any:  # noqa: ANN401
        value = evaluate(names)
        if not isinstance(value, _NUMBERS):
            raise Failed(f"{sign!r} needs a number, not {_show(value)}", offset)
        return apply(value)

    return evaluated


def arithmetic(sign: str, offset: int, left: Evaluate, right: Evaluate) -> Evaluate:
    """A binary operator on numbers; `'%999999999d' % 1` and `[0] * 10**9` would eat all memory."""
    apply: Callable[[Any, Any], Any] = {
        "+": operator.add,
        "-": operator.sub,
        "*": operator.mul,
        "/": operator.truediv,
        "//": operator.floordiv,
        "%": operator.mod,
        "**": _bounded_power,
    }[sign]

    def evaluate(names: Any) -> Any:  # noqa: ANN401
        a = left(names)
        b = right(names)
        if not (isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS)):
            bad = b if isinstance(a, _NUMBERS) else a
            raise Failed(f"{sign!r} needs numbers, not {_show(bad)}", offset)
        try:
            return apply(a, b)
        except ZeroDivisionError:
            reason = f"{_show(a)} {sign} {_show(b)} divides by zero"
        except (OverflowError, ValueError) as problem:
            reason = f"{_show(a)} {sign} {_show(b)}: {problem}"
        raise Failed(reason, offset)

    return evaluate


def _bounded_power(base: Any, exponent: Any) -> Any:  # noqa: ANN401
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and abs(exponent) * base.bit_length() > MAX_POWER_BITS:
        raise OverflowError("too large a power")
    result = base**exponent
    if isinstance(result, complex):
        raise ValueError("a root of a negative number")  # noqa: TRY004 - the value is wrong
    return result


def called(name: str, offset: int, parts: list[Evaluate]) -> Evaluate:
    """A call of one of `FUNCTIONS`."""
    function = FUNCTIONS[name][0]

    def call(names: Any) -> Any:  # noqa: ANN401
        values = [part(names) for part in parts]
        try:
            return function(*values)
        except ZeroDivisionError:
            reason = "divides by zero"
        except (TypeError, ValueError, OverflowError):
            reason = "has no such value"
        shown = ", ".join(_show(value) for value in values)
        raise Failed(f"{name}({shown}) {reason}", offset)

    return call


def _ceildiv(total: Any, step: Any) -> Any:  # noqa: ANN401
    """How many steps cover the total: `ceildiv(65, 64)` is 2."""
    if not (isinstance(total, _NUMBERS) and isinstance(step, _NUMBERS)):
        raise TypeError
    return -(-total // step)


_MANY = 1 << 20

FUNCTIONS: Mapping[str, tuple[Callable[..., Any], int, int]] = {
    "min": (min, 1, _MANY),
    "max": (max, 1, _MANY),
    "abs": (abs, 1, 1),
    "len": (len, 1, 1),
    "ceildiv": (_ceildiv, 2, 2),
}
"""Functions an expression may call: what runs, and the least and most values it takes."""


def _show(value: object) -> str:
    """A value as a spec writes it, and never more than a line of it."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int() if value.bit_length() > 200:
            return f"a number of {value.bit_length()} bits"
        case _:
            return shorten(repr(value), 40)
