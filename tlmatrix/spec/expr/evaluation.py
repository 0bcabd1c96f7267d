"""Trees of expressions, and their evaluation: one closure for each node.

A closure maps names to the value, or raises `Failed`. Values are Python's; arithmetic takes
numbers, and lists of numbers element by element. Powers and lists are bounded, so that no
expression can hang a run or exhaust memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tlmatrix.spec.values import SIDES, lengths_of, sides_of

Evaluate = Callable[[Mapping[str, Any]], Any]
"""An evaluator of a node: from names to the value."""

MAX_POWER_BITS = 4096
"""The most bits of an integer power."""
MAX_LIST = 1 << 14
"""The most elements of a list in arithmetic."""
_MAX_ELEMENT = 1 << 62
"""The limit of whole numbers in a computed list."""
SPARE_PAGES = 3
"""Pages of a pool that no sequence owns, to detect reads of them."""
_NUMBERS = (int, float)
_LISTS = (list, tuple)


class Failed(Exception):  # noqa: N818 - `ExpressionError` is what users see
    """An evaluation error, without the text of the expression."""

    def __init__(self, reason: str, offset: int) -> None:
        self.reason = reason
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the tree of an expression.

    Attributes:
        kind: what the node is.
        value: of a constant its value; of a name or call the name; of a side its letter; of an
            operator its sign; of a comparison (sign, offset) of each operator of the chain.
        parts: the operands; of `if` the condition and both branches.
        offset: the index in the text that an error of the node names.
        depth: the levels of the tree below and with the node.
    """

    kind: Literal[
        "constant", "name", "side", "list", "call", "if", "and", "or", "not", "compare", "signed",
        "arithmetic",
    ]  # fmt: skip
    value: Any = None
    parts: tuple[Node, ...] = ()
    offset: int = 0
    depth: int = 1

    def names(self) -> Iterator[str]:
        """The names that evaluation looks up, with repetitions."""
        if self.kind == "name":
            yield self.value
        for part in self.parts:
            yield from part.names()

    @property
    def is_singleton(self) -> bool:
        """Whether the node is the constant none, true or false, which `is` accepts."""
        return self.kind == "constant" and (self.value is None or isinstance(self.value, bool))


def evaluator(node: Node) -> Evaluate:
    """The closure of a node."""
    parts = [evaluator(part) for part in node.parts]
    match node.kind:
        case "constant":
            value = node.value
            return lambda _names: value
        case "name":
            return operator.itemgetter(node.value)
        case "side":
            return _side(node)
        case "list":
            return lambda names: [part(names) for part in parts]
        case "call":
            return _call(node, parts)
        case "if":
            condition, chosen, other = parts
            return lambda names: chosen(names) if condition(names) else other(names)
        case "not":
            (operand,) = parts
            return lambda names: not operand(names)
        case "and" | "or":
            return _joined(parts, ends_at=node.kind == "or")
        case "compare":
            return _comparison(node, parts)
        case "signed":
            return _signed(node, *parts)
        case "arithmetic":
            left, right = parts
            compute = arithmetic(node.value, node.offset)
            return lambda names: compute(left(names), right(names))


# Operators -----------------------------------------------------------------------------------


def _joined(parts: list[Evaluate], *, ends_at: bool) -> Evaluate:
    """`or` and `and`: the first operand that is true, or false, else the last."""
    if len(parts) == 2:
        left, right = parts
        if ends_at:
            return lambda names: left(names) or right(names)
        return lambda names: left(names) and right(names)
    *leading, last = parts

    def evaluate(names: Any) -> Any:  # noqa: ANN401
        for each in leading:
            value = each(names)
            if bool(value) is ends_at:
                return value
        return last(names)

    return evaluate


def _comparison(node: Node, parts: list[Evaluate]) -> Evaluate:
    """A chain `a < b < c`: each operand is evaluated at most once, until a comparison is false."""
    first = parts[0]
    links: list[tuple[Callable[[Any, Any], Any], Evaluate]] = []
    for (sign, offset), operand, right in zip(node.value, node.parts[1:], parts[1:], strict=True):
        is_list = sign in ("in", "not in") and next(operand.names(), None) is None
        links.append((comparison(sign, offset), _fixed(right) if is_list else right))
    if len(links) == 1:
        ((compare, other),) = links
        return lambda names: compare(first(names), other(names))

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


