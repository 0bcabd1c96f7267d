"""Index expressions: constants, values for arrays of variables at once, bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import any_of

# Constants of the IR: extents, indices and flags that are known when a program is generated -------


def number(node: Any) -> Any:
    """The value of a numeric constant; None for any other expression."""
    return node.value if isinstance(node, (ir.IntImm, ir.FloatImm)) else None


def is_zero(node: Any) -> bool:
    """Whether an expression is the constant zero."""
    return bool(number(node) == 0)


def is_true(node: Any) -> bool:
    """Whether an expression is an integer or boolean constant other than zero."""
    return isinstance(node, ir.IntImm) and bool(node.value)


def equal_extents(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether extents are the same constants."""
    mine, theirs = [number(n) for n in some], [number(n) for n in others]
    return mine == theirs and None not in mine


def ranges(region: ir.Region) -> list[ir.Expr]:
    """The extents of a region other than the constant one."""
    return [extent for extent in region.extents if number(extent) != 1]


def covers(region: ir.Region, buffer: ir.Buffer) -> bool:
    """Whether a region is all of a buffer."""
    return all(map(is_zero, region.indices)) and equal_extents(region.extents, buffer.shape)


def is_constant_index(index: Any) -> bool:
    """Whether an index has no variable and no load, so that TileLang never guards it."""
    return isinstance(index, ir.IntImm) or not any_of(index, ir.Var, ir.BufferLoad)


# Values of index expressions, for arrays of values of their variables at once ---------------------
#
# For what is evaluated before a kernel runs: layouts, and conditions on the thread. Truncating
# division is taken for floor division, since indices are divided.

ARITHMETIC: dict[type, Any] = {
    ir.Add: np.add,
    ir.Sub: np.subtract,
    ir.Mul: np.multiply,
    ir.FloorDiv: np.floor_divide,
    ir.FloorMod: np.mod,
    ir.Div: np.floor_divide,
    ir.Mod: np.mod,
    ir.Min: np.minimum,
    ir.Max: np.maximum,
}
"""By class of the node; the operands are `a` and `b`."""

COMPARISONS: dict[str, Any] = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}

BITS: dict[str, Any] = {
    "tirx.bitwise_and": np.bitwise_and,
    "tirx.bitwise_or": np.bitwise_or,
    "tirx.bitwise_xor": np.bitwise_xor,
    "tirx.shift_left": np.left_shift,
    "tirx.shift_right": np.right_shift,
}
"""By name of the operation called."""


def evaluate(node: Any, variables: Mapping[Any, Any]) -> Any:
    """The values of an index expression.

    Args:
        node: the expression.
        variables: arrays by variable, or by name.

    Raises:
        Unsupported: for a variable that has no value, and for what layouts do not contain.
    """
    if isinstance(node, ir.IntImm | ir.FloatImm | ir.StringImm):
        return node.value
    if isinstance(node, ir.Var):
        if node in variables:
            return variables[node]
        # A symbolic dimension, by the name that the kernel's parameters gave it.
        if node.name not in variables:
            raise Unsupported(
                f"the interpreter does not model a layout over the symbolic dimension {node.name}, "
                "which no parameter binds"
            )
        return variables[node.name]
    if type(node) in ARITHMETIC:
        return ARITHMETIC[type(node)](evaluate(node.a, variables), evaluate(node.b, variables))
    if isinstance(node, ir.Compare):
        sides = evaluate(node.a, variables), evaluate(node.b, variables)
        return COMPARISONS[node.symbol](*sides)
    if isinstance(node, (ir.And, ir.Or)):
        combine = np.logical_and if isinstance(node, ir.And) else np.logical_or
        return combine(evaluate(node.a, variables), evaluate(node.b, variables))
    if isinstance(node, ir.Not):
        return np.logical_not(evaluate(node.a, variables))
    if isinstance(node, ir.Cast):
        return evaluate(node.value, variables)
    if isinstance(node, ir.Select):
        cases = (node.condition, node.true_value, node.false_value)
        return np.where(*(evaluate(each, variables) for each in cases))
    name = node.op if isinstance(node, ir.Call) else type(node).__name__
    if name == "tirx.if_then_else":
        return np.where(*(evaluate(each, variables) for each in node.args))
    if name in BITS:
        return BITS[name](*(evaluate(a, variables) for a in node.args))
    raise Unsupported(f"the interpreter does not model {name} in a layout")


