"""Calls of modelled functions, flags above all: a block becomes a generator.

    def kernel(a, flags):
        def block(bx, by):
            ...                                  # its memory, then what it does
            yield from call_extern('tlm_wait_ge_acquire_sys', Pointer(flags, (bx,), 'flags'), 1)
        return block_launch('main', block, (4, 2), LOCATIONS)

While it waits other blocks run; see `sync.dispatch`. Roles of threads are generators already.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.loops import is_grid
from tlmatrix.interpreter.emit.casts import plain
from tlmatrix.interpreter.emit.emitter import Rules
from tlmatrix.interpreter.emit.loops import bind_grid_index, check_grid, emit_for, grid_loops
from tlmatrix.interpreter.emit.memory import buffer
from tlmatrix.interpreter.emit.values import Val, is_value, literal, numpy_name
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


def rules_of_models(is_modelled: Callable[[str], bool], *, roles: bool) -> Rules:
    """Rules for a kernel that calls modelled functions; without `roles` its blocks may wait."""

    def call(e: Emitter, node: ir.Call) -> Val:
        name = extern_name(node)
        if name in PRINTS or not is_modelled(name):
            return _BASE["tirx.call_extern"](e, node)
        if roles and name.startswith("tlm_"):
            raise e.refuse(f"the flag function {name} in a kernel whose threads have roles")
        return _call(e, node, name)

    statements: dict[type, Callable[[Emitter, Any], None]] = {} if roles else {ir.For: _emit_for}
    return Rules(statements, {}, dict.fromkeys(_CALLS, call), {})


def _call(e: Emitter, node: ir.Call, name: str) -> Val:
    """Call a model: for each active iteration or thread if they differ, else once."""
    arguments = [_argument(e, arg, name) for arg in node.args[1:]]
    result = _called(e, node, name, arguments)
    for arg in node.args[1:]:
        if _is_address(arg):
            for instrument in e.instruments:
                instrument.overwritten(e, buffer(e, arg.args[0].buffer))
    return result


def _called(e: Emitter, node: ir.Call, name: str, arguments: list[Val]) -> Val:
    result = e.w.fresh("t")
    threads_alone = len(e.axes) == 1 and e.agents.in_threads(e)
    once = not e.axes or (threads_alone and not any(each.axes for each in arguments))
    if once and (e.mask is None or e.mask.scalar):
        codes = ", ".join(each.code for each in arguments)
        if e.mask is not None:
            e.w.line(f"{result} = 0")
        with e.w.block(f"if {e.mask.code}") if e.mask is not None else nullcontext():
            e.w.line(f"{result} = yield from call_extern({name!r}, {codes})")
        return Val(result, node.dtype) if is_value(node.dtype) else literal(0, "int32")
    axes = e.all_axes
    dtype = node.dtype if is_value(node.dtype) else "int32"
    codes = "".join(f"{each.code}, " for each in arguments)
    e.w.line(
        f"{result} = yield from call_extern_by_lane({name!r}, ({codes}), {e.mask_code}, "
        f"{e.shape_of(axes)}, {numpy_name(dtype)!r})"
    )
    return Val(result, dtype, axes, owned=True)


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


def _is_address(node: Any) -> bool:
    return isinstance(node, ir.Call) and node.op in ("tirx.address_of", "tl.access_ptr")


def _argument(e: Emitter, node: Any, name: str) -> Val:
    """An argument of a model; a value of several iterations has their axes."""
    if _is_address(node):
        load = node.args[0]
        buf = buffer(e, load.buffer)
        if buf.rounding or not (buf.is_global or buf.scope.startswith("shared")):
            raise e.refuse(
                f"a call of {name} on {buf.name} ({buf.dtype}, {buf.scope}); models get pointers "
                "to global memory, and to shared memory of dtypes that NumPy has"
            )
        indices = [e.expr(i) for i in load.indices]
        axes = frozenset[int]().union(*(index.axes for index in indices))
        code = ", ".join(index.code for index in indices)
        kind = "Pointers" if axes else "Pointer"
        return Val(f"{kind}({buf.code}, ({code},), {buf.name!r})", "handle", axes)
    if isinstance(node, ir.StringImm):
        return Val(repr(node.value), "handle")
    return plain(e, node)
