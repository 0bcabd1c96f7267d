"""Loops over all threads of a block (`T.thread_binding(0, n, thread="threadIdx.x")`).

Such a loop names the thread index and repeats nothing. It becomes the binding that
`T.get_thread_binding` makes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import transform, walk

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

    In a kernel that states no number of threads the loops do. A loop over fewer threads than the
    block has stays as it is.
    """
    loops = [n for n in walk(kernel.body) if isinstance(n, ir.For) and n.thread_tag in _TAGS]
    if not loops:
        return kernel
    threads = launched_threads(kernel.body)
    if threads is None:
        threads = _threads_of(loops)
        kernel = replace(kernel, body=_with_threads(kernel.body, threads))

    def bound(loop: Any) -> Any:
        axis = _TAGS.get(loop.thread_tag) if isinstance(loop, ir.For) else None
        if axis is None or _number(loop.min) != 0 or _number(loop.extent) != threads[axis]:
            return None
        number = ir.IntImm("int32", axis)
        index = ir.Call(loop.loop_var.dtype, "tl.launch_thread_idx", (number,), {})
        return ir.SeqStmt(loop.location, (ir.Bind(loop.location, loop.loop_var, index), loop.body))

    return replace(kernel, body=transform(kernel.body, bound))


def _threads_of(loops: list[ir.For]) -> tuple[int, int, int]:
    """The extents of a block that loops over its threads state."""
    found = [1, 1, 1]
    for loop in loops:
        axis = _TAGS[loop.thread_tag]
        found[axis] = max(found[axis], _number(loop.extent))
    return found[0], found[1], found[2]


def _with_threads(node: Any, threads: tuple[int, int, int]) -> Any:
    """The grid with a block inside it that states the number of threads."""
    if _is_grid(node):
        return replace(node, body=_with_threads(node.body, threads))
    if isinstance(node, ir.Block) and _is_grid(node.body):
        return replace(node, body=_with_threads(node.body, threads))
    return ir.Block(node.location, (), {"tl.launch_threads": threads}, node)


def _is_grid(node: Any) -> bool:
    """Whether a statement is a loop over the blocks of a grid."""
    return isinstance(node, ir.For) and node.thread_tag.startswith("blockIdx.")


def _number(node: Any) -> int:
    return int(getattr(node, "value", -1))