# Bounds of integer expressions, from the ranges of loop variables ---------------------------------

FAR = 1 << 40
"""A bound that is not known lies beyond this."""
_INFINITE = 1 << 62

Interval = tuple[int, int]
"""The least and the largest value."""

UNKNOWN: Interval = (-_INFINITE, _INFINITE)


def interval(node: Any, ranges: Mapping[ir.Var, Interval]) -> Interval:
    """The least and the largest value of an integer expression; beyond ±FAR where not known."""
    if isinstance(node, ir.IntImm):
        return node.value, node.value
    if isinstance(node, ir.Var):
        return ranges.get(node, UNKNOWN)
    if isinstance(node, ir.Cast):
        return interval(node.value, ranges)
    if isinstance(node, ir.Select):
        low, high = zip(
            interval(node.true_value, ranges), interval(node.false_value, ranges), strict=True
        )
        return min(low), max(high)
    if isinstance(node, ir.Call) and node.op == "tirx.bitwise_and":
        highs = [b[1] for b in (interval(a, ranges) for a in node.args) if b[0] >= 0]
        return (0, min(highs)) if highs else UNKNOWN
    if not isinstance(node, ir.Binary):
        return UNKNOWN
    return _clipped(_binary(node, interval(node.a, ranges), interval(node.b, ranges)))


def _clipped(bounds: Interval) -> Interval:
    return max(bounds[0], -_INFINITE), min(bounds[1], _INFINITE)


