"""Values of index expressions, for arrays of values of their variables at once.

For what is evaluated before a kernel runs: layouts, and conditions on the thread. Truncating
division is taken for floor division, since indices are divided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.ir import nodes as ir

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    if isinstance(node, ir.IntImm):
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
    name = node.op if isinstance(node, ir.Call) else type(node).__name__
    if name in BITS:
        return BITS[name](*(evaluate(a, variables) for a in node.args))
    raise Unsupported(f"the interpreter does not model {name} in a layout")
