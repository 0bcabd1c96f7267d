"""From a traced PrimFunc to Python source: one function that runs the whole grid."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter import ops
from tlmatrix.interpreter.analysis.threads import (
    InferredLayouts,
    annotates_fragments,
    needs_threads,
    thread_order,
)
from tlmatrix.interpreter.analysis.usage import (
    addressed_buffers,
    definitely_initialized,
    kernel_usage,
    mixed_views,
    used_after_loop,
)
from tlmatrix.interpreter.emit.access import Buf
from tlmatrix.interpreter.emit.emitter import Agents, Emitter, Facts, Rules
from tlmatrix.interpreter.emit.instrument import Instrument
from tlmatrix.interpreter.emit.numbers import bits_of
from tlmatrix.interpreter.emit.sharing import Invariants
from tlmatrix.interpreter.emit.threads import Threads
from tlmatrix.interpreter.emit.threads.statements import rules_of_threads
from tlmatrix.interpreter.emit.values import LOW_PRECISION, Val, is_float, is_value
from tlmatrix.interpreter.errors import InterpreterError, Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.read import read_all, saved
from tlmatrix.interpreter.ir.rewrites import normalized, widened, with_unrounded_factors
from tlmatrix.interpreter.ir.rewrites.externs import extern_name
from tlmatrix.interpreter.ir.walk import walk
from tlmatrix.interpreter.ops.control import call_extern, calls_models, rules_of_models
from tlmatrix.interpreter.program import GlobalLayout, Parameter, Program
from tlmatrix.interpreter.runtime import environment
from tlmatrix.interpreter.sync.externs import is_modelled, modelled
from tlmatrix.interpreter.watch.races import RaceInstrument
from tlmatrix.interpreter.watch.registry import functions, observers

if TYPE_CHECKING:
    from tlmatrix.interpreter.program import Options


_LAYOUTS = "layout_map"
"""The annotation of a block with layouts of its buffers."""


def usage_of(func: Any) -> tuple[frozenset[str], ...]:
    """What a PrimFunc does with each parameter (`analysis.usage`); nothing with a scalar."""
    kernel = read_all(saved(func))
    usage = kernel_usage(kernel)
    nothing: frozenset[str] = frozenset()
    return tuple(
        usage.get(kernel.buffer_map[param].data, nothing) if param in kernel.buffer_map else nothing
        for param in kernel.params
    )


def generate(func: Any, text: str, options: Options) -> Program:
    """Generate the program of a traced, not yet lowered PrimFunc; `text` is its JSON (`saved`).

    Raises:
        Unsupported: naming the operation and the user's line, if something is not modelled.
        InterpreterError: a variable of a loop is used after it.
    """
    tables = ops.TABLES
    kernel, shapes, inferred = _read(func, text, options, tuple(modelled()))
    if options.wide:
        kernel = widened(kernel)
    if options.unrounded:
        kernel = with_unrounded_factors(kernel, options.unrounded)
    threads = needs_threads(kernel, tables.thread_operations, tables.each_thread)
    calls = calls_models(kernel, is_modelled)
    waits = calls and not threads
    recorded = "recorded" in options.observers
    if recorded and threads:
        raise Unsupported(f"kernel {kernel.name} cannot be traced: its threads have warp roles")
    watching = observers(kernel, options)
    instruments: Sequence[Instrument] = watching
    agents: Agents = Agents()
    rules = tables.rules
    if threads:
        agents = Threads(tables.asynchronous)
        instruments = [RaceInstrument(agents), *watching]
        role_rules = rules_of_threads(agents, rules, tables.synchronizing)
        rules = rules.overlaid(role_rules).overlaid(tables.of_threads)
        if calls:
            rules = rules.overlaid(rules_of_models(is_modelled, roles=True))
    elif waits and recorded:
        rules = rules.overlaid(_recorded_flags())
    elif waits:
        rules = rules.overlaid(rules_of_models(is_modelled, roles=False))
    usage = kernel_usage(kernel)
    facts = Facts(
        usage,
        addressed_buffers(kernel),
        mixed_views(kernel, LOW_PRECISION),
        definitely_initialized(kernel, tables.overwritten),
        lambda loop: thread_order(loop, inferred),
    )
    e = Emitter(kernel, rules, instruments, agents, facts, options.guard, options.barriers)
    if not threads and not waits and not any(i.sees_every_read for i in instruments):
        first_use = not options.guard or any(i.sees_reads for i in instruments)
        by_mask = bool(options.sanitizers) and "traced" not in options.observers
        e.invariants = Invariants(from_first_use=first_use, by_mask=by_mask)
    program = _emit(e, shapes)
    plans = {each.name: each.plan(e) for each in watching if each.argument}
    return replace(program, plans=plans, waits=waits and not recorded)


# Reading ----------------------------------------------------------------------------------


def depends_on_arch(text: str) -> bool:
    """Whether the program of a kernel, by its JSON, may differ by the architecture.

    TileLang infers layouts for one, of kernels that annotate some.
    """
    return _LAYOUTS in text


def _read(
    func: Any, text: str, options: Options, models: tuple[str, ...]
) -> tuple[ir.Kernel, Any, InferredLayouts | None]:
    """The normalized kernel; with annotated layouts their physical shapes, and those inferred.

    TileLang computes the shapes; nodes of what is saved together are shared.
    """
    if not depends_on_arch(text):
        return _plain(text, models), {}, None
    kernel = _scoped(read_all(text))
    if not any(isinstance(n, ir.Block) and _LAYOUTS in n.annotations for n in walk(kernel.body)):
        return normalized(kernel, is_modelled), {}, None
    from tilelang import tvm

    funcs = [func]
    if annotates_fragments(kernel):
        inferred = _inferred(func, options.arch)
        funcs += [] if inferred is None else [inferred]
    layouts: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tvm.tirx.For) and "parallel_loop_layout" in node.annotations:
            layouts.append(node.annotations["parallel_loop_layout"])
        elif isinstance(node, tvm.tirx.SBlock) and "layout_map" in node.annotations:
            layouts.extend(dict(node.annotations["layout_map"]).values())

    for each in funcs:
        tvm.tirx.stmt_functor.post_order_visit(each.body, visit)
    shapes = [layout.get_output_shape() for layout in layouts]
    text = tvm.ir.save_json(tvm.runtime.convert([funcs, layouts, shapes]))
    kernels, read_layouts, read_shapes = read_all(text)
    by_layout = dict(zip(read_layouts, read_shapes, strict=True))
    kernel = normalized(kernels[0], is_modelled)
    return kernel, by_layout, _layouts_of(kernels[1], by_layout) if kernels[1:] else None


@lru_cache(maxsize=8)  # the variants of a program follow each other
def _plain(text: str, models: tuple[str, ...]) -> ir.Kernel:  # noqa: ARG001 - a part of the key
    """The normalized kernel, without annotated layouts; `models` are those that there are."""
    return normalized(_scoped(read_all(text)), is_modelled)


def _scoped(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel, if it uses the variables of its loops inside them."""
    used = used_after_loop(kernel.body)
    if used is None:
        return kernel
    var, location = used
    raise InterpreterError(
        f"kernel {kernel.name}: {var.name} is used after its loop; keep what a loop changes in "
        "T.alloc_var or T.alloc_local. TileLang compiles no such kernel: after a loop with "
        f"acc += ... the Python name acc is the expression of one iteration\n  at {location}"
    )


