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
