"""Masks in variables; those that follow from a few integers are made once for each value of them.

The mask of a last tile (`query + i < length and key + j < keys`) costs more to make than to use,
and comes again for every head, in other kernels and launches on the same lengths. Where a mask is
an expression of positions along parallel loops and of scalar integers, and of nothing in memory,
the generated source keeps it under its form and those integers; see `runtime.masks.kept`.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .arrays import consume
from .values import Val, is_int

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from .emitter import Emitter

Iota = tuple[str, int, int]
"""Positions along a loop: code of its extent, its axis, the number of axes."""


def keep_mask(e: Emitter, test: Val) -> Val:
    """A mask in a variable, for it is used several times."""
    name = e.temp("mask")
    consume(e, test)
    shared = set(e.invariants.names) if e.invariants is not None else set()
    values = (v for v in e.vars.values() if isinstance(v, Val) and v.scalar)
    integers = {v.code for v in values if is_int(v.dtype)} | shared
    integers |= {b.code for b in e.buffers.values() if b.variable and is_int(b.dtype)}
    form = form_of_mask(test.code, integers, shared, {name: i for i, name in e.iotas.items()})
    if form is None:
        e.w.line(f"{name} = {test.code}")
        return Val(name, "bool", test.axes)
    inverse = e.temp("mask_not")
    key = ", ".join([repr(form[0]), *form[1]])
    e.w.line(f"{name}, {inverse} = KEPT.get(kept_at := ({key})) or kept(kept_at, {test.code})")
    return Val(name, "bool", test.axes, inverse=inverse)


class _OtherError(Exception):
    """A mask follows from something else than integers and positions."""


def form_of_mask(
    code: str, integers: Collection[str], shared: Collection[str], iotas: Mapping[str, Iota]
) -> tuple[str, list[str]] | None:
    """A mask's expression with names for its integers, and their codes; None for other masks.

    Args:
        code: the expression.
        integers: names of scalar integers.
        shared: those of integers that are computed at their first use, as
            `(a if a is not None else (a := ...))`.
        iotas: names of positions along a loop.
    """
    form = _Form(integers, shared, iotas)
    try:
        tree = form.visit(ast.parse(code, mode="eval").body)
    except _OtherError:
        return None
    return ast.unparse(tree), list(form.codes)


class _Form(ast.NodeTransformer):
    """Replaces integers by `a0`, `a1`, …, and positions by a name for their loop."""

    def __init__(
        self, integers: Collection[str], shared: Collection[str], iotas: Mapping[str, Iota]
    ) -> None:
        self.integers, self.shared, self.iotas = integers, shared, iotas
        self.codes: dict[str, str] = {}

    def _integer(self, code: str) -> str:
        return self.codes.setdefault(code, f"a{len(self.codes)}")

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.iotas:
            extent, axis, rank = self.iotas[node.id]
            size = extent if extent.isdigit() else self._integer(extent)
            return ast.Name(f"i{axis}of{rank}_{size}")
        if node.id in self.integers:
            return ast.Name(self._integer(node.id))
        raise _OtherError

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """An integer kept from its first use, one tested to fit, or a variable that is observed."""
        name, test = getattr(node.body, "id", ""), node.test
        if isinstance(test, ast.Compare) and isinstance(test.comparators[0], ast.NamedExpr):
            tested = ast.unparse(test.comparators[0].value)
            known = form_of_mask(tested, self.integers, self.shared, {}) is not None
        else:
            known = name in (self.integers if isinstance(test, ast.Attribute) else self.shared)
        if not known:
            raise _OtherError
        return ast.Name(self._integer(f"({ast.unparse(node)})"))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if isinstance(node.func, ast.Name) and node.func.id == "wrap":
            return ast.Call(node.func, [self.visit(argument) for argument in node.args], [])
        raise _OtherError

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.expr) and not isinstance(
            node, ast.BinOp | ast.UnaryOp | ast.Compare | ast.Constant
        ):
            raise _OtherError
        return super().generic_visit(node)