def _inferred(func: Any, arch: str) -> Any:
    """The PrimFunc with the layouts that TileLang infers; None where it cannot."""
    from tilelang import transform, tvm

    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    module = tvm.IRModule({"main": func})
    try:
        with target:
            module = tvm.tirx.transform.BindTarget(target)(module)
            module = transform.MaterializeKernelLaunch(
                lower_thread_binding=True, default_threads=128
            )(module)
            module = transform.LetInline()(module)
            module = transform.LayoutInference()(module)
    except Exception:  # noqa: BLE001  # whatever it raises, it then says nothing of layouts
        return None
    return next(f for f in module.functions.values() if hasattr(f, "body"))


def _layouts_of(kernel: ir.Kernel, shapes: Any) -> InferredLayouts:
    loops: dict[ir.Var, ir.Layout] = {}
    fragments: dict[ir.Var, ir.Layout] = {}
    for node in walk(kernel.body):
        if isinstance(node, ir.For) and "parallel_loop_layout" in (node.annotations or {}):
            assert node.annotations is not None
            loops[node.loop_var] = node.annotations["parallel_loop_layout"]
        elif isinstance(node, ir.Block) and "layout_map" in node.annotations:
            for key, layout in node.annotations["layout_map"].items():
                fragments[getattr(key, "data", key)] = layout
    known = {
        layout: tuple(int(getattr(n, "value", 0)) for n in shape)
        for layout, shape in shapes.items()
    }
    return InferredLayouts(loops, fragments, known)


def _recorded_flags() -> Any:
    """Rules of a recorded kernel with flags: the launch is over, and nothing waits for it."""

    def is_flag(call: ir.Call) -> bool:
        name = extern_name(call)
        return name.startswith("tlm_") and is_modelled(name)

    def effect(e: Emitter, call: ir.Call) -> None:
        if not is_flag(call):
            e.expr(call)

    def value(e: Emitter, call: ir.Call) -> Val:
        if call.op == "tirx.call_extern":
            return call_extern(e, call)
        if not is_flag(call):
            raise e.refuse(f"the operation {call.op} of {extern_name(call)}")
        return e.expr(call.args[3])  # `tlm_given_*`: the number that it gives

    names = ("tirx.call_extern", "tirx.call_pure_extern")
    return Rules({}, {}, dict.fromkeys(names, value), dict.fromkeys(names, effect))


