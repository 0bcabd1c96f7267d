"""Fragments that threads index for themselves: arrays of registers, one for each thread.

TileLang distributes a fragment over the threads of a block where a tile operation or `T.Parallel`
gives it a layout. A fragment without one (`idx[stage, r] = table[tx * rows + r]`) becomes an array
of registers that each thread has whole. Here it becomes memory of scope `local`.
"""

from __future__ import annotations

from typing import Any

from tlmatrix.interpreter.errors import Unsupported

from .expressions import op_name
from .source import location_of

__all__ = ["with_thread_fragments"]

_PARALLEL = 1


def with_thread_fragments(func: Any) -> Any:
    """A PrimFunc in which fragments without a layout have the scope `local`.

    Raises:
        Unsupported: for a fragment that has a layout, and that threads also index by what
            depends on their thread index.
    """
    uses = _Uses()
    uses.visit(func.body, parallel=False)
    if not uses.by_thread:
        return func
    for data, location in uses.by_thread.items():
        if data in uses.laid_out:
            where = f" ({location})" if location is not None else ""
            raise Unsupported(
                f"the interpreter does not model the fragment {uses.names[data]}, which threads "
                f"index for themselves and tile operations share{where}"
            )
    return _as_local(func, set(uses.by_thread))


class _Uses:
    """How the fragments of a kernel are used, by their data variables."""

    def __init__(self) -> None:
        self.names: dict[Any, str] = {}
        self.laid_out: set[Any] = set()
        """Used by a tile operation, or in a parallel loop."""
        self.by_thread: dict[Any, Any] = {}
        """Accessed outside of these with a value or an index of the thread, and where."""
        self._of_threads: set[Any] = set()
        self._dependent: set[Any] = set()

    def visit(self, node: Any, *, parallel: bool) -> None:
        from tilelang import tvm

        if isinstance(node, tvm.tirx.SeqStmt):
            for child in node.seq:
                self.visit(child, parallel=parallel)
        elif isinstance(node, tvm.tirx.For):
            if self._depends(node.extent):
                self._dependent.add(node.loop_var)
            self.visit(node.body, parallel=parallel or int(node.kind) == _PARALLEL)
        elif isinstance(node, tvm.tirx.IfThenElse):
            self._leaf(node, (node.condition,), parallel)
            self.visit(node.then_case, parallel=parallel)
            if node.else_case is not None:
                self.visit(node.else_case, parallel=parallel)
        elif isinstance(node, tvm.tirx.While):
            self._leaf(node, (node.condition,), parallel)
            self.visit(node.body, parallel=parallel)
        elif isinstance(node, tvm.tirx.SBlockRealize):
            self.visit(node.block, parallel=parallel)
        elif isinstance(node, tvm.tirx.SBlock):
            annotations = dict(node.annotations.items()) if node.annotations is not None else {}
            self.laid_out.update(dict(annotations.get("layout_map", {})))
            self.visit(node.body, parallel=parallel)
        elif isinstance(node, tvm.tirx.AttrStmt):
            self.visit(node.body, parallel=parallel)
        elif isinstance(node, tvm.tirx.Bind):
            if _is_thread(node.value) or self._depends(node.value):
                self._dependent.add(node.var)
            self._leaf(node, (node.value,), parallel)
        elif isinstance(node, tvm.tirx.BufferStore):
            if _is_fragment(node.buffer):
                self._access(node, node.buffer, (node.value, *node.indices), parallel)
            self._leaf(node, (node.value, *node.indices), parallel)
        elif isinstance(node, tvm.tirx.Evaluate):
            self._leaf(node, (node.value,), parallel)

    def _leaf(self, statement: Any, expressions: tuple[Any, ...], parallel: bool) -> None:
        """The fragments that expressions of a statement read, or hand to a tile operation."""
        from tilelang import tvm

        for expression in expressions:
            call = isinstance(expression, tvm.tirx.Call)
            tile = call and op_name(expression).startswith("tl.tileop.")
            loads: list[Any] = []
            tvm.tirx.stmt_functor.post_order_visit(
                expression,
                lambda n, loads=loads: (
                    loads.append(n) if isinstance(n, tvm.tirx.BufferLoad) else None
                ),
            )
            for load in loads:
                if _is_fragment(load.buffer):
                    self._access(statement, load.buffer, tuple(load.indices), parallel or tile)

    def _access(
        self, statement: Any, buffer: Any, expressions: tuple[Any, ...], shared: bool
    ) -> None:
        self.names[buffer.data] = str(buffer.name)
        if shared:
            self.laid_out.add(buffer.data)
        elif any(self._depends(expression) for expression in expressions):
            self.by_thread.setdefault(buffer.data, location_of(statement))

    def _depends(self, expression: Any) -> bool:
        """Whether an expression depends on the thread index."""
        from tilelang import tvm

        found = False

        def visit(node: Any) -> None:
            nonlocal found
            if isinstance(node, tvm.tirx.Var):
                found = found or node in self._dependent
            elif isinstance(node, tvm.tirx.BufferLoad):
                found = found or node.buffer.data in self.by_thread
            else:
                found = found or _is_thread(node)

        tvm.tirx.stmt_functor.post_order_visit(expression, visit)
        return found


def _is_fragment(buffer: Any) -> bool:
    return str(buffer.scope()) == "local.fragment"


def _is_thread(node: Any) -> bool:
    return type(node).__name__ == "Call" and op_name(node) == "tl.launch_thread_idx"


def _as_local(func: Any, fragments: set[Any]) -> Any:
    from tilelang import tvm

    replaced: dict[Any, Any] = {}

    def local(buffer: Any) -> Any:
        if buffer.data not in fragments:
            return None
        if buffer not in replaced:
            replaced[buffer] = tvm.tirx.decl_buffer(
                buffer.shape, str(buffer.dtype), str(buffer.name), scope="local"
            )
        return replaced[buffer]

    def rewrite(node: Any) -> Any:
        if isinstance(node, tvm.tirx.SBlock):
            buffers = [local(buffer) or buffer for buffer in node.alloc_buffers]
            return tvm.tirx.SBlock(
                node.iter_vars,
                node.reads,
                node.writes,
                node.name_hint,
                node.body,
                node.init,
                buffers,
                node.match_buffers,
                node.annotations,
            )
        buffer = local(node.buffer)
        if buffer is None:
            return None
        if isinstance(node, tvm.tirx.BufferStore):
            store = tvm.tirx.BufferStore(buffer, node.value, node.indices, node.predicate)
            import tilelang.ir

            span = tilelang.ir.get_stmt_span(node)
            if span is not None:
                tilelang.ir.set_stmt_span(store, span)
            return store
        return tvm.tirx.BufferLoad(buffer, node.indices, node.predicate)

    kinds = ["tirx.BufferLoad", "tirx.BufferStore", "tirx.SBlock"]
    return func.with_body(tvm.tirx.stmt_functor.ir_transform(func.body, None, rewrite, kinds))
