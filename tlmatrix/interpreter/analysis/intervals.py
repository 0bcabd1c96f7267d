"""Bounds of integer expressions, from the ranges of loop variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.ir import nodes as ir

if TYPE_CHECKING:
    from collections.abc import Mapping

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


_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


def ranges_under(
    condition: Any, ranges: Mapping[ir.Var, Interval], *, holds: bool = True
) -> dict[ir.Var, Interval]:
    """The ranges where a condition holds, or does not; of comparisons with a constant."""
    if isinstance(condition, ir.Not):
        return ranges_under(condition.a, ranges, holds=not holds)
    if isinstance(condition, ir.And if holds else ir.Or):
        return ranges_under(
            condition.b, ranges_under(condition.a, ranges, holds=holds), holds=holds
        )
    found = dict(ranges)
    if not isinstance(condition, ir.Compare):
        return found
    var, limit, symbol = condition.a, condition.b, condition.symbol
    if isinstance(limit, ir.Var):
        var, limit, symbol = limit, var, _MIRRORED.get(symbol, "")
    if not (isinstance(var, ir.Var) and isinstance(limit, ir.IntImm) and var in ranges):
        return found
    low, high = ranges[var]
    n = limit.value
    match symbol if holds else _NEGATED.get(symbol, ""):
        case "<":
            high = min(high, n - 1)
        case "<=":
            high = min(high, n)
        case ">":
            low = max(low, n + 1)
        case ">=":
            low = max(low, n)
        case "==":
            low, high = max(low, n), min(high, n)
        case "!=":
            low, high = low + (low == n), high - (high == n)
    found[var] = low, high
    return found


def is_negative_where(
    node: Any, condition: Any, ranges: Mapping[ir.Var, Interval], *, holds: bool = True
) -> bool:
    """Whether a condition that holds, or does not, proves a linear expression to be negative."""
    if isinstance(condition, ir.Not):
        return is_negative_where(node, condition.a, ranges, holds=not holds)
    if isinstance(condition, ir.And if holds else ir.Or):
        parts = (condition.a, condition.b)
        return any(is_negative_where(node, part, ranges, holds=holds) for part in parts)
    if not isinstance(condition, ir.Compare):
        return False
    symbol = condition.symbol if holds else _NEGATED.get(condition.symbol, "")
    # What the condition says: the first side is at least so much below the second.
    gap = int(symbol in ("<", ">"))
    sides = (condition.a, condition.b)
    orders = {"<": (1,), "<=": (1,), ">": (-1,), ">=": (-1,), "==": (1, -1)}.get(symbol, ())
    for order in orders:
        terms: dict[Any, int] = {}
        high = _add_terms(node, 1, terms) - gap
        high += _add_terms(sides[0], -order, terms) + _add_terms(sides[1], order, terms)
        for atom, factor in terms.items():
            if factor:
                high += max(factor * bound for bound in interval(atom, ranges))
        if high < 0:
            return True
    return False


def _add_terms(node: Any, factor: int, terms: dict[Any, int]) -> int:
    """Add a multiple of a linear expression to the factors of its terms; returns its constant."""
    if isinstance(node, ir.IntImm):
        return factor * node.value
    if isinstance(node, (ir.Add, ir.Sub)):
        second = factor if isinstance(node, ir.Add) else -factor
        return _add_terms(node.a, factor, terms) + _add_terms(node.b, second, terms)
    if isinstance(node, ir.Mul):
        for one, other in ((node.a, node.b), (node.b, node.a)):
            if isinstance(other, ir.IntImm):
                return _add_terms(one, factor * other.value, terms)
    terms[node] = terms.get(node, 0) + factor
    return 0
