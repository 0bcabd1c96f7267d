"""Constants of the IR: extents, indices and flags that are known when a program is generated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import any_of

if TYPE_CHECKING:
    from collections.abc import Sequence


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
