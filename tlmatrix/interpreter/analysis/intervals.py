"""Bounds of integer expressions, from the ranges of loop variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.ir import nodes as ir

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FAR", "Interval", "interval"]

FAR = 1 << 40
"""A bound that is not known lies beyond this."""
_INFINITE = 1 << 62

Interval = tuple[int, int]
"""The least and the largest value."""

_UNKNOWN: Interval = (-_INFINITE, _INFINITE)


def interval(node: Any, ranges: Mapping[ir.Var, Interval]) -> Interval:
    """The least and the largest value of an integer expression; beyond ±FAR where not known."""
    if isinstance(node, ir.IntImm):
        return node.value, node.value
    if isinstance(node, ir.Var):
        return ranges.get(node, _UNKNOWN)
    if isinstance(node, ir.Cast):
        return interval(node.value, ranges)
    if isinstance(node, ir.Select):
        low, high = zip(
            interval(node.true_value, ranges), interval(node.false_value, ranges), strict=True
        )
        return min(low), max(high)
    if isinstance(node, ir.Call) and node.op == "tirx.bitwise_and":
        highs = [b[1] for b in (interval(a, ranges) for a in node.args) if b[0] >= 0]
        return (0, min(highs)) if highs else _UNKNOWN
    if not isinstance(node, ir.Binary):
        return _UNKNOWN
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
    return _UNKNOWN
