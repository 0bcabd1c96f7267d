"""Bounds and residuals of expressions over partial rows.

A constraint over twelve axes of ten values has 10^12 combinations, so it is solved, not enumerated:
interval arithmetic proves that a partial row cannot be completed, and equal residuals (partial
evaluations with the bound axes) have equally many solutions. Where a piece of an expression
is not modelled, its value is unknown: bounds then exclude less, and never too much.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from math import isnan
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from tlmatrix.spec.expr.closures import FUNCTIONS, Failed, arithmetic, comparison
from tlmatrix.spec.expr.tokens import WORDS
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    from tlmatrix.spec.values import Value


class _Range(NamedTuple):
    """Numbers from `low` to `high`."""

    low: float
    high: float


_Some = list[Any]
"""The possible values, if they are few."""
_Bounds = _Range | _Some | None
"""The values that a subexpression may have; None if unknown, or if it has no value."""

_FEW = 32
_OPEN = object()
"""The value of a residual that is no constant."""
_Residual = tuple["Hashable", Any]
"""A key, equal for expressions that are the same, and the value of a constant."""


@dataclass(frozen=True, eq=False)
class _Node:
    """A subexpression: its bounds and its residual, both functions of a partial row."""

    bounds: Callable[[Sequence[int]], _Bounds]
    residual: Callable[[Sequence[int]], _Residual]


@dataclass(frozen=True, eq=False)
class Conjunct:
    """A conjunct of a constraint; `positions` are those of its axes."""

    positions: tuple[int, ...]
    _node: _Node

    def possible(self, row: Sequence[int]) -> bool:
        """Whether values of the unbound axes may satisfy the conjunct; False is a proof."""
        return _truths(self._node.bounds(row))[0]

    def rest(self, row: Sequence[int]) -> Hashable:
        """True or False if the conjunct is decided, otherwise a key of its residual."""
        may_hold, may_fail = _truths(self._node.bounds(row))
        if not may_hold:
            return False
        if not may_fail:
            return True
        key, value = self._node.residual(row)
        return key if value is _OPEN else bool(value)


def conjuncts_of(
    text: str, position_of: Mapping[str, int], axes: Mapping[str, Sequence[Value]]
) -> tuple[Conjunct, ...]:
    """The conjuncts of an expression over `axes`; () if it cannot be parsed.

    `position_of` gives the position of each axis in a row.
    """
    try:
        root = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return ()  # A name may be a word of Python.
    operands = _conjuncts(root)
    builder = _Builder(position_of, axes, exact=_is_exact(root, position_of, axes))
    return tuple(
        Conjunct(
            tuple(
                sorted(
                    {
                        position_of[each.id]
                        for each in ast.walk(operand)
                        if isinstance(each, ast.Name) and each.id in position_of
                    }
                )
            ),
            builder.node(operand),
        )
        for operand in operands
    )


def _is_exact(
    root: ast.expr, position_of: Mapping[str, int], axes: Mapping[str, Sequence[Value]]
) -> bool:
    """Whether all numbers are integers, so that addition is associative."""
    numbers = [each.value for each in ast.walk(root) if isinstance(each, ast.Constant)]
    values = [value for name in position_of for value in axes[name]]
    divides = any(isinstance(each, ast.Div) for each in ast.walk(root))
    return not divides and not any(isinstance(each, float) for each in (*numbers, *values))


def _conjuncts(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return [each for operand in node.values for each in _conjuncts(operand)]
    return [node]


_SIGNS: Mapping[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}


class _Builder:
    """Builds nodes from Python's AST; the expression language is a subset of its grammar."""

    def __init__(
        self, position_of: Mapping[str, int], axes: Mapping[str, Sequence[Value]], *, exact: bool
    ) -> None:
        self._position_of = position_of
        self._axes = axes
        self._exact = exact

    def node(self, tree: ast.expr) -> _Node:
        match tree:
            case ast.Constant(value=bool() | int() | float() | None as value):
                return _constant(value)
            case ast.Constant(value=str(text)) if "\\" not in text:
                return _constant(text)
            case ast.Name(id=name) if name in WORDS:
                return _constant(WORDS[name])
            case ast.Name(id=name) if name in self._position_of:
                return _axis(self._position_of[name], self._axes[name])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return _applied("not", lambda value: not value, _no, [self.node(operand)])
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._binary("-", _constant(0), self.node(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _SIGNS:
                return self._binary(_SIGNS[type(op)], self.node(left), self.node(right))
            case ast.BoolOp(op=op, values=values):
                return _chosen(isinstance(op, ast.Or), [self.node(each) for each in values])
            case ast.Compare(left=left, ops=ops, comparators=rights):
                operands = [self.node(each) for each in (left, *rights)]
                links = [
                    _compared(_SIGNS[type(op)], *pair)
                    for op, pair in zip(ops, pairwise(operands), strict=True)
                ]
                return links[0] if len(links) == 1 else _chosen(either=False, nodes=links)
            case ast.IfExp(test=test, body=body, orelse=other):
                return _branched(*(self.node(each) for each in (test, body, other)))
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                items = [self.node(each) for each in elements]
                return _applied("list", lambda *values: list(values), None, items)
            case ast.Call(func=ast.Name(id=name), args=arguments) if name in FUNCTIONS:
                nodes = [self.node(each) for each in arguments]
                over = _monotone(name) if len(nodes) > 1 or name == "abs" else None
                return _applied(name, FUNCTIONS[name][0], over, nodes)
        return _unknown(ast.dump(tree), tree, self._position_of)

    def _binary(self, sign: str, left: _Node, right: _Node) -> _Node:
        evaluate = arithmetic(sign, 0, itemgetter("a"), itemgetter("b"))
        node = _applied(
            sign, lambda a, b: evaluate({"a": a, "b": b}), _monotone(sign), [left, right]
        )
        if not (self._exact and sign in ("+", "*")):
            return node

        def residual(row: Sequence[int]) -> _Residual:
            key, value = node.residual(row)
            return (key, value) if value is not _OPEN else (_gathered(sign, key), value)

        return _Node(node.bounds, residual)


def _gathered(sign: str, key: Any) -> Hashable:  # noqa: ANN401 - a key of a residual, nested
    """A sum or product with its constants folded: equal for 1 + x + 2 and 3 + x."""
    operands: list[Any] = list(key[1:])
    number = 0 if sign == "+" else 1
    left: list[Hashable] = []
    for operand in operands:
        kind, *rest = operand
        known: list[Any] = rest[1:]
        kept: list[Any] = []
        if kind == f"{sign}of":
            known, kept = rest[:1], rest[1:]
        elif operand[:2] != ("=", "int"):
            known, kept = [0 if sign == "+" else 1], [operand]
        number = number + known[0] if sign == "+" else number * known[0]
        left += kept
    return (f"{sign}of", number, *left)


# Nodes ---------------------------------------------------------------------------------------


def _constant(value: Value) -> _Node:
    some = [value]
    residual = _known(value)
    return _Node(lambda _row: some, lambda _row: residual)


def _known(value: Any) -> _Residual:  # noqa: ANN401 - any value of an expression
    # 1, 1.0 and true are equal, and not the same to `is` and `/`.
    simple = value is None or isinstance(value, bool | int | float | str)
    return ("=", type(value).__name__, value if simple else canonical(value)), value


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


def _axis(position: int, values: Sequence[Value]) -> _Node:
    unknown = (("axis", position), _OPEN)

    @cache
    def of_part(entry: int) -> _Bounds:
        part = part_of(entry, len(values))
        some = values[part.start : part.stop]
        numbers = [
            value
            for value in some
            if isinstance(value, int | float) and not isinstance(value, bool) and not isnan(value)
        ]
        if numbers and len(numbers) == len(some):
            return _Range(min(numbers), max(numbers))
        return list(some) if len(some) <= _FEW else None

    def bounds(row: Sequence[int]) -> _Bounds:
        entry = row[position]
        return [values[entry]] if entry >= 0 else of_part(entry)

    def residual(row: Sequence[int]) -> _Residual:
        return unknown if row[position] < 0 else _known(values[row[position]])

    return _Node(bounds, residual)


def _unknown(text: str, tree: ast.expr, position_of: Mapping[str, int]) -> _Node:
    """An unsupported subexpression; its residual is its text and the values of its axes."""
    names = [each.id for each in ast.walk(tree) if isinstance(each, ast.Name)]
    mine = [position_of[name] for name in names if name in position_of]
    return _Node(lambda _row: None, lambda row: ((text, *(row[at] for at in mine)), _OPEN))


def _applied(
    name: str,
    apply: Callable[..., Any],
    over: Callable[..., _Bounds] | None,
    nodes: Sequence[_Node],
) -> _Node:
    """`apply` to the values of `nodes`; `over` gives its bounds over ranges."""

    def bounds(row: Sequence[int]) -> _Bounds:
        given = [node.bounds(row) for node in nodes]
        if any(each is None for each in given):
            return None
        try:
            if all(type(each) is list for each in given):
                combinations = 1
                for each in given:
                    combinations *= len(each)  # type: ignore[arg-type]
                if combinations == 1:
                    return [apply(*(each[0] for each in given))]  # type: ignore[index]
                if combinations <= _FEW:
                    return [apply(*each) for each in product(*given)]  # type: ignore[arg-type]
            if over is None:
                return None
            ranges = [_range_of(each) for each in given]
            return None if None in ranges else over(apply, *ranges)
        except (Failed, *_NO_VALUE):
            return None

    def residual(row: Sequence[int]) -> _Residual:
        given = [node.residual(row) for node in nodes]
        if not any(value is _OPEN for _, value in given):
            try:
                return _known(apply(*(value for _, value in given)))
            except (Failed, *_NO_VALUE):
                pass  # The constraint itself raises, once all axes are bound.
        return (name, *(key for key, _ in given)), _OPEN

    return _Node(bounds, residual)


_NO_VALUE = (ZeroDivisionError, TypeError, ValueError, OverflowError)


def _compared(sign: str, left: _Node, right: _Node) -> _Node:
    def over(_: object, a: _Range, b: _Range) -> _Bounds:
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

    return _applied(sign, comparison(sign, 0), over, [left, right])


def _chosen(either: bool, nodes: Sequence[_Node]) -> _Node:
    """`or` and `and`: the first operand that decides, otherwise the last."""

    def join(left: _Bounds, right: _Bounds) -> _Bounds:
        if left is None:
            return None
        may_hold, may_fail = _truths(left)
        decides, goes_on = (may_hold, may_fail) if either else (may_fail, may_hold)
        if not goes_on:
            return left
        if not decides:
            return right
        if type(left) is list:
            left = [each for each in left if bool(each) is either]
        return _union(left, right)

    def bounds(row: Sequence[int]) -> _Bounds:
        found = nodes[-1].bounds(row)
        for node in reversed(nodes[:-1]):
            found = join(node.bounds(row), found)
        return found

    def residual(row: Sequence[int]) -> _Residual:
        left: list[Hashable] = []
        for node in nodes:
            key, value = node.residual(row)
            if value is _OPEN:
                left.append(key)
            elif node is nodes[-1] or bool(value) is either:
                if not left:
                    return key, value
                left.append(key)
                break
        return ("or" if either else "and", *left), _OPEN

    return _Node(bounds, residual)


def _branched(test: _Node, chosen: _Node, other: _Node) -> _Node:
    """`chosen if test else other`."""

    def bounds(row: Sequence[int]) -> _Bounds:
        decides = test.bounds(row)
        if decides is None:
            return None  # If the condition has no value, the whole has none.
        may_hold, may_fail = _truths(decides)
        if not may_fail:
            return chosen.bounds(row)
        return _union(chosen.bounds(row), other.bounds(row)) if may_hold else other.bounds(row)

    def residual(row: Sequence[int]) -> _Residual:
        key, value = test.residual(row)
        if value is not _OPEN:
            return (chosen if value else other).residual(row)
        return ("if", key, chosen.residual(row)[0], other.residual(row)[0]), _OPEN

    return _Node(bounds, residual)


# Ranges --------------------------------------------------------------------------------------


def _truths(bounds: _Bounds) -> tuple[bool, bool]:
    """Whether a value may be true, and whether it may be false or undefined."""
    if bounds is None:
        return True, True
    if isinstance(bounds, _Range):
        zero = bounds.low == bounds.high == 0
        return not zero, bounds.low <= 0 <= bounds.high
    return any(bounds), not all(bounds)


def _union(left: _Bounds, right: _Bounds) -> _Bounds:
    """Bounds of a value that has either of two bounds."""
    if type(left) is list and type(right) is list:
        return left + right if len(left) + len(right) <= _FEW else None
    a, b = _range_of(left), _range_of(right)
    return None if a is None or b is None else _Range(min(a.low, b.low), max(a.high, b.high))


def _range_of(bounds: _Bounds) -> _Range | None:
    if bounds is None or isinstance(bounds, _Range):
        return bounds
    if not all(isinstance(each, int | float) and not isnan(each) for each in bounds):
        return None
    return _Range(min(bounds), max(bounds))


def _no(_: object, a: _Range) -> _Bounds:
    may_hold, may_fail = _truths(a)
    return [*([False] if may_hold else []), *([True] if may_fail else [])]


def _monotone(name: str) -> Callable[..., _Bounds] | None:
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
            return lambda _, a: _Range(
                0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high)),
                max(abs(a.low), abs(a.high)),
            )  # fmt: skip
    return None


def _of_corners(apply: Callable[..., Any], *given: _Range) -> _Bounds:
    corners: Iterator[Any] = (apply(*each) for each in product(*given))
    low = high = next(corners)
    for each in corners:
        if isnan(each):
            return None
        low, high = min(low, each), max(high, each)
    return None if isnan(low) else _Range(low, high)


def _of_powers(apply: Callable[..., Any], a: _Range, b: _Range) -> _Bounds:
    whole = all(isinstance(each, int) for each in (*a, *b))
    return _of_corners(apply, a, b) if whole and a.low >= 1 and b.low >= 0 else None


def _of_remainders(_: object, a: _Range, b: _Range) -> _Bounds:
    if b.low <= 0 or not all(isinstance(each, int) for each in (*a, *b)):
        return None
    return _Range(0, min(a.high, b.high - 1) if a.low >= 0 else b.high - 1)
