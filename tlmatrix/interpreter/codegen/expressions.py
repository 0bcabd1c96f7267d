"""What all expressions share: dispatch, constants, variables, values that are used twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .bounds import BoundsMixin
from .values import Val, is_float, literal

__all__ = ["ExpressionBase", "contains", "op_name"]


def op_name(call: Any) -> str:
    """The name of a call's operation."""
    return str(getattr(call.op, "name", call.op))


def contains(expr: Any, kinds: tuple[type, ...]) -> bool:
    """Whether an expression has a node of one of `kinds`."""
    from tilelang import tvm

    found = False

    def visit(node: Any) -> None:
        nonlocal found
        found = found or isinstance(node, kinds)

    tvm.tirx.stmt_functor.post_order_visit(expr, visit)
    return found


class ExpressionBase(BoundsMixin):
    """Dispatches on the class of a node."""

    def expr(self, node: Any) -> Val:
        """The value of an expression."""
        method = getattr(self, "_expr_" + type(node).__name__, None)
        if method is None:
            raise self.refuse(f"the expression {type(node).__name__}: {node}")
        value: Val = method(node)
        return value

    def scalar(self, node: Any, what: str) -> Val:
        """The value of an expression that must be the same in every lane."""
        value = self.expr(node)
        if not value.scalar:
            raise self.refuse(f"{what} that differs between lanes of a parallel loop")
        return value

    def _expr_IntImm(self, node: Any) -> Val:
        return literal(node.value, str(node.dtype))

    def _expr_FloatImm(self, node: Any) -> Val:
        return literal(node.value, str(node.dtype))

    def _expr_StringImm(self, node: Any) -> Val:
        return Val(repr(node.value), "handle", lit=node.value)

    def _expr_Var(self, node: Any) -> Val:
        found = self.vars.get(node)
        if found is not None:
            if isinstance(found, str):
                raise self.refuse(found)
            return found
        pending = self.deferred.get(node)
        if pending is not None:
            return self.expr(pending)
        raise self.refuse(f"the variable {node.name}, which nothing in the kernel defines")

    _expr_SizeVar = _expr_Var

    def _expr_Let(self, node: Any) -> Val:
        self.vars[node.var] = self.keep(self.expr(node.value), str(node.var.name))
        return self.expr(node.body)

    def keep(self, value: Val, name: str) -> Val:
        """A value that several expressions may use: held in a variable where that matters."""
        if value.lit is not None or (value.axes and not is_float(value.dtype) and not value.alias):
            return replace(value, owned=False)
        if value.scalar and not value.mutable and value.code.isidentifier():
            return value
        value = self.settled(value)
        code = self.temp(name)
        self.consume(value)
        source = f"{value.code}.copy()" if value.alias is not None else value.code
        if is_float(value.dtype) and value.scalar:
            source = self.as_scalar(value)
        self.w.line(f"{code} = {source}")
        return replace(value, code=code, owned=False, alias=None, mutable=False)

    def as_scalar(self, value: Val) -> str:
        """Code of a scalar with its own precision (a literal alone would be a Python float)."""
        if value.lit is not None and is_float(value.dtype):
            return value.code if value.dtype == "float64" else f"F32({value.code})"
        return value.code