# Emission ---------------------------------------------------------------------------------


def _emit(e: Emitter, shapes: Any) -> Program:
    e.w.reserve(*environment(), *ops.TABLES.functions, *functions())
    e.w.reserve("kernel", "range", "min", "max", "abs", "int", "bool")
    e.w.reserve("if", "in", "is", "or", "and", "not", "for", "def", "else", "lambda", "as")
    e.w.reserve("kept_at", "fit", "cta", "me", "launch", "LOCATIONS")
    for instrument in e.instruments:
        e.w.reserve(*filter(None, (instrument.argument, *instrument.reserved)))
    parameters, codes, symbols = _bind_parameters(e)
    e.notify(Instrument.parameters)
    e.stmt(e.kernel.body)
    arguments = {each.name: each.argument for each in e.instruments if each.argument}
    head = [f"def kernel({', '.join([*codes, *symbols, *arguments.values()])}):"]
    body = [*e.prologue.lines, *e.w.lines] or ["pass"]
    return Program(
        name=e.kernel.name,
        source="\n".join([*head, *("    " + text for text in body)]) + "\n",
        locations=(*[None] * len(head), *e.prologue.locations, *e.w.locations),
        parameters=tuple(parameters),
        symbols=tuple(symbols),
        layouts={name: GlobalLayout(layout, shapes[layout]) for name, layout in e.layouts.items()},
        together=e.vector_atomics,
        arguments=arguments,
    )


def _bind_parameters(e: Emitter) -> tuple[list[Parameter], list[str], list[str]]:
    """The parameters, their names in the source, and those of symbolic dims."""
    kernel = e.kernel
    codes: dict[ir.Var, str] = {}
    for param in kernel.params:
        if param not in kernel.buffer_map:
            if not is_value(param.dtype):
                raise e.refuse(f"a parameter of type {param.dtype} ({param.name})")
            codes[param] = e.w.fresh(param.name)
            e.vars[param] = Val(codes[param], param.dtype)
    scalars = [param.name for param in codes]
    symbols: list[str] = []
    tensors = [kernel.buffer_map[p] for p in kernel.params if p in kernel.buffer_map]
    for node in walk(*(n for buffer in tensors for n in (*buffer.shape, *buffer.strides))):
        if isinstance(node, ir.Var) and node not in e.vars:
            symbols.append(e.w.fresh(node.name))
            e.vars[node] = Val(symbols[-1], node.dtype, lo=0, hi=(1 << bits_of(node.dtype) - 1) - 1)
    accesses = (ir.BufferLoad, ir.BufferStore, ir.Region)
    accessed = {n.buffer for n in walk(kernel.body) if isinstance(n, accesses)}
    parameters: list[Parameter] = []
    for param in kernel.params:
        buffer = kernel.buffer_map.get(param)
        if buffer is None:
            parameters.append(Parameter(param.name, param.dtype, None, code=codes[param]))
            continue
        # A parameter is known by its name: a second `x` is `x (2)`.
        known = {*scalars, *(p.name for p in parameters)}
        numbered = (f"{buffer.name} ({number})" for number in itertools.count(2))
        name = next(n for n in itertools.chain([buffer.name], numbered) if n not in known)
        shape, strides = _bind_tensor(e, buffer, name)
        codes[param] = e.buffers[buffer].code
        # TileLang names the handle of a `T.Tensor`; that of a pointer has the user's name.
        pointer = param.name != f"{buffer.name}_handle"
        used = buffer in accessed
        parameters.append(Parameter(name, buffer.dtype, shape, strides, used=used, pointer=pointer))
    return parameters, [codes[p] for p in kernel.params], symbols


def _bind_tensor(
    e: Emitter, buffer: ir.Buffer, name: str
) -> tuple[tuple[int | str, ...], tuple[int | str, ...]]:
    """Declare the buffer of a parameter; its extents and strides as in `Parameter`."""
    dtype = buffer.dtype
    if not is_value(dtype):
        raise e.refuse(f"a parameter of dtype {dtype} ({name})")
    code = e.w.fresh(name)
    strides = list(buffer.strides)
    if not strides and buffer.shape:
        strides = [ir.IntImm("int32", 1)]
        for extent in reversed(buffer.shape[1:]):
            strides.insert(0, ir.Mul(extent.dtype, strides[0], extent))
    with e.inside(host_integers=True):
        shape, steps = (tuple(map(e.expr, sizes)) for sizes in (buffer.shape, strides))
    buf = Buf(name, code, dtype, shape, "global", codec=LOW_PRECISION.get(dtype))
    if is_float(dtype) and dtype != "float64":
        buf.safe = "F32(0)"
    e.buffers[buffer] = buf

    def sizes(values: Iterable[Val]) -> tuple[int | str, ...]:
        return tuple(v.lit if v.lit is not None else v.code for v in values)

    return sizes(shape), sizes(steps)