def _binary(node: ir.Binary, a: Interval, b: Interval) -> Interval:
    if isinstance(node, ir.Add):
        return a[0] + b[0], a[1] + b[1]
    if isinstance(node, ir.Sub):
        return a[0] - b[1], a[1] - b[0]
    if isinstance(node, ir.Mul):
        corners = [x * y for x in a for y in b]
        return min(corners), max(corners)
    if isinstance(node, ir.Min):
        return min(a[0], b[0]), min(a[1], b[1])
    if isinstance(node, ir.Max):
        return max(a[0], b[0]), max(a[1], b[1])
    if isinstance(node, (ir.FloorDiv, ir.Div)) and b[0] > 0:
        corners = [x // y for x in a for y in b]
        return min(corners), max(corners)
    if isinstance(node, (ir.FloorMod, ir.Mod)) and b[0] > 0:
        if a[0] >= 0:
            return (a[0], a[1]) if a[1] < b[0] else (0, min(a[1], b[1] - 1))
        return (0 if isinstance(node, ir.FloorMod) else 1 - b[1], b[1] - 1)
    return UNKNOWN


MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
"""By symbol of a comparison, that of the one with its sides exchanged."""
NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


def ranges_under(
    condition: Any, ranges: Mapping[ir.Var, Interval], *, holds: bool = True
) -> dict[ir.Var, Interval]:
    """The ranges where a condition holds, or does not.

    It compares a variable with a constant or another variable, or the remainder of a variable
    that is divided by a constant.
    """
    if isinstance(condition, ir.Not):
        return ranges_under(condition.a, ranges, holds=not holds)
    if isinstance(condition, ir.And if holds else ir.Or):
        return ranges_under(
            condition.b, ranges_under(condition.a, ranges, holds=holds), holds=holds
        )
    found = dict(ranges)
    if not isinstance(condition, ir.Compare):
        return found
    symbol = condition.symbol if holds else NEGATED.get(condition.symbol, "")
    sides = (condition.a, condition.b)
    for var, limit, how in ((*sides, symbol), (*sides[::-1], MIRRORED.get(symbol, ""))):
        n = limit.value if isinstance(limit, ir.IntImm) else None
        if isinstance(var, ir.Var) and var in ranges:
            if n is not None:
                found[var] = _compared(ranges[var], how, (n, n))
            elif isinstance(limit, ir.Var) and limit in ranges:
                found[var] = _compared(ranges[var], how, ranges[limit])
        elif isinstance(var, (ir.FloorMod, ir.Mod)) and n is not None and how == "==":
            divided, step = var.a, int(number(var.b) or 0)
            low, high = interval(divided, ranges)
            if step > 1 and low >= 0 and isinstance(divided, ir.Var):
                found[divided] = low + (n - low) % step, high - (high - n) % step
    return found


def _compared(mine: Interval, symbol: str, other: Interval) -> Interval:
    """The part of an interval whose values may compare so with one of another."""
    (low, high), (least, most) = mine, other
    match symbol:
        case "<":
            high = min(high, most - 1)
        case "<=":
            high = min(high, most)
        case ">":
            low = max(low, least + 1)
        case ">=":
            low = max(low, least)
        case "==":
            low, high = max(low, least), min(high, most)
        case "!=" if least == most:
            low, high = low + (low == least), high - (high == least)
    return low, high


def is_negative_under(
    node: Any, conditions: Sequence[tuple[Any, bool]], ranges: Mapping[ir.Var, Interval]
) -> bool:
    """Whether conditions that hold, or do not, prove a linear expression to be negative."""
    for condition, holds in conditions:
        ranges = ranges_under(condition, ranges, holds=holds)
    return interval(node, ranges)[1] < 0 or any(
        _is_negative_where(node, condition, ranges, holds=holds) for condition, holds in conditions
    )


def _is_negative_where(
    node: Any, condition: Any, ranges: Mapping[ir.Var, Interval], *, holds: bool = True
) -> bool:
    """Whether a condition that holds, or does not, proves a linear expression to be negative."""
    if isinstance(condition, ir.Not):
        return _is_negative_where(node, condition.a, ranges, holds=not holds)
    if isinstance(condition, ir.And if holds else ir.Or):
        parts = (condition.a, condition.b)
        return any(_is_negative_where(node, part, ranges, holds=holds) for part in parts)
    if not isinstance(condition, ir.Compare):
        return False
    symbol = condition.symbol if holds else NEGATED.get(condition.symbol, "")
    # What the condition says: the first side is at least so much below the second.
    gap = int(symbol in ("<", ">"))
    sides = (condition.a, condition.b)
    orders = {"<": (1,), "<=": (1,), ">": (-1,), ">=": (-1,), "==": (1, -1)}.get(symbol, ())
    for order in orders:
        terms: dict[Any, int] = {}
        high = add_terms(node, 1, terms) - gap
        high += add_terms(sides[0], -order, terms) + add_terms(sides[1], order, terms)
        for atom, factor in terms.items():
            if factor:
                high += max(factor * bound for bound in interval(atom, ranges))
        if high < 0:
            return True
    return False


def add_terms(node: Any, factor: int, terms: dict[Any, int]) -> int:
    """Add a multiple of a linear expression to the factors of its terms; returns its constant."""
    if isinstance(node, ir.IntImm):
        return factor * node.value
    if isinstance(node, (ir.Add, ir.Sub)):
        second = factor if isinstance(node, ir.Add) else -factor
        return add_terms(node.a, factor, terms) + add_terms(node.b, second, terms)
    if isinstance(node, ir.Mul):
        for one, other in ((node.a, node.b), (node.b, node.a)):
            if isinstance(other, ir.IntImm):
                return add_terms(one, factor * other.value, terms)
    terms[node] = terms.get(node, 0) + factor
    return 0
