"""Loops: of a grid, serial, parallel, while."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.usage import (
    adds_in_any_order,
    cluster_dims,
    is_grid,
    is_parallel,
    local_writes,
    nested_statements,
    parallel_depth,
)
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.runtime.launching import GRID_YZ

from .expressions import both
from .instrument import Instrument
from .memory import buffer
from .numbers import affine_of, keep
from .sharing import keep_mask
from .values import Val, expression, integer_code, literal, numpy_name

if TYPE_CHECKING:
    from .access import Buf
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
    cluster = cluster_dims(loops[0])
    if all(
        n is None or (isinstance(n, ir.IntImm) and 0 < n.value <= GRID_YZ and not n.value % size)
        for n, size in zip(values, cluster, strict=True)
    ):
        return
    codes = ["1" if n is None else e.expr(n).code for n in values]
    if max(cluster) > 1:
        codes.append(str(cluster))
    e.w.line(f"check_grid({e.kernel.name!r}, {', '.join(codes)})")


def _emit_grid(e: Emitter, node: ir.For) -> None:
    """The loops of a grid, nested; a block starts where all of its indices are known."""
    loops, body = grid_loops(node)
    check_grid(e, loops)
    e.notify(Instrument.grid)
    _grid_loop(e, loops, 0, body)
    if e.invariants is not None:
        e.invariants.end_grid(e)


def _grid_loop(e: Emitter, loops: list[ir.For], depth: int, body: ir.Stmt) -> None:
    if depth == len(loops):
        e.notify(Instrument.block, [loop.loop_var for loop in loops])
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


def emit_serial(e: Emitter, node: ir.For, end: Callable[[], None] = lambda: None) -> None:
    """A loop whose iterations follow each other; `end` writes the end of an iteration."""
    start, extent = e.expr(node.min), e.expr(node.extent)
    name = e.w.fresh(node.loop_var.name)
    width = 1
    if node.step is not None:
        stride = e.scalar(node.step, "a loop whose step")
        if stride.lit is None:
            raise e.refuse("a loop with a step that is not constant")
        width = int(stride.lit)
    if not (start.scalar and extent.scalar):
        _serial_by_iteration(e, node, name, start, extent, width, end)
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
    with loop(e, node, f"for {name} in range({arguments})", arguments):
        start_iteration(e, node, name)
        e.stmt(node.body)
        end()


@contextmanager
def loop(e: Emitter, node: ir.For | ir.While, header: str, ranged: str = "") -> Iterator[None]:
    """Inside, lines are the body of a loop; a mask that is set there ends with it."""
    with e.inside(mask=e.mask):
        e.notify(Instrument.before_loop, node, ranged)
        with e.w.block(header):
            yield
        e.notify(Instrument.after_loop, node)


def start_iteration(e: Emitter, node: ir.For | ir.While, name: str = "") -> None:
    """An iteration starts here; `name` is the variable of the loop, if it has one."""
    e.notify(Instrument.iteration, node, name)


def _stop(start: Val, extent: Val, width: int) -> str:
    length = extent.code if width == 1 else f"{extent.code} * {width}"
    if start.lit == 0:
        return length
    if start.lit is not None and extent.lit is not None:
        return str(start.lit + extent.lit * width)
    return f"{start.code} + {length}"


def _serial_by_iteration(
    e: Emitter,
    node: ir.For,
    name: str,
    start: Val,
    extent: Val,
    width: int,
    end: Callable[[], None],
) -> None:
    """A serial loop whose bounds differ between parallel iterations, or between threads."""
    first, limit = keep(e, start, "start"), keep(e, extent, "extent")
    begin = first if first.scalar else literal(0, "int32")
    value = name if first.scalar else f"({first.code} + {name})"
    e.vars[node.loop_var] = Val(value, node.loop_var.dtype, first.axes, lo=start.lo)
    if first.axes:
        e.agents.varies(node.loop_var)
    longest = limit.code if limit.scalar else f"int({limit.code}.max(initial=0))"
    arguments = f"{begin.code}, {begin.code} + {longest} * {width}, {width}"
    with loop(e, node, f"for {name} in range({arguments})", arguments):
        start_iteration(e, node, name)
        if not limit.scalar:
            counter = Val(integer_code(name), "int32")
            code = expression(f"({{}} - {{}} < {{}} * {width})", counter, begin, limit)
            test = Val(code, "bool", limit.axes)
            e.mask = keep_mask(e, both(e, e.mask, test))
        e.stmt(node.body)
        end()


def emit_while(e: Emitter, node: ir.While) -> None:
    """A `While`."""
    with loop(e, node, "while True"):
        break_unless(e, node.condition)
        start_iteration(e, node)
        e.stmt(node.body)


def break_unless(e: Emitter, condition: Any) -> None:
    """Leave the loop where no iteration goes on; those that do become the mask."""
    test = e.expr(condition)
    if test.scalar:
        with e.w.block(f"if not {test.code}"):
            e.w.line("break")
        return
    e.mask = keep_mask(e, both(e, e.mask, test))
    with e.w.block(f"if not {e.mask.code}.any()"):
        e.w.line("break")


# Parallel loops, and the local variables that have one value per iteration inside them ------------


def emit_parallel(e: Emitter, node: ir.For) -> None:
    """A parallel loop: its iterations execute each statement together, along an axis."""
    layout = None if e.axes else e.facts.loop_layout(node)
    if layout is not None:
        _emit_by_thread(e, layout)
        return
    start = e.scalar(node.min, "a parallel loop whose start")
    extent = e.scalar(node.extent, "a parallel loop whose extent")
    if e.axes:
        _emit_axis(e, node, start, extent, {})
        return
    e.rank = parallel_depth(node)
    _emit_axis(e, node, start, extent, local_writes(node))
    e.rank = 0


def _emit_axis(
    e: Emitter,
    node: ir.For,
    start: Val,
    extent: Val,
    private: Mapping[ir.Buffer, tuple[int, ...]],
) -> None:
    axis = e.push_axis(extent)
    index = axis.iota
    if start.lit != 0:
        affine = affine_of("+", start, index)
        code = expression("({} + {})", start, index)
        index = Val(code, "int32", index.axes, affine=affine)
    e.vars[node.loop_var] = replace(index, dtype=node.loop_var.dtype)
    if private:
        _emit_with_copies(e, node, private)
    else:
        e.stmt(node.body)
    e.axes.pop()


def _emit_by_thread(e: Emitter, layout: Any) -> None:
    """A loop over the first, second, ... iteration of each thread: its axis are the threads."""
    names = [e.w.fresh(var.name) for var in layout.variables]
    parameters = ", ".join(f"i{k}" for k in range(len(names)))
    order = e.prologue.fresh("steps")
    e.prologue.line(
        f"{order} = thread_steps({layout.extents}, lambda {parameters}: {layout.thread}, "
        f"lambda {parameters}: {layout.position})"
    )
    e.rank = 1
    with e.w.block(f"for {', '.join(names)}{',' * (len(names) == 1)} in {order}"):
        e.push_axis(Val(f"len({names[0]})", "int32", lo=1, hi=layout.threads))
        for var, name, extent in zip(layout.variables, names, layout.extents, strict=True):
            e.vars[var] = Val(name, var.dtype, frozenset({0}), lo=0, hi=extent - 1)
        e.stmt(layout.body)
        e.axes.pop()
    e.rank = 0


def _emit_with_copies(
    e: Emitter, node: ir.For, private: Mapping[ir.Buffer, tuple[int, ...]]
) -> None:
    """A parallel body with one copy of each written local buffer for each iteration.

    The copies are made along the axes that are known when the outermost loop is entered; the
    extents of inner axes are read ahead.
    """
    extents = _nested_extents(e, node)
    saved: dict[ir.Buffer, Buf] = {}
    for key, axes in private.items():
        buf = saved[key] = buffer(e, key)
        shape = ", ".join(extents[p] for p in axes)
        code = e.temp(f"{buf.code}_lanes")
        source = f"np.array([{buf.code}], {numpy_name(buf.dtype)!r})" if buf.variable else buf.code
        if buf.private_axes:
            # Every thread has one: the value they agree on goes in, and comes out again.
            source = f"collapse({buf.code}, {len(buf.shape)})"
        e.w.line(f"{code} = lanes({source}, ({shape},))")
        copies = replace(
            buf, code=code, variable=False, private_axes=axes, per_thread=False, views={}
        )
        e.buffers[key] = copies
        e.notify(Instrument.private_copies, buf, copies)
    e.stmt(node.body)
    for key, buf in saved.items():
        copies = e.buffers[key]
        if buf.variable:
            e.w.line(f"{buf.code} = agreed({copies.code})")
        else:
            last = "[..., None]" if buf.private_axes else ""
            e.w.line(f"{buf.code}[...] = collapse({copies.code}, {len(buf.shape)}){last}")
        e.notify(Instrument.merged_copies, buf, copies)
        e.buffers[key] = buf


def _nested_extents(e: Emitter, node: ir.For) -> list[str]:
    extents: dict[int, str] = {}
    for child, depth in nested_statements(node):
        if isinstance(child, ir.For) and is_parallel(child):
            code = e.scalar(child.extent, "a parallel loop whose extent").code
            if extents.setdefault(depth, code) != code:
                raise e.refuse("local variables written in parallel loops of different extents")
    return [extents[k] for k in range(len(extents))]


STATEMENTS: dict[type, Callable[[Emitter, Any], None]] = {
    ir.For: emit_for,
    ir.While: emit_while,
}
