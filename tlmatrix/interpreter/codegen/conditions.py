"""Conditions that are numbers (`if flags & 1:`), which hold where they are not zero, as in C."""

from __future__ import annotations

from typing import Any

__all__ = ["with_boolean_conditions"]

_KINDS = ["tirx.IfThenElse", "tirx.While"]


def with_boolean_conditions(func: Any) -> Any:
    """A PrimFunc of which every condition is a boolean; the same if all are."""
    from tilelang import tvm

    found = False

    def visit(node: Any) -> None:
        nonlocal found
        condition = _condition(node)
        found = found or (condition is not None and str(condition.dtype) != "bool")

    tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
    if not found:
        return func
    body = tvm.tirx.stmt_functor.ir_transform(func.body, None, _tested, _KINDS)
    return func.with_body(body)


def _condition(node: Any) -> Any:
    return node.condition if type(node).__name__ in ("IfThenElse", "While") else None


def _tested(node: Any) -> Any:
    import tilelang.ir
    from tilelang import tvm

    condition = _condition(node)
    if str(condition.dtype) == "bool":
        return None
    test = tvm.tirx.NE(condition, tvm.tirx.const(0, condition.dtype))
    made = (
        tvm.tirx.While(test, node.body)
        if type(node).__name__ == "While"
        else tvm.tirx.IfThenElse(test, node.then_case, node.else_case)
    )
    span = tilelang.ir.get_stmt_span(node)
    if span is not None:
        tilelang.ir.set_stmt_span(made, span)
    return made
