"""Jumps, assertions, prints, tests over a buffer, hints to the compiler, modelled functions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.usage import JUMPS, is_grid
from tlmatrix.interpreter.emit.emitter import Rules
from tlmatrix.interpreter.emit.expressions import both, invert
from tlmatrix.interpreter.emit.instrument import Instrument
from tlmatrix.interpreter.emit.loops import bind_grid_index, check_grid, emit_for, grid_loops
from tlmatrix.interpreter.emit.memory import buffer
from tlmatrix.interpreter.emit.numbers import named, plain
from tlmatrix.interpreter.emit.values import Val, is_value, literal, numpy_name
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.rewrites.externs import HALF_TOWARD_ZERO, extern_name
from tlmatrix.interpreter.ir.walk import text_of, walk

from .tables import Operations

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call


# Jumps, assertions, assumptions, prints, tests over a buffer, and hints to the compiler -----------

_MESSAGE = "debug_print_msg"
_PRINTS = ("debug_print_var", "debug_print_buffer_value", _MESSAGE)
PROFILER = "TL_IKET_EVENT"
"""How the names of the profiler's events begin."""
# Hints that do not change what a kernel computes.
_IGNORED = frozenset(
    {
        "tirx.tvm_storage_sync",
        "tl.sync_warp",
        "tl.pdl_trigger",
        "tl.pdl_sync",
        "tl.no_set_max_nreg",
        "tl.annotate_producer_reg_dealloc",
        "tl.annotate_consumer_reg_alloc",
    }
)


def _ignore(e: Emitter, call: Call) -> None:
    del e, call


def _set_registers(e: Emitter, call: Call) -> None:
    e.agents.set_registers(e, int(call.args[0].value))


def _jump(e: Emitter, call: Call) -> None:
    if e.agents.jump(e, call):
        return
    if e.mask is not None:
        raise e.refuse("a jump that only some iterations of a parallel loop take")
    e.w.line(JUMPS[call.op])


def _assert(e: Emitter, call: Call) -> None:
    _require(e, call.args[0], "T.device_assert failed")


def _assume(e: Emitter, call: Call) -> None:
    # The compiler drops guards on the strength of it: false, anything may happen.
    condition = text_of(call.args[0])
    _require(e, call.args[0], f"T.assume({condition}) does not hold (Assume: {condition})")


def _require(e: Emitter, condition: Any, message: str) -> None:
    """Raise unless the condition holds, in every active iteration."""
    test = e.expr(condition)
    if e.mask is not None:
        test = invert(e, both(e, e.mask, invert(e, test)))
    code = test.code if test.scalar else f"{test.code}.all()"
    with e.w.block(f"if not {code}"):
        e.w.line(f"raise AssertionError({message!r})")


def _any_or_all(e: Emitter, call: Call) -> Val:
    """`T.any_of` and `T.all_of` of some elements of a buffer."""
    load = call.args[0].args[0]
    buf = buffer(e, load.buffer)
    extent = e.scalar(call.args[1], "an extent")
    index = ", ".join(e.scalar(i, "an index").code for i in load.indices)
    start = e.temp("offset")
    e.w.line(f"{start} = int(np.ravel_multi_index(({index},), {buf.code}.shape))")
    function = "np.any" if call.op == "tl.any_of" else "np.all"
    return Val(f"bool({function}({buf.code}.reshape(-1)[{start}:{start} + {extent.code}]))", "bool")


def call_extern(e: Emitter, call: Call) -> Val:
    """`T.print`, and events of the profiler; other functions are the user's own CUDA."""
    name = extern_name(call)
    if name == HALF_TOWARD_ZERO:
        half = plain(e, call.args[1])
        code = f"half_toward_zero({half.code})"
        return named(e, code, call.dtype, (half,)) if half.axes else Val(code, call.dtype)
    if name.startswith(PROFILER):
        return literal(0, "int32")
    if name not in _PRINTS:
        raise e.refuse(f"the operation {call.op} of {text_of(call.args[0])}")
    if name == _MESSAGE:
        e.w.line(f"show({str(call.args[1].value)!r}, None, {e.mask_code})")
        return literal(0, "int32")
    value = plain(e, call.args[-1])
    # A message, and for an element its buffer and index.
    text = " ".join(str(a.value) for a in call.args[1:3][: len(call.args) - 2])
    message = repr(text)
    if len(call.args) > 4:
        message = f"{text + '['!r} + str({e.expr(call.args[3]).code}) + ']'"
    e.w.line(f"show({message}, {value.code}, {e.mask_code})")
    return literal(0, "int32" if call.dtype == "handle" else call.dtype)


# Calls of modelled functions, flags above all: a block becomes a generator ------------------------
#
#     def kernel(a, flags):
#         def block(bx, by):
#             ...                                  # its memory, then what it does
#             yield from call_extern('tlm_wait_ge_acquire_sys', Pointer(flags, (bx,), 'flags'), 1)
#         return block_launch('main', block, (4, 2), LOCATIONS)
#
# While it waits other blocks run; see `sync.externs`. Roles of threads are generators already.

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
        if name in _PRINTS or not is_modelled(name):
            return call_extern(e, node)
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
            e.notify(Instrument.overwritten, buffer(e, arg.args[0].buffer))
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
    e.notify(Instrument.grid)
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


OPERATIONS = Operations(
    rules=Rules(
        calls={
            "tl.any_of": _any_or_all,
            "tl.all_of": _any_or_all,
            "tirx.call_extern": call_extern,
        },
        effects={
            **dict.fromkeys(_IGNORED, _ignore),
            "tl.set_max_nreg": _set_registers,
            **dict.fromkeys(JUMPS, _jump),
            **dict.fromkeys(("tl.device_assert", "tl.device_assert_with_msg"), _assert),
            "tirx.assume": _assume,
        },
    ),
)
