"""`break` and `continue` that only some threads take: masks of the lanes that go on."""

from __future__ import annotations

from typing import Any

from tlmatrix.interpreter.codegen.expressions import op_name
from tlmatrix.interpreter.codegen.values import Val

from .warpmatrices import WarpMatrixMixin

__all__ = ["JumpMixin", "jumps"]

_BREAKS = frozenset({"tl.loop_break", "tirx.break_loop"})
_JUMPS = frozenset({*_BREAKS, "tirx.continue_loop"})


class JumpMixin(WarpMatrixMixin):
    """Overrides loops that threads leave one by one."""

    @property
    def in_lanes(self) -> bool:
        """Whether statements are run for every thread of the role."""
        raise NotImplementedError

    def start_jumps(self) -> None:
        """Set up, before a role is generated."""
        # Of the loops in force: the body, and the lanes that stay in the loop and in the turn.
        self._loops: list[tuple[Any, str, str]] = []

    def _in_loop(self, node: Any) -> bool:
        """Enter a loop of which threads may jump; False if there is none."""
        if not self.in_lanes or not jumps(node.body):
            return False
        assert self.lanes is not None
        stay, turn = self.temp("stay"), self.temp("turn")
        self.w.line(f"{stay} = np.ones({self.lanes.extent.code}, bool)")
        self._loops.append((node.body, stay, turn))
        return True

    def _serial(self, node: Any) -> None:
        entered = self._in_loop(node)
        super()._serial(node)
        if entered:
            self._loops.pop()

    def _stmt_While(self, node: Any) -> None:
        entered = self._in_loop(node)
        super()._stmt_While(node)
        if entered:
            self._loops.pop()

    def stmt(self, node: Any) -> None:
        """Write one statement; the body of a loop begins with the lanes that stay in it."""
        if not self._loops or not node.same_as(self._loops[-1][0]):
            super().stmt(node)
            return
        body, stay, turn = self._loops[-1]
        self._loops[-1] = (None, stay, turn)
        outer = self.mask
        self.w.line(f"{turn} = {stay}")
        self._mask_turn(outer, turn)
        assert self.mask is not None
        with self.w.block(f"if not {self.mask.code}.any()"):
            self.w.line("break")
        super().stmt(body)
        self.mask = outer

    def _mask_turn(self, outer: Val | None, turn: str) -> None:
        assert self.lanes is not None
        staying = Val(turn, "bool", self.lanes.iota.axes)
        self.mask = self.keep_mask(self.both(outer, staying))

    def _stmt_SeqStmt(self, node: Any) -> None:
        if not self.in_lanes or not self._loops or not jumps(node):
            super()._stmt_SeqStmt(node)
            return
        outer = self.mask
        for child in node.seq:
            self.stmt(child)
            if jumps(child):
                self._mask_turn(outer, self._loops[-1][2])
        self.mask = outer

    def _stmt_Evaluate(self, node: Any) -> None:
        name = op_name(node.value) if type(node.value).__name__ == "Call" else ""
        if name in _JUMPS and self.in_lanes and self._loops and self.mask is not None:
            _, stay, turn = self._loops[-1]
            if name in _BREAKS:
                self.w.line(f"{stay} = {stay} & ~{self.mask.code}")
            self.w.line(f"{turn} = {turn} & ~{self.mask.code}")
            return
        super()._stmt_Evaluate(node)


def jumps(node: Any) -> bool:
    """Whether a statement leaves a turn of the loop around it."""
    kind = type(node).__name__
    if kind == "SeqStmt":
        return any(jumps(child) for child in node.seq)
    if kind == "IfThenElse":
        other = node.else_case is not None and jumps(node.else_case)
        return other or jumps(node.then_case)
    if kind in ("AttrStmt", "SBlock"):
        return jumps(node.body)
    if kind == "SBlockRealize":
        return jumps(node.block)
    return (
        kind == "Evaluate"
        and type(node.value).__name__ == "Call"
        and (op_name(node.value) in _JUMPS)
    )
