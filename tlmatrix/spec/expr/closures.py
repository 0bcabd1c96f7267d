"""Evaluation of expressions: one closure for each node of the tree.

A closure maps names to the value, or raises `Failed`. Values are Python's; arithmetic takes
numbers, and lists of numbers element by element. Powers and lists are bounded, so that no
expression can hang a run or exhaust memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from tlmatrix.spec.lengths import SIDES, lengths_of, sides_of

Evaluate = Callable[[Mapping[str, Any]], Any]
"""An evaluator of a node: from names to the value."""

MAX_POWER_BITS = 4096
"""The most bits of an integer power."""
MAX_LIST = 1 << 14
"""The most elements of a list in arithmetic."""
_MAX_ELEMENT = 1 << 62
"""The limit of whole numbers in a computed list."""


class Failed(Exception):  # noqa: N818 - `ExpressionError` is what users see
    """An evaluation error, without the text of the expression."""

    def __init__(self, reason: str, offset: int) -> None:
        self.reason = reason
        self.offset = offset


def shorten(text: str, width: int = 80) -> str:
    """`text`, truncated to one line of a message."""
    return text if len(text) <= width else text[: width - 3] + "..."


_NUMBERS = (int, float)
_LISTS = (list, tuple)


def constant(value: object) -> Evaluate:
    """A constant."""
    return lambda _names: value


def fixed(evaluate: Evaluate) -> Evaluate:
    """A node without names, evaluated once; on failure, evaluated at each call."""
    try:
        return constant(evaluate({}))
    except Failed:
        return evaluate


def negated(evaluate: Evaluate) -> Evaluate:
    """The operator `not`."""
    return lambda names: not evaluate(names)


def first_true(parts: list[Evaluate]) -> Evaluate:
    """The operator `or`: the first true operand, else the last."""
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
    """The operator `and`: the first false operand, else the last."""
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


def conditional(condition: Evaluate, chosen: Evaluate, other: Evaluate) -> Evaluate:
    """`chosen if condition else other`; evaluates one of the two."""
    return lambda names: chosen(names) if condition(names) else other(names)


def collected(parts: list[Evaluate]) -> Evaluate:
    """A list of several operands."""
    return lambda names: [part(names) for part in parts]


def compared(left: Evaluate, compare: Callable[[Any, Any], Any], right: Evaluate) -> Evaluate:
    """A comparison of two operands."""
    return lambda names: compare(left(names), right(names))


def chained(
    first: Evaluate, links: list[tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]]
) -> Evaluate:
    """`a < b < c`: each operand is evaluated at most once, until a comparison is false."""

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
    """The function of a comparison operator; order and `in` may raise `Failed`."""
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
    """Equality; lists and tuples with equal elements are equal."""
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
            reason = f"{name!r} needs a list, not {_show(right)}"
            raise Failed(reason, offset) from None

    return contained


def one_side(name: str, side: str, offset: int) -> Evaluate:
    """The lengths of one side of a packed axis, `seqlens.q`."""

    def evaluate(names: Any) -> Any:  # noqa: ANN401
        if side not in SIDES:
            raise Failed(f"{name!r} has no side {side!r}; a packed axis has q and k", offset)
        try:
            return list(sides_of(names[name], name)[SIDES.index(side)])
        except ValueError as problem:
            raise Failed(str(problem), offset) from None

    return evaluate


def signed(sign: str, offset: int, evaluate: Evaluate) -> Evaluate:
    """The unary operators `-` and `+`."""
    apply = operator.neg if sign == "-" else operator.pos

    def evaluated(names: Any) -> Any:  # noqa: ANN401
        value = evaluate(names)
        if not isinstance(value, _NUMBERS):
            raise Failed(f"{sign!r} needs a number, not {_show(value)}", offset)
        return apply(value)

    return evaluated


def arithmetic(sign: str, offset: int, left: Evaluate, right: Evaluate) -> Evaluate:
    """A binary operator on numbers, or on lists of numbers element by element.

    Text is excluded, since it could exhaust memory: `'%999999999d' % 1`.
    """
    apply: Callable[[Any, Any], Any] = {
        "+": operator.add,
        "-": operator.sub,
        "*": operator.mul,
        "/": operator.truediv,
        "//": operator.floordiv,
        "%": operator.mod,
        "**": _bounded_power,
    }[sign]

    def scalar(a: Any, b: Any) -> Any:  # noqa: ANN401
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

    def evaluate(names: Any) -> Any:  # noqa: ANN401
        a, b = left(names), right(names)
        if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS):
            return scalar(a, b)
        try:
            return _elementwise(scalar, a, b)
        except ValueError as problem:
            raise Failed(f"{_show(a)} {sign} {_show(b)}: {problem}", offset) from None

    return evaluate


def _elementwise(apply: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:  # noqa: ANN401
    """`apply` on numbers, or element by element if an operand is a list.

    Raises:
        ValueError: the lists have different lengths, or exceed a limit.
    """
    a, b = (lengths_of(each) if isinstance(each, Mapping) else each for each in (a, b))
    if not isinstance(a, _LISTS) and not isinstance(b, _LISTS):
        return apply(a, b)
    a = a if isinstance(a, _LISTS) else [a] * len(b)
    b = b if isinstance(b, _LISTS) else [b] * len(a)
    if len(a) != len(b):
        raise ValueError(f"lists of {len(a)} and {len(b)} elements")
    if len(a) > MAX_LIST:
        raise ValueError(f"a list of more than {MAX_LIST} elements")
    found = [apply(x, y) for x, y in zip(a, b, strict=True)]
    if any(isinstance(each, int) and abs(each) >= _MAX_ELEMENT for each in found):
        raise ValueError("too large a number for a list")
    return found


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
        except _NoValueError as problem:
            reason = str(problem)
        except (TypeError, ValueError, OverflowError):
            reason = "is not defined"
        shown = ", ".join(_show(value) for value in values)
        raise Failed(f"{name}({shown}) {reason}", offset)

    return call


def _ceildiv(total: Any, step: Any) -> Any:  # noqa: ANN401
    """Division rounded up, `ceildiv(65, 64)` is 2; element by element for lists."""

    def one(total: Any, step: Any) -> Any:  # noqa: ANN401
        if not (isinstance(total, _NUMBERS) and isinstance(step, _NUMBERS)):
            raise TypeError
        return -(-total // step)

    return _elementwise(one, total, step)


class _NoValueError(ValueError):
    """An error of a function; its text follows the call in the message."""


def _sum(values: Any) -> Any:  # noqa: ANN401
    return sum(_numbers(values))


def _extreme(best: Callable[..., Any]) -> Callable[..., Any]:
    """`min` or `max` of several values or of one list; 0 for an empty list."""

    def found(*values: Any) -> Any:  # noqa: ANN401
        one = values[0] if len(values) == 1 else None
        if isinstance(one, Mapping):
            one = _numbers(one)
        return best(one, default=0) if isinstance(one, _LISTS) else best(*values)

    return found


def _len(value: Any) -> int:  # noqa: ANN401
    """The number of elements; of a packed axis with sides, the number of sequences."""
    count: int = len(sides_of(value)[0]) if isinstance(value, Mapping) else len(value)
    return count


def _pages(lengths: Any, page_size: Any) -> Any:  # noqa: ANN401
    """The number of pages of a pool: those of the sequences, and `SPARE_PAGES`."""
    if type(page_size) is not int or page_size < 1:
        raise _NoValueError("needs a page size of 1 or more")
    owned: int = sum(-(-length // page_size) for length in _numbers(lengths))
    return owned + SPARE_PAGES


def _numbers(values: Any) -> Any:  # noqa: ANN401
    """The elements of a list of numbers, or the lengths of a packed axis without sides."""
    if isinstance(values, Mapping):
        try:
            return lengths_of(values)
        except ValueError as problem:
            raise _NoValueError(f"has no value: {problem}") from None
    if not isinstance(values, _LISTS) or not all(isinstance(each, _NUMBERS) for each in values):
        raise _NoValueError("needs a list of numbers")
    return values


_MANY = 1 << 20
SPARE_PAGES = 3
"""Pages of a pool that no sequence owns, to detect reads of them."""

FUNCTIONS: Mapping[str, tuple[Callable[..., Any], int, int]] = {
    "sum": (_sum, 1, 1),
    "min": (_extreme(min), 1, _MANY),
    "max": (_extreme(max), 1, _MANY),
    "abs": (abs, 1, 1),
    "len": (_len, 1, 1),
    "ceildiv": (_ceildiv, 2, 2),
    "pages": (_pages, 2, 2),
}
"""Functions of the language, each with its least and most arguments."""


def _show(value: object) -> str:
    """A value in YAML syntax, truncated to one line."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int() if value.bit_length() > 200:
            return f"a number of {value.bit_length()} bits"
        case _:
            return shorten(repr(value), 40)
