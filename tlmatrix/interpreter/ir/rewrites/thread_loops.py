"""Loops over all threads of a block (`T.thread_binding(0, n, thread="threadIdx.x")`).

Such a loop names the thread index and repeats nothing. It becomes the binding that
`T.get_thread_binding` makes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import transform, walk

__all__ = ["launched_threads", "without_thread_loops"]

_TAGS = {"threadIdx.x": 0, "threadIdx.y": 1, "threadIdx.z": 2}


def launched_threads(node: Any) -> tuple[int, int, int] | None:
    """The extents of a block that a kernel states; None if it states none."""
    found = None
    for block in walk(node):
        if isinstance(block, ir.Block):
            extents = block.annotations.get("tl.launch_threads")
            if extents is not None:
                x, y, z = (int(getattr(n, "value", n)) for n in extents)
                found = (x, y, z)
    return found


def without_thread_loops(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with bindings in place of loops over all threads of the block.

    A loop over fewer threads than the block has stays as it is.
    """
    threads = launched_threads(kernel.body)
    tags = {node.thread_tag for node in walk(kernel.body) if isinstance(node, ir.For)}
    if threads is None or not tags & _TAGS.keys():
        return kernel

    def bound(loop: Any) -> Any:
        axis = _TAGS.get(loop.thread_tag) if isinstance(loop, ir.For) else None
        if axis is None or _number(loop.min) != 0 or _number(loop.extent) != threads[axis]:
            return None
        number = ir.IntImm("int32", axis)
        index = ir.Call(loop.loop_var.dtype, "tl.launch_thread_idx", (number,), {})
        return ir.SeqStmt(loop.location, (ir.Bind(loop.location, loop.loop_var, index), loop.body))

    return replace(kernel, body=transform(kernel.body, bound))


def _number(node: Any) -> int:
    return int(getattr(node, "value", -1))
