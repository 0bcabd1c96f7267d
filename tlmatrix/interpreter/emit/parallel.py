"""Parallel loops, and the local variables that have one value per iteration inside them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.loops import (
    is_parallel,
    local_writes,
    nested_statements,
    parallel_depth,
)
from tlmatrix.interpreter.ir import nodes as ir

from .integers import affine_of
from .memory import buffer
from .values import Val, numpy_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .buffers import Buf
    from .emitter import Emitter


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
        index = Val(f"({start.code} + {index.code})", "int32", index.axes, affine=affine)
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
        for instrument in e.instruments:
            instrument.private_copies(e, buf, copies)
    e.stmt(node.body)
    for key, buf in saved.items():
        copies = e.buffers[key]
        if buf.variable:
            e.w.line(f"{buf.code} = agreed({copies.code})")
        else:
            last = "[..., None]" if buf.private_axes else ""
            e.w.line(f"{buf.code}[...] = collapse({copies.code}, {len(buf.shape)}){last}")
        for instrument in e.instruments:
            instrument.merged_copies(e, buf, copies)
        e.buffers[key] = buf


def _nested_extents(e: Emitter, node: ir.For) -> list[str]:
    extents: dict[int, str] = {}
    for child, depth in nested_statements(node):
        if isinstance(child, ir.For) and is_parallel(child):
            code = e.scalar(child.extent, "a parallel loop whose extent").code
            if extents.setdefault(depth, code) != code:
                raise e.refuse("local variables written in parallel loops of different extents")
    return [extents[k] for k in range(len(extents))]
