"""`break` and `continue` that only some threads take: masks of the threads that go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.emit.logic import both
from tlmatrix.interpreter.emit.masks import keep_mask
from tlmatrix.interpreter.emit.values import Val
from tlmatrix.interpreter.ir import nodes as ir

if TYPE_CHECKING:
    from collections.abc import Callable

    from tlmatrix.interpreter.emit.emitter import Axis, Emitter

_BREAKS = frozenset({"tl.loop_break", "tirx.break_loop"})
_JUMPS = frozenset({*_BREAKS, "tirx.continue_loop"})


class Jumps:
    """A loop that threads leave one by one: those that stay in it, and in its iteration."""

    def __init__(self, e: Emitter, body: ir.Stmt, axis: Axis, outer: Jumps | None) -> None:
        self.outer = outer
        self._axis = axis
        self._body: ir.Stmt | None = body
        self._stay, self._iteration = e.temp("stay"), e.temp("turn")
        e.w.line(f"{self._stay} = np.ones({axis.extent.code}, bool)")

    def is_body(self, node: Any) -> bool:
        """Whether a statement is the body of the loop."""
        return node is self._body

    def emit_body(self, e: Emitter, node: ir.Stmt, write: Callable[[Emitter, Any], None]) -> None:
        """The body, for the threads that stay in the loop."""
        body, self._body = self._body, None
        outer = e.mask
        e.w.line(f"{self._iteration} = {self._stay}")
        self.mask(e, outer)
        assert e.mask is not None
        with e.w.block(f"if not {e.mask.code}.any()"):
            e.w.line("break")
        write(e, node)
        e.mask = outer
        self._body = body

    def mask(self, e: Emitter, outer: Val | None) -> None:
        """Mask the threads that have left the iteration."""
        staying = Val(self._iteration, "bool", self._axis.iota.axes)
        e.mask = keep_mask(e, both(e, outer, staying))

    def jump(self, e: Emitter, call: ir.Call) -> None:
        """A jump of the active threads."""
        assert e.mask is not None
        if call.op in _BREAKS:
            e.w.line(f"{self._stay} = {self._stay} & ~{e.mask.code}")
        e.w.line(f"{self._iteration} = {self._iteration} & ~{e.mask.code}")


def leaves_iteration(node: Any) -> bool:
    """Whether a statement leaves an iteration of the loop around it."""
    if isinstance(node, ir.SeqStmt):
        return any(map(leaves_iteration, node.seq))
    if isinstance(node, ir.IfThenElse):
        other = node.else_case is not None and leaves_iteration(node.else_case)
        return other or leaves_iteration(node.then_case)
    if isinstance(node, (ir.AttrStmt, ir.Block)):
        return leaves_iteration(node.body)
    return (
        isinstance(node, ir.Evaluate)
        and isinstance(node.value, ir.Call)
        and node.value.op in _JUMPS
    )
