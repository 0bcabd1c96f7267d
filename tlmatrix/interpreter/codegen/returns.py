"""Threads that end early (`T.thread_return()`), written out as branches that hold what follows.

`if done: T.thread_return()` before some statements becomes `if not done:` around them, so that
the rest of the generator knows no other way through a kernel than down to its end.
"""

from __future__ import annotations

from typing import Any

from tlmatrix.interpreter.errors import Unsupported

from .expressions import op_name
from .source import location_of

__all__ = ["without_returns"]

_RETURN = "tirx.thread_return"
_THREAD_BINDING = 4


def without_returns(func: Any) -> Any:
    """A PrimFunc whose threads all reach its end; the same if none ends early.

    Raises:
        Unsupported: for a return inside a loop.
    """
    if not _returns(func.body):
        return func
    return func.with_body(_followed(func.body, []))


def _returns(node: Any) -> bool:
    from tilelang import tvm

    found = False

    def visit(inner: Any) -> None:
        nonlocal found
        found = found or (isinstance(inner, tvm.tirx.Call) and op_name(inner) == _RETURN)

    tvm.tirx.stmt_functor.post_order_visit(node, visit)
    return found


def _followed(node: Any, rest: list[Any]) -> Any:
    """`node`, in which some thread may return, and then `rest` for those that have not."""
    from tilelang import tvm

    if isinstance(node, tvm.tirx.SeqStmt):
        for child in reversed(node.seq):
            rest = [_followed(child, rest)] if _returns(child) else [child, *rest]
        return _sequence(rest)
    if isinstance(node, tvm.tirx.Evaluate):
        return _sequence([])
    if isinstance(node, tvm.tirx.IfThenElse):
        then = _branch(node.then_case, rest)
        other = _branch(node.else_case, rest)
        return _like(node, tvm.tirx.IfThenElse(node.condition, then, other))
    if isinstance(node, tvm.tirx.SBlockRealize):
        block = _followed(node.block, rest)
        return _like(node, tvm.tirx.SBlockRealize(node.iter_values, node.predicate, block))
    if isinstance(node, tvm.tirx.SBlock):
        return _like(node, _block(node, _followed(node.body, rest)))
    if isinstance(node, tvm.tirx.AttrStmt):
        body = _followed(node.body, rest)
        return _like(node, tvm.tirx.AttrStmt(node.node, node.attr_key, node.value, body))
    if isinstance(node, tvm.tirx.For) and int(node.kind) == _THREAD_BINDING and not rest:
        body = _followed(node.body, [])
        loop = tvm.tirx.For(
            node.loop_var,
            node.min,
            node.extent,
            node.kind,
            body,
            node.thread_binding,
            node.annotations,
        )
        return _like(node, loop)
    location = location_of(node)
    where = f" ({location})" if location is not None else ""
    raise Unsupported(f"the interpreter does not model T.thread_return inside a loop{where}")


def _branch(node: Any, rest: list[Any]) -> Any:
    if node is None:
        return _sequence(rest) if rest else None
    return _followed(node, rest) if _returns(node) else _sequence([node, *rest])


def _sequence(statements: list[Any]) -> Any:
    from tilelang import tvm

    if not statements:
        return tvm.tirx.Evaluate(tvm.tirx.const(0, "int32"))
    return statements[0] if len(statements) == 1 else tvm.tirx.SeqStmt(statements)


def _block(block: Any, body: Any) -> Any:
    from tilelang import tvm

    return tvm.tirx.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        block.init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )


def _like(old: Any, new: Any) -> Any:
    """A statement that stands where an old one stood."""
    import tilelang.ir

    span = tilelang.ir.get_stmt_span(old)
    if span is not None:
        tilelang.ir.set_stmt_span(new, span)
    return new
