"""Fragments that threads index for themselves become arrays of registers of each thread.

TileLang distributes a fragment over the threads of a block where a tile operation or `T.Parallel`
gives it a layout. A fragment without one (`idx[stage, r] = table[tx * rows + r]`) is an array of
registers that each thread has whole: memory of scope `local`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import transform, walk


def is_thread_index(node: Any) -> bool:
    """Whether an expression is a thread index itself (threadIdx.x, y or z)."""
    return isinstance(node, ir.Call) and node.op == "tl.launch_thread_idx"


def with_thread_fragments(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with the scope `local` for fragments without a layout.

    Raises:
        Unsupported: for a fragment that has a layout, and that threads also index by what
            depends on their thread index.
    """
    uses = _Uses()
    uses.visit(kernel.body, parallel=False)
    if not uses.by_thread:
        return kernel
    for data, location in uses.by_thread.items():
        if data in uses.laid_out:
            where = f" ({location})" if location is not None else ""
            raise Unsupported(
                f"the interpreter does not model the fragment {uses.names[data]}, which threads "
                f"index for themselves and tile operations share{where}"
            )
    replaced: dict[ir.Buffer, ir.Buffer] = {}

    def local(buffer: ir.Buffer) -> ir.Buffer:
        if buffer.data not in uses.by_thread:
            return buffer
        return replaced.setdefault(buffer, replace(buffer, scope="local"))

    def rewritten(node: Any) -> Any:
        if isinstance(node, ir.Block):
            return replace(node, alloc_buffers=tuple(map(local, node.alloc_buffers)))
        if isinstance(node, (ir.BufferLoad, ir.BufferStore)):
            return replace(node, buffer=local(node.buffer))
        return None

    return replace(kernel, body=transform(kernel.body, rewritten))


class _Uses:
    """How the fragments of a kernel are used, by their data."""

    def __init__(self) -> None:
        self.names: dict[ir.Var, str] = {}
        self.laid_out: set[ir.Var] = set()
        """Used by a tile operation, or in a parallel loop."""
        self.by_thread: dict[ir.Var, ir.Location | None] = {}
        """Accessed outside of these with a value or an index of the thread, and where."""
        self._dependent: set[ir.Var] = set()

    def visit(self, node: ir.Stmt, *, parallel: bool) -> None:
        if isinstance(node, ir.SeqStmt):
            for child in node.seq:
                self.visit(child, parallel=parallel)
        elif isinstance(node, ir.For):
            if self._depends(node.extent):
                self._dependent.add(node.loop_var)
            self.visit(node.body, parallel=parallel or node.kind == ir.PARALLEL)
        elif isinstance(node, (ir.IfThenElse, ir.While)):
            self._leaf(node, (node.condition,), parallel)
            cases = (node.body,) if isinstance(node, ir.While) else (node.then_case, node.else_case)
            for case in cases:
                if case is not None:
                    self.visit(case, parallel=parallel)
        elif isinstance(node, (ir.Block, ir.AttrStmt)):
            if isinstance(node, ir.Block):
                self.laid_out.update(node.annotations.get("layout_map", {}))
            self.visit(node.body, parallel=parallel)
        elif isinstance(node, ir.Bind):
            if is_thread_index(node.value) or self._depends(node.value):
                self._dependent.add(node.var)
            self._leaf(node, (node.value,), parallel)
        elif isinstance(node, ir.BufferStore):
            parts = (node.value, *node.indices)
            if _is_fragment(node.buffer):
                self._access(node, node.buffer, parts, parallel)
            self._leaf(node, parts, parallel)
        elif isinstance(node, ir.Evaluate):
            self._leaf(node, (node.value,), parallel)

    def _leaf(self, statement: ir.Stmt, expressions: tuple[Any, ...], parallel: bool) -> None:
        """The fragments that expressions of a statement read, or pass to a tile operation."""
        for expression in expressions:
            for node in walk(expression):
                if isinstance(node, (ir.BufferLoad, ir.Region)) and _is_fragment(node.buffer):
                    shared = parallel or isinstance(node, ir.Region)
                    self._access(statement, node.buffer, node.indices, shared)

    def _access(
        self, statement: ir.Stmt, buffer: ir.Buffer, parts: tuple[Any, ...], shared: bool
    ) -> None:
        self.names[buffer.data] = buffer.name
        if shared:
            self.laid_out.add(buffer.data)
        elif any(map(self._depends, parts)):
            self.by_thread.setdefault(buffer.data, statement.location)

    def _depends(self, expression: Any) -> bool:
        """Whether an expression depends on the thread index."""
        return any(
            node in self._dependent
            if isinstance(node, ir.Var)
            else node.buffer.data in self.by_thread
            if isinstance(node, ir.BufferLoad)
            else is_thread_index(node)
            for node in walk(expression)
        )


def _is_fragment(buffer: ir.Buffer) -> bool:
    return buffer.scope == "local.fragment"
