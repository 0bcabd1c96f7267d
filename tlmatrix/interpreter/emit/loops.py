"""Serial loops, the loops of a grid, while loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.loops import is_grid, is_parallel
from tlmatrix.interpreter.analysis.usage import adds_in_any_order
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.runtime.launching import GRID_YZ

from .casts import keep
from .logic import both
from .masks import keep_mask
from .parallel import emit_parallel
from .values import Val

if TYPE_CHECKING:
    from collections.abc import Callable

    from .emitter import Emitter

# No grid and no loop that an interpreter could finish is longer.
_LONGEST = 1 << 24


def emit_for(e: Emitter, node: ir.For) -> None:
    """A `For`."""
    if is_grid(node):
        _emit_grid(e, node)
    elif is_parallel(node):
        emit_parallel(e, node)
    else:
        emit_serial(e, node)


# The grid ---------------------------------------------------------------------------------


def grid_loops(node: Any) -> tuple[list[ir.For], Any]:
    """The nested loops of a grid, and the body of the innermost."""
    loops = []
    while is_grid(node):
        loops.append(node)
        node = node.body
    return loops, node


def check_grid(e: Emitter, loops: list[ir.For]) -> None:
    """Write the check of a grid's extents, unless they are valid constants."""
    for loop in loops:
        if not loop.thread_tag.startswith("blockIdx."):
            raise e.refuse(f"a loop over {loop.thread_tag}")
    extents: dict[str, Any] = {loop.thread_tag: loop.extent for loop in loops}
    values = [extents.get(f"blockIdx.{axis}") for axis in "xyz"]
    if all(n is None or (isinstance(n, ir.IntImm) and 0 < n.value <= GRID_YZ) for n in values):
        return
    codes = ["1" if n is None else e.expr(n).code for n in values]
    e.w.line(f"check_grid({e.kernel.name!r}, {', '.join(codes)})")


def _emit_grid(e: Emitter, node: ir.For) -> None:
    """The loops of a grid, nested; a block starts where all of its indices are known."""
    loops, body = grid_loops(node)
    check_grid(e, loops)
    for instrument in e.instruments:
        instrument.grid(e)
    _grid_loop(e, loops, 0, body)
    if e.invariants is not None:
        e.invariants.end_grid(e)


def _grid_loop(e: Emitter, loops: list[ir.For], depth: int, body: ir.Stmt) -> None:
    if depth == len(loops):
        for instrument in e.instruments:
            instrument.block(e, [loop.loop_var for loop in loops])
        if e.invariants is not None:
            e.invariants.start_block(e)
        e.stmt(body)
        return
    loop = loops[depth]
    extent = e.scalar(loop.extent, "a grid")
    name = bind_grid_index(e, loop, extent)
    indices = f"range({extent.code})"
    if adds_in_any_order(e.kernel, e.facts.usage):
        indices = f"block_order({indices})"
    with e.w.block(f"for {name} in {indices}"):
        _grid_loop(e, loops, depth + 1, body)


def bind_grid_index(e: Emitter, loop: ir.For, extent: Val) -> str:
    """Bind the variable of a loop of a grid; returns its name."""
    name = e.w.fresh(loop.loop_var.name)
    hi = (_LONGEST if extent.hi is None else min(extent.hi, _LONGEST)) - 1
    e.vars[loop.loop_var] = Val(name, loop.loop_var.dtype, lo=0, hi=hi, below=extent.code)
    return name


# Serial loops -----------------------------------------------------------------------------


def emit_serial(e: Emitter, node: ir.For) -> None:
    """A loop whose iterations follow each other."""
    start, extent = e.expr(node.min), e.expr(node.extent)
    name = e.w.fresh(node.loop_var.name)
    width = 1
    if node.step is not None:
        stride = e.scalar(node.step, "a loop whose step")
        if stride.lit is None:
            raise e.refuse("a loop with a step that is not constant")
        width = int(stride.lit)
    if not (start.scalar and extent.scalar):
        _serial_by_iteration(e, node, name, start, extent, width)
        return
    longest = _LONGEST if extent.hi is None else min(extent.hi, _LONGEST)
    hi = None if start.hi is None else start.hi + max(0, (longest - 1) * width)
    plain = start.lit == 0 and width == 1
    below = extent.code if plain else None
    e.vars[node.loop_var] = Val(name, node.loop_var.dtype, lo=start.lo, hi=hi, below=below)
    stop = _stop(start, extent, width)
    arguments = stop if plain else f"{start.code}, {stop}"
    if width != 1:
        arguments += f", {width}"
    for instrument in e.instruments:
        instrument.before_loop(e, node, arguments)
    with e.w.block(f"for {name} in range({arguments})"):
        for instrument in e.instruments:
            instrument.iteration(e, node, name)
        e.stmt(node.body)
    for instrument in e.instruments:
        instrument.after_loop(e, node)


def _stop(start: Val, extent: Val, width: int) -> str:
    length = extent.code if width == 1 else f"{extent.code} * {width}"
    if start.lit == 0:
        return length
    if start.lit is not None and extent.lit is not None:
        return str(start.lit + extent.lit * width)
    return f"{start.code} + {length}"


def _serial_by_iteration(
    e: Emitter, node: ir.For, name: str, start: Val, extent: Val, width: int
) -> None:
    """A serial loop whose bounds differ between parallel iterations, or between threads."""
    first, limit = keep(e, start, "start"), keep(e, extent, "extent")
    begin = first.code if first.scalar else "0"
    value = name if first.scalar else f"({first.code} + {name})"
    e.vars[node.loop_var] = Val(value, node.loop_var.dtype, first.axes, lo=start.lo)
    if first.axes:
        e.agents.varies(node.loop_var)
    longest = limit.code if limit.scalar else f"int({limit.code}.max(initial=0))"
    outer = e.mask
    arguments = f"{begin}, {begin} + {longest} * {width}, {width}"
    for instrument in e.instruments:
        instrument.before_loop(e, node, arguments)
    with e.w.block(f"for {name} in range({arguments})"):
        for instrument in e.instruments:
            instrument.iteration(e, node, name)
        if not limit.scalar:
            test = Val(f"({name} - {begin} < {limit.code} * {width})", "bool", limit.axes)
            e.mask = keep_mask(e, both(e, outer, test))
        e.stmt(node.body)
    for instrument in e.instruments:
        instrument.after_loop(e, node)
    e.mask = outer


def emit_while(e: Emitter, node: ir.While) -> None:
    """A `While`."""
    for instrument in e.instruments:
        instrument.before_loop(e, node, "")
    outer = e.mask
    with e.w.block("while True"):
        break_unless(e, node.condition, outer)
        for instrument in e.instruments:
            instrument.iteration(e, node, "")
        e.stmt(node.body)
    for instrument in e.instruments:
        instrument.after_loop(e, node)
    e.mask = outer


def break_unless(e: Emitter, condition: Any, outer: Val | None) -> None:
    """Leave the loop where no iteration goes on; those that do become the mask."""
    test = e.expr(condition)
    if test.scalar:
        with e.w.block(f"if not {test.code}"):
            e.w.line("break")
        return
    e.mask = keep_mask(e, both(e, outer, test))
    with e.w.block(f"if not {e.mask.code}.any()"):
        e.w.line("break")


RULES: dict[type, Callable[[Emitter, Any], None]] = {ir.For: emit_for, ir.While: emit_while}
