"""Calls of modelled functions, flags above all: a block becomes a generator.

    def kernel(a, flags):
        def block(bx, by):
            ...                                  # its memory, then what it does
            yield from call_extern('tlm_wait_ge_acquire_sys', Pointer(flags, (bx,), 'flags'), 1)
        return block_launch('main', block, (4, 2), LOCATIONS)

While it waits other blocks run; see `ranks.blocks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.loops import is_grid
from tlmatrix.interpreter.emit.casts import plain
from tlmatrix.interpreter.emit.emitter import Rules
from tlmatrix.interpreter.emit.loops import bind_grid_index, check_grid, emit_for, grid_loops
from tlmatrix.interpreter.emit.memory import buffer
from tlmatrix.interpreter.emit.values import Val, is_value, literal
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.rewrites.builtins import extern_name
from tlmatrix.interpreter.ir.walk import walk

from .control import CALLS as _BASE
from .control import PRINTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tlmatrix.interpreter.emit.emitter import Emitter

_CALLS = ("tirx.call_extern", "tirx.call_pure_extern")


def calls_models(kernel: ir.Kernel, is_modelled: Callable[[str], bool]) -> bool:
    """Whether a kernel calls a function that has a model."""
    return any(
        isinstance(node, ir.Call) and node.op in _CALLS and is_modelled(extern_name(node))
        for node in walk(kernel.body)
    )


def rules_of_models(is_modelled: Callable[[str], bool]) -> Rules:
    """Rules for a kernel whose blocks wait in calls of modelled functions."""

    def call(e: Emitter, node: ir.Call) -> Val:
        name = extern_name(node)
        if name in PRINTS or not is_modelled(name):
            return _BASE["tirx.call_extern"](e, node)
        if e.axes or e.mask is not None:
            raise e.refuse(f"a call of {name} inside T.Parallel")
        arguments = ", ".join(_argument(e, arg, name) for arg in node.args[1:])
        result = e.w.fresh("t")
        e.w.line(f"{result} = yield from call_extern({name!r}, {arguments})")
        return Val(result, node.dtype) if is_value(node.dtype) else literal(0, "int32")

    return Rules({ir.For: _emit_for}, {}, dict.fromkeys(_CALLS, call), {})


def _emit_for(e: Emitter, node: ir.For) -> None:
    if not is_grid(node):
        emit_for(e, node)
        return
    if e.prologue is not e.launch_prologue:
        raise e.refuse("a second grid in a kernel with flags")
    loops, body = grid_loops(node)
    check_grid(e, loops)
    for instrument in e.instruments:
        instrument.grid(e)
    names, extents = [], []
    for loop in loops:
        extent = e.scalar(loop.extent, "a grid")
        names.append(bind_grid_index(e, loop, extent))
        extents.append(extent.code)
    outer, e.prologue = e.w, e.w.sharing_names()
    e.w = outer.sharing_names()
    e.iotas.clear()
    e.stmt(body)
    e.w, inner = outer, e.w
    block = outer.fresh("block")
    with outer.block(f"def {block}({', '.join(names)})"):
        outer.extend(e.prologue)
        outer.extend(inner)
        # At least one yield makes it a generator.
        outer.line("yield None")
    watching = "".join(f", {i.argument}" for i in e.instruments if i.argument == "watch")
    outer.line(
        f"return block_launch({e.kernel.name!r}, {block}, ({', '.join(extents)},), "
        f"LOCATIONS{watching})"
    )
    e.prologue = e.launch_prologue


def _argument(e: Emitter, node: Any, name: str) -> str:
    if isinstance(node, ir.Call) and node.op in ("tirx.address_of", "tl.access_ptr"):
        load = node.args[0]
        buf = buffer(e, load.buffer)
        if not buf.is_global:
            raise e.refuse(f"a call of {name} on {buf.name}, which is not global memory")
        index = ", ".join(e.scalar(i, "an index").code for i in load.indices)
        return f"Pointer({buf.code}, ({index},), {buf.name!r})"
    if isinstance(node, ir.StringImm):
        return repr(node.value)
    value = plain(e, node)
    return value.code if value.scalar else e.agents.uniform(e, value, f"an argument of {name}").code