def _fixed(evaluate: Evaluate) -> Evaluate:
    """A list without names, made once; on failure, evaluated at each call."""
    try:
        value = evaluate({})
    except Failed:
        return evaluate
    return lambda _names: value


def comparison(sign: str, offset: int) -> Callable[[Any, Any], Any]:
    """The function of a comparison operator; order and `in` may raise `Failed`."""
    match sign:
        case "is":
            return operator.is_
        case "is not":
            return operator.is_not
        case "==":
            return _equal
        case "!=":
            return lambda left, right: not _equal(left, right)
    compare: Callable[[Any, Any], Any] = {
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
        "in": lambda left, right: left in right,
        "not in": lambda left, right: left not in right,
    }[sign]

    def compared(left: Any, right: Any) -> Any:  # noqa: ANN401
        try:
            return compare(left, right)
        except TypeError:
            reason = f"cannot compare {_show(left)} {sign} {_show(right)}"
            if sign in ("in", "not in"):
                reason = f"{sign!r} needs a list, not {_show(right)}"
            raise Failed(reason, offset) from None

    return compared


def _equal(left: Any, right: Any) -> bool:  # noqa: ANN401
    """Equality; lists and tuples with equal elements are equal."""
    if type(left) is not type(right) and isinstance(left, _LISTS) and isinstance(right, _LISTS):
        return list(left) == list(right)
    return bool(left == right)


def _side(node: Node) -> Evaluate:
    """The lengths of one side of a packed axis, `seqlens.q`."""
    name, side = node.parts[0].value, node.value

    def evaluate(names: Any) -> Any:  # noqa: ANN401
        if side not in SIDES:
            raise Failed(f"{name!r} has no side {side!r}; a packed axis has q and k", node.offset)
        try:
            return list(sides_of(names[name], name)[SIDES.index(side)])
        except ValueError as problem:
            raise Failed(str(problem), node.offset) from None

    return evaluate


def _signed(node: Node, operand: Evaluate) -> Evaluate:
    """The unary operators `-` and `+`."""
    apply = operator.neg if node.value == "-" else operator.pos

    def evaluate(names: Any) -> Any:  # noqa: ANN401
        value = operand(names)
        if not isinstance(value, _NUMBERS):
            raise Failed(f"{node.value!r} needs a number, not {_show(value)}", node.offset)
        return apply(value)

    return evaluate


def arithmetic(sign: str, offset: int) -> Callable[[Any, Any], Any]:
    """The function of a binary operator, on numbers or on lists of numbers element by element.

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

    def compute(a: Any, b: Any) -> Any:  # noqa: ANN401
        if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS):
            return scalar(a, b)
        try:
            return _elementwise(scalar, a, b)
        except ValueError as problem:
            raise Failed(f"{_show(a)} {sign} {_show(b)}: {problem}", offset) from None

    return compute


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


# Functions -----------------------------------------------------------------------------------


class _NoValueError(ValueError):
    """An error of a function; its text follows the call in the message."""


def _call(node: Node, parts: list[Evaluate]) -> Evaluate:
    """A call of one of `FUNCTIONS`."""
    function = FUNCTIONS[node.value][0]

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
        raise Failed(f"{node.value}({shown}) {reason}", node.offset)

    return call


def _ceildiv(total: Any, step: Any) -> Any:  # noqa: ANN401
    """Division rounded up, `ceildiv(65, 64)` is 2; element by element for lists."""

    def one(total: Any, step: Any) -> Any:  # noqa: ANN401
        if not (isinstance(total, _NUMBERS) and isinstance(step, _NUMBERS)):
            raise TypeError
        return -(-total // step)

    return _elementwise(one, total, step)


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

FUNCTIONS: Mapping[str, tuple[Callable[..., Any], int, int]] = {
    "sum": (lambda values: sum(_numbers(values)), 1, 1),
    "min": (_extreme(min), 1, _MANY),
    "max": (_extreme(max), 1, _MANY),
    "abs": (abs, 1, 1),
    "len": (_len, 1, 1),
    "ceildiv": (_ceildiv, 2, 2),
    "pages": (_pages, 2, 2),
}
"""Functions of the language, each with its least and most arguments."""


# Messages ------------------------------------------------------------------------------------


def shorten(text: str, width: int = 80) -> str:
    """`text`, truncated to one line of a message."""
    return text if len(text) <= width else text[: width - 3] + "..."


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
