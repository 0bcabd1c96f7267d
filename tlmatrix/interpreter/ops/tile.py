"""How a call of a tile operation is emitted, in a block of one agent or of several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.interpreter.emit.threads import threads_of
from tlmatrix.interpreter.emit.tiles import perform

from .private import element_loops, is_private

if TYPE_CHECKING:
    from collections.abc import Callable

    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.tiles import TileOperation
    from tlmatrix.interpreter.ir.nodes import Call


def tile_rule(
    make: Callable[[Emitter, Call], TileOperation],
) -> Callable[[Emitter, Call], None]:
    """The rule of a tile operation that `make` makes of a call."""

    def rule(e: Emitter, call: Call) -> None:
        if not e.axes:
            perform(e, make(e, call))
        elif is_private(e, call):
            e.stmt(element_loops(e, call))
        else:
            name = call.op.removeprefix("tl.tileop.")
            raise e.refuse(f"the tile operation T.{name} inside T.Parallel")

    return rule


def tile_rule_of_threads(
    make: Callable[[Emitter, Call], TileOperation],
) -> Callable[[Emitter, Call], None]:
    """The same where the block has several roles: all threads of one do it together."""
    rule = tile_rule(make)

    def rule_of_threads(e: Emitter, call: Call) -> None:
        t = threads_of(e, call.op)
        if is_private(e, call):
            name = call.op.removeprefix("tl.tileop.")
            t.thread_axis(e, f"T.{name} of a thread's own memory")
            e.stmt(element_loops(e, call))
            return
        with t.without_threads(e):
            rule(e, call)

    return rule_of_threads
