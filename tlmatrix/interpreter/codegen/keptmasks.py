"""Masks that follow from a few integers alone, made once for each value of those.

The mask of a last tile (`query + i < length and key + j < keys`) costs more to make than to use,
and comes again for every head, in other kernels and launches on the same lengths. Where a mask is
an expression of positions along parallel loops and of scalar integers, and of nothing in memory,
the generated source keeps it under its form and those integers; see `runtime.masks.kept`.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["Iota", "form_of_mask"]

Iota = tuple[str, int, int]
"""Positions along a loop: code of its extent, its axis, the number of axes."""


class _OtherError(Exception):
    """A mask follows from something else than integers and positions."""


def form_of_mask(
    code: str, integers: Collection[str], remembered: Collection[str], iotas: Mapping[str, Iota]
) -> tuple[str, list[str]] | None:
    """A mask's expression with names for its integers, and their codes; None for other masks.

    integers: names of scalar integers. remembered: those of integers that are computed at their
    first use, as `(a if a is not None else (a := ...))`. iotas: names of positions along a loop.
    """
    form = _Form(integers, remembered, iotas)
    try:
        tree = form.visit(ast.parse(code, mode="eval").body)
    except _OtherError:
        return None
    return ast.unparse(tree), list(form.codes)


class _Form(ast.NodeTransformer):
    """Replaces integers by `a0`, `a1`, …, and positions by a name that says what they are."""

    def __init__(
        self, integers: Collection[str], remembered: Collection[str], iotas: Mapping[str, Iota]
    ) -> None:
        self.integers, self.remembered, self.iotas = integers, remembered, iotas
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
        if isinstance(node.body, ast.Name) and node.body.id in self.remembered:
            return ast.Name(self._integer(f"({ast.unparse(node)})"))
        raise _OtherError

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
