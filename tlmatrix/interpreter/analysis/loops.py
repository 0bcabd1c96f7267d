"""Parallel loops: which loops are parallel, how deep they nest, what they write to local memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import calls, inner_statements, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

JUMPS = {
    "tl.loop_break": "break",
    "tirx.break_loop": "break",
    "tirx.continue_loop": "continue",
}
_LOCAL = ("local", "local.var")
_WRITTEN = {"tl.tileop.fill": 0, "tl.tileop.copy": 1}


def is_grid(node: Any) -> bool:
    """Whether a statement is a loop over a thread binding, such as the blocks of a grid."""
    return isinstance(node, ir.For) and node.kind == ir.THREAD_BINDING


def is_parallel(loop: ir.For) -> bool:
    """Whether the iterations of a loop run together.

    Those of a vectorized loop belong to one thread: where it writes memory of its own, they
    follow each other.
    """
    if loop.kind != ir.VECTORIZED:
        return loop.kind == ir.PARALLEL
    return not any(
        isinstance(node, ir.BufferStore) and node.buffer.scope in _LOCAL for node in walk(loop.body)
    )


def nested_statements(node: ir.Stmt, depth: int = 0) -> Iterator[tuple[ir.Stmt, int]]:
    """The statements inside one, itself first, each with the number of parallel loops around it."""
    yield node, depth
    depth += isinstance(node, ir.For) and is_parallel(node)
    for child in inner_statements(node):
        yield from nested_statements(child, depth)


def parallel_depth(node: ir.Stmt) -> int:
    """How many parallel loops are nested at most in a statement."""
    return max(depth for _, depth in nested_statements(node))


def local_writes(node: ir.Stmt) -> dict[ir.Buffer, tuple[int, ...]]:
    """Local buffers that a parallel nest writes, and the axes along which they then differ."""
    written: dict[ir.Buffer, set[int]] = {}
    for child, depth in nested_statements(node):
        buffer = None
        if isinstance(child, ir.BufferStore):
            buffer = child.buffer
        elif isinstance(child, ir.Evaluate) and isinstance(child.value, ir.Call):
            position = _WRITTEN.get(child.value.op)
            buffer = None if position is None else child.value.args[position].buffer
        if buffer is not None and buffer.scope in _LOCAL:
            written.setdefault(buffer, set()).update(range(depth))
    return {buffer: tuple(sorted(axes)) for buffer, axes in written.items()}


def has_jumps(node: ir.Stmt) -> bool:
    """Whether a statement may leave a loop, so that what follows need not run with it."""
    return calls(node, *JUMPS)
