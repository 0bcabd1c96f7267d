"""`T.fill` and `T.copy` of memory that each thread or iteration has for itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.constants import number
from tlmatrix.interpreter.emit.memory import buffer
from tlmatrix.interpreter.ir import nodes as ir

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter

# Longer copies of a thread are no longer a handful of registers.
_LONGEST = 512


def is_private(e: Emitter, call: ir.Call) -> bool:
    """Whether a fill or copy has an operand of which every thread or iteration has its own."""
    return call.op in ("tl.tileop.fill", "tl.tileop.copy") and any(
        bool(buffer(e, arg.buffer).private_axes)
        for arg in call.args[:2]
        if isinstance(arg, ir.Region)
    )


def element_loops(e: Emitter, call: ir.Call) -> ir.Stmt:
    """A fill or copy as loops over elements, which any thread can run for itself."""
    is_fill = call.op == "tl.tileop.fill"
    regions = call.args[: 1 if is_fill else 2]
    loops: list[tuple[ir.Var, Any]] = []
    indices: list[tuple[Any, ...]] = []
    for k, region in enumerate(regions):
        own: list[Any] = []
        position = 0
        for base, extent in zip(region.indices, region.extents, strict=True):
            if number(extent) == 1:
                own.append(base)
                continue
            if k == 0:
                loops.append((ir.Var("int32", f"e{position}"), extent))
            elif position >= len(loops):
                raise e.refuse("T.copy between regions of different rank")
            var, known = loops[position]
            if number(known) is None:
                loops[position] = (var, extent)  # `start + 8 - start` in the other region
            own.append(ir.Add(base.dtype, base, var))
            position += 1
        indices.append(tuple(own))
    if math.prod(int(number(extent) or _LONGEST + 1) for _, extent in loops) > _LONGEST:
        name = "fill" if is_fill else "copy"
        raise e.refuse(f"T.{name} of more than {_LONGEST} elements of a thread")
    target, location = regions[-1].buffer, e.w.location
    source = regions[0].buffer
    value = call.args[1] if is_fill else ir.BufferLoad(source.dtype, source, indices[0])
    if value.dtype != target.dtype:
        value = ir.Cast(target.dtype, value)
    body: ir.Stmt = ir.BufferStore(location, target, value, indices[-1])
    for var, extent in reversed(loops):
        body = ir.For(location, var, ir.IntImm("int32", 0), extent, ir.SERIAL, body)
    return body
