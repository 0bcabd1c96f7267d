"""`T.fill` and `T.copy` of memory that a thread has for itself, as loops over elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["element_loops"]

# Longer copies of a thread are no longer a handful of registers.
_LONGEST = 512


def element_loops(call: Any, name: str, refuse: Callable[[str], Exception]) -> Any:
    """A fill or copy as a statement that any thread can run for itself.

    Args:
        call: the tile operation.
        name: "fill" or "copy".
        refuse: makes the error for what is not modelled.
    """
    from tilelang import tvm

    regions = call.args[: 1 if name == "fill" else 2]
    loops: list[tuple[Any, Any]] = []
    indices: list[list[Any]] = []
    for number, region in enumerate(regions):
        mine, position = [], 0
        for base, extent in zip(region.args[0].indices, region.args[2:], strict=True):
            if int(getattr(extent, "value", 0)) == 1:
                mine.append(base)
                continue
            if number == 0:
                loops.append((tvm.tirx.Var(f"e{position}", "int32"), extent))
            elif position >= len(loops):
                raise refuse("T.copy between regions of different rank")
            mine.append(base + loops[position][0])
            position += 1
        indices.append(mine)
    size = 1
    for _, extent in loops:
        size *= int(getattr(extent, "value", _LONGEST + 1))
    if size > _LONGEST:
        raise refuse(f"T.{name} of more than {_LONGEST} elements of a thread")
    target = regions[-1].args[0].buffer
    if name == "fill":
        value = call.args[1]
    else:
        value = tvm.tirx.BufferLoad(regions[0].args[0].buffer, indices[0])
    if str(value.dtype) != str(target.dtype):
        value = tvm.tirx.Cast(str(target.dtype), value)
    body = tvm.tirx.BufferStore(target, value, indices[-1])
    for var, extent in reversed(loops):
        body = tvm.tirx.For(var, tvm.tirx.const(0, "int32"), extent, 0, body)
    return body
