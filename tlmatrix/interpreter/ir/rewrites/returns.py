"""Threads that end early (`T.thread_return()`) become branches around what follows.

`if done: T.thread_return()` before some statements becomes `if not done:` around them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import calls

if TYPE_CHECKING:
    from collections.abc import Sequence

_RETURN = "tirx.thread_return"


def without_returns(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with all threads reaching its end.

    Raises:
        Unsupported: for a return inside a loop.
    """
    if not calls(kernel.body, _RETURN):
        return kernel
    return replace(kernel, body=_followed(kernel.body, []))


def _followed(node: ir.Stmt, rest: list[ir.Stmt]) -> ir.Stmt:
    """`node`, in which some thread may return, and then `rest` for those that have not."""
    if isinstance(node, ir.SeqStmt):
        for child in reversed(node.seq):
            rest = [_followed(child, rest)] if calls(child, _RETURN) else [child, *rest]
        return _sequence(rest)
    if isinstance(node, ir.Evaluate):
        return _sequence([])
    if isinstance(node, ir.IfThenElse):
        then = _branch(node.then_case, rest)
        assert then is not None
        return replace(node, then_case=then, else_case=_branch(node.else_case, rest))
    if isinstance(node, (ir.Block, ir.AttrStmt)):
        return replace(node, body=_followed(node.body, rest))
    if isinstance(node, ir.For) and node.kind == ir.THREAD_BINDING and not rest:
        return replace(node, body=_followed(node.body, []))
    where = f" ({node.location})" if node.location is not None else ""
    raise Unsupported(f"the interpreter does not model T.thread_return inside a loop{where}")


def _branch(node: ir.Stmt | None, rest: list[ir.Stmt]) -> ir.Stmt | None:
    if node is None:
        return _sequence(rest) if rest else None
    return _followed(node, rest) if calls(node, _RETURN) else _sequence([node, *rest])


def _sequence(statements: Sequence[ir.Stmt]) -> ir.Stmt:
    if not statements:
        return ir.Evaluate(None, ir.IntImm("int32", 0))
    return statements[0] if len(statements) == 1 else ir.SeqStmt(None, tuple(statements))
