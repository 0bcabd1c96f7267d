"""Bounds of expressions over partial rows, by interval arithmetic.

A constraint over twelve axes of ten values has 10^12 combinations. Bounds prove that a partial row
cannot be completed, so that a search leaves most of them out. Where a piece of an expression is not
modelled, its value is unknown: bounds then exclude less, and never too much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise, product
from math import isnan, prod
from typing import TYPE_CHECKING, Any, NamedTuple

from tlmatrix.spec.expr.evaluation import FUNCTIONS, Failed, arithmetic, comparison

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tlmatrix.spec.expr.evaluation import Node
    from tlmatrix.spec.values import Value


class Range(NamedTuple):
    """Numbers from `low` to `high`."""

    low: float
    high: float


Bounds = Range | list[Any] | None
"""The values that a node may have: a range, or a few; None if unknown, or if it has no value."""
Bounded = Callable[[Sequence[int]], Bounds]
"""The bounds of a node for a partial row."""
_FEW = 32
_NO_VALUE = (Failed, ZeroDivisionError, TypeError, ValueError, OverflowError)


def part_of(entry: int, size: int) -> range:
    """The indices of an axis of `size` values for which an entry of a partial row stands.

    An index stands for itself, -1 (unbound) for all; -2 and -3 for the halves of -1, -4 and -5 for
    the halves of -2, and so on.
    """
    if entry >= 0:
        return range(entry, entry + 1)
    low, high = 0, size
    for bit in bin(-entry)[3:]:
        middle = (low + high) // 2
        low, high = (low, middle) if bit == "0" else (middle, high)
    return range(low, high)


def bounds_of(
    node: Node, position_of: Mapping[str, int], axes: Mapping[str, Sequence[Value]]
) -> Bounded:
    """The bounds of a node over `axes`, as a function of a partial row.

    `position_of` gives the position of each axis in a row.
    """
    parts = [bounds_of(part, position_of, axes) for part in node.parts]
    match node.kind:
        case "constant":
            some = [node.value]
            return lambda _row: some
        case "name" if node.value in position_of:
            return _axis(position_of[node.value], axes[node.value])
        case "list":
            return _applied(lambda *values: list(values), None, parts)
        case "call":
            over = _monotone(node.value) if len(parts) > 1 or node.value == "abs" else None
            return _applied(FUNCTIONS[node.value][0], over, parts)
        case "if":
            return _branched(*parts)
        case "and" | "or":
            return _chosen(parts, ends_at=node.kind == "or")
        case "not":
            return _applied(lambda value: not value, _negated, parts)
        case "compare":
            links = [
                _applied(comparison(sign, 0), _compared(sign), pair)
                for (sign, _), pair in zip(node.value, pairwise(parts), strict=True)
            ]
            return links[0] if len(links) == 1 else _chosen(links, ends_at=False)
        case "signed" if node.value == "-":
            zero = [0]
            return _applied(arithmetic("-", 0), _of_corners, [lambda _row: zero, *parts])
        case "arithmetic":
            return _applied(arithmetic(node.value, 0), _monotone(node.value), parts)
    return lambda _row: None


def may_hold(bounds: Bounds) -> bool:
    """Whether a value with these bounds may be true."""
    return _truths(bounds)[0]


# Nodes ---------------------------------------------------------------------------------------


def _axis(position: int, values: Sequence[Value]) -> Bounded:
    @cache
    def of_part(entry: int) -> Bounds:
        part = part_of(entry, len(values))
        some = values[part.start : part.stop]
        numbers = [
            value
            for value in some
            if isinstance(value, int | float) and not isinstance(value, bool) and not isnan(value)
        ]
        if numbers and len(numbers) == len(some):
            return Range(min(numbers), max(numbers))
        return list(some) if len(some) <= _FEW else None

    def bounds(row: Sequence[int]) -> Bounds:
        entry = row[position]
        return [values[entry]] if entry >= 0 else of_part(entry)

    return bounds


def _applied(
    apply: Callable[..., Any], over: Callable[..., Bounds] | None, parts: Sequence[Bounded]
) -> Bounded:
    """`apply` to the values of `parts`; `over` gives its bounds over ranges."""

    def bounds(row: Sequence[int]) -> Bounds:
        given = [part(row) for part in parts]
        if None in given:
            return None
        try:
            lists = [each for each in given if type(each) is list]
            if len(lists) == len(given) and prod(map(len, lists)) <= _FEW:
                return [apply(*each) for each in product(*lists)]
            if over is None:
                return None
            ranges = [_range_of(each) for each in given]
            return None if None in ranges else over(apply, *ranges)
        except _NO_VALUE:
            return None

    return bounds


def _chosen(parts: Sequence[Bounded], *, ends_at: bool) -> Bounded:
    """`or` and `and`: the first operand that is true, or false, otherwise the last."""

    def join(left: Bounds, right: Bounds) -> Bounds:
        if left is None:
            return None
        true, false = _truths(left)
        decides, goes_on = (true, false) if ends_at else (false, true)
        if not goes_on:
            return left
        if not decides:
            return right
        if type(left) is list:
            left = [each for each in left if bool(each) is ends_at]
        return _union(left, right)

    def bounds(row: Sequence[int]) -> Bounds:
        found = parts[-1](row)
        for part in reversed(parts[:-1]):
            found = join(part(row), found)
        return found

    return bounds


def _branched(condition: Bounded, chosen: Bounded, other: Bounded) -> Bounded:
    """`chosen if condition else other`."""

    def bounds(row: Sequence[int]) -> Bounds:
        decides = condition(row)
        if decides is None:
            return None  # If the condition has no value, the whole has none.
        true, false = _truths(decides)
        if not false:
            return chosen(row)
        return _union(chosen(row), other(row)) if true else other(row)

    return bounds


# Ranges --------------------------------------------------------------------------------------


def _truths(bounds: Bounds) -> tuple[bool, bool]:
    """Whether a value may be true, and whether it may be false or undefined."""
    if bounds is None:
        return True, True
    if isinstance(bounds, Range):
        return not bounds.low == bounds.high == 0, bounds.low <= 0 <= bounds.high
    return any(bounds), not all(bounds)


def _union(left: Bounds, right: Bounds) -> Bounds:
    """Bounds of a value that has either of two bounds."""
    if type(left) is list and type(right) is list:
        return left + right if len(left) + len(right) <= _FEW else None
    a, b = _range_of(left), _range_of(right)
    return None if a is None or b is None else Range(min(a.low, b.low), max(a.high, b.high))


def _range_of(bounds: Bounds) -> Range | None:
    if bounds is None or isinstance(bounds, Range):
        return bounds
    if not all(isinstance(each, int | float) and not isnan(each) for each in bounds):
        return None
    return Range(min(bounds), max(bounds))


def _negated(_: object, a: Range) -> Bounds:
    true, false = _truths(a)
    return [*([False] if true else []), *([True] if false else [])]


def _compared(sign: str) -> Callable[..., Bounds]:
    """The truth of a comparison of two ranges."""

    def over(_: object, a: Range, b: Range) -> Bounds:
        match sign:
            case "<" | ">=":
                always, never = a.high < b.low, a.low >= b.high
            case "<=" | ">":
                always, never = a.high <= b.low, a.low > b.high
            case "==" | "!=":
                always = a.low == a.high == b.low == b.high
                never = a.high < b.low or b.high < a.low
            case _:
                return None
        wanted = sign in ("<", "<=", "==")
        return [wanted] if always else [not wanted] if never else [True, False]

    return over


def _monotone(name: str) -> Callable[..., Bounds] | None:
    """The interval extension of an operation that is monotone in each operand."""
    match name:
        case "+" | "-" | "*" | "min" | "max":
            return _of_corners
        case "/" | "//" | "ceildiv":
            return lambda apply, a, b: None if b.low <= 0 <= b.high else _of_corners(apply, a, b)
        case "**":
            return _of_powers
        case "%":
            return _of_remainders
        case "abs":
            return lambda _, a: Range(
                0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high)),
                max(abs(a.low), abs(a.high)),
            )  # fmt: skip
    return None


def _of_corners(apply: Callable[..., Any], *given: Range) -> Bounds:
    corners: Iterator[Any] = (apply(*each) for each in product(*given))
    low = high = next(corners)
    for each in corners:
        if isnan(each):
            return None
        low, high = min(low, each), max(high, each)
    return None if isnan(low) else Range(low, high)


def _of_powers(apply: Callable[..., Any], a: Range, b: Range) -> Bounds:
    whole = all(isinstance(each, int) for each in (*a, *b))
    return _of_corners(apply, a, b) if whole and a.low >= 1 and b.low >= 0 else None


def _of_remainders(_: object, a: Range, b: Range) -> Bounds:
    if b.low <= 0 or not all(isinstance(each, int) for each in (*a, *b)):
        return None
    return Range(0, min(a.high, b.high - 1) if a.low >= 0 else b.high - 1)
