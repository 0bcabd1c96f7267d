"""Numeric conditions (`if flags & 1:`) become comparisons with zero, as in C."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import transform, walk


def with_boolean_conditions(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with a boolean in each condition of a branch or while loop."""
    if not any(
        isinstance(node, (ir.IfThenElse, ir.While)) and node.condition.dtype != "bool"
        for node in walk(kernel.body)
    ):
        return kernel

    def tested(node: Any) -> Any:
        if not isinstance(node, (ir.IfThenElse, ir.While)) or node.condition.dtype == "bool":
            return None
        zero = ir.IntImm(node.condition.dtype, 0)
        return replace(node, condition=ir.Compare("bool", node.condition, zero, "!="))

    return replace(kernel, body=transform(kernel.body, tested))
