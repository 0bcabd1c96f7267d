"""Vector loads and stores (`B[T.Ramp(i, 1, 8)] = ...`), written out as loops over their elements.

The rest of the generator knows scalars and parallel axes only; a vector store is a vectorized
loop whose iterations do not see each other's stores.
"""

from __future__ import annotations

import re
from typing import Any

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.remedies import remedy

from .expressions import op_name
from .source import location_of

__all__ = ["scalarized"]

_VECTORIZED = 2


def scalarized(func: Any) -> Any:
    """A PrimFunc without vectors; the same one if it has none.

    A variable that holds a vector becomes local memory.

    Raises:
        Unsupported: for a vector value that is not made element by element.
    """
    from tilelang import tvm

    found = False

    def visit(node: Any) -> None:
        nonlocal found
        if isinstance(node, (tvm.tirx.BufferStore, tvm.tirx.Bind)) and _lanes(node.value) > 1:
            found = True

    tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
    return _Scalarizer(func).run() if found else func


class _NotElementwiseError(Exception):
    """A vector expression whose elements are not functions of its operands' elements."""


class _Scalarizer:
    """One rewriting of a PrimFunc; see `scalarized`."""

    def __init__(self, func: Any) -> None:
        self.func = func
        # Variables that hold vectors: the buffers that stand for them.
        self.held: dict[Any, Any] = {}
        # Errors are raised after the rewriting: they would lose their class on the way out of it.
        self.errors: list[Unsupported] = []

    def run(self) -> Any:
        """The rewritten PrimFunc."""
        from tilelang import tvm

        self._hold()
        body = tvm.tirx.stmt_functor.ir_transform(
            self.func.body, None, self._rewrite, ["tirx.BufferStore", "tirx.Bind", "tirx.SBlock"]
        )
        if self.errors:
            raise self.errors[0]
        return self.func.with_body(body)

    def _hold(self) -> None:
        from tilelang import tvm

        def visit(node: Any) -> None:
            if isinstance(node, tvm.tirx.Bind) and _lanes(node.value) > 1:
                lanes = _lanes(node.value)
                dtype = str(node.value.dtype).removesuffix(f"x{lanes}")
                name = str(node.var.name)
                self.held[node.var] = tvm.tirx.decl_buffer((lanes,), dtype, name, scope="local")

        tvm.tirx.stmt_functor.post_order_visit(self.func.body, visit)

    def _rewrite(self, node: Any) -> Any:
        """What a statement becomes; None for one that stays as it is."""
        from tilelang import tvm

        if isinstance(node, tvm.tirx.SBlock):
            return self._with_memory(node)
        lanes = _lanes(node.value)
        if lanes == 1:
            return None
        if isinstance(node, tvm.tirx.Bind):
            return self._loop(node, self.held[node.var], None, lanes)
        return None if node.predicate is not None else self._stored(node, lanes)

    def _with_memory(self, block: Any) -> Any:
        """The outermost block of a kernel, with the memory that stands for variables."""
        from tilelang import tvm

        annotations = dict(block.annotations.items()) if block.annotations is not None else {}
        if "tl.launch_threads" not in annotations or not self.held:
            return None
        return tvm.tirx.SBlock(
            block.iter_vars,
            block.reads,
            block.writes,
            block.name_hint,
            block.body,
            block.init,
            [*block.alloc_buffers, *self.held.values()],
            block.match_buffers,
            block.annotations,
        )

    def _stored(self, store: Any, lanes: int) -> Any:
        from tilelang import tvm

        if re.search(r"x\d+$", str(store.buffer.dtype)):
            self._refuse(store, f"memory of {store.buffer.dtype} elements ({store.buffer.name})")
            return None
        shifted = False

        def visit(node: Any) -> None:
            nonlocal shifted
            if isinstance(node, tvm.tirx.BufferLoad) and node.buffer.data.same_as(
                store.buffer.data
            ):
                pairs = zip(node.indices, store.indices, strict=False)
                shifted = shifted or not all(tvm.ir.structural_equal(x, y) for x, y in pairs)

        tvm.tirx.stmt_functor.post_order_visit(store.value, visit)
        if shifted:
            # The iterations of a loop would see each other's stores.
            self._refuse(store, f"a vector store to {store.buffer.name} that reads it shifted")
            return None
        return self._loop(store, store.buffer, store.indices, lanes)

    def _loop(self, node: Any, buffer: Any, indices: Any, lanes: int) -> Any:
        """The loop over the elements of a vector that is stored."""
        import tilelang.ir
        from tilelang import tvm

        element = tvm.tirx.Var("v", "int32")
        try:
            at = [element] if indices is None else [self._element(i, element) for i in indices]
            value = self._element(node.value, element)
        except _NotElementwiseError as error:
            self._refuse(node, f"{error} of vectors")
            return None
        single = tvm.tirx.BufferStore(buffer, value, at)
        zero, extent = tvm.tirx.const(0, "int32"), tvm.tirx.const(lanes, "int32")
        loop = tvm.tirx.For(element, zero, extent, _VECTORIZED, single)
        span = tilelang.ir.get_stmt_span(node)
        if span is not None:
            tilelang.ir.set_stmt_span(single, span)
            tilelang.ir.set_stmt_span(loop, span)
        return loop

    def _refuse(self, node: Any, what: str) -> None:
        location = location_of(node)
        where = f" ({location})" if location is not None else ""
        self.errors.append(
            Unsupported(f"the interpreter does not model {what}{where}{remedy(what)}")
        )

    def _element(self, node: Any, element: Any) -> Any:
        """Element number `element` of a vector expression; a scalar stays as it is."""
        from tilelang import tvm

        lanes = _lanes(node)
        if lanes == 1:
            return node
        kind = type(node).__name__
        single = str(node.dtype).removesuffix(f"x{lanes}")
        if kind == "Ramp":
            return node.base + node.stride * element
        if kind == "Broadcast":
            return node.value
        if kind == "Var" and node in self.held:
            return tvm.tirx.BufferLoad(self.held[node], [element])
        if kind == "BufferLoad" and node.predicate is None:
            return tvm.tirx.BufferLoad(
                node.buffer, [self._element(i, element) for i in node.indices]
            )
        if kind == "Cast":
            return tvm.tirx.Cast(single, self._element(node.value, element))
        if kind == "Select":
            parts = (node.condition, node.true_value, node.false_value)
            return tvm.tirx.Select(*(self._element(p, element) for p in parts))
        if kind == "Not":
            return tvm.tirx.Not(self._element(node.a, element))
        if hasattr(node, "a") and hasattr(node, "b"):
            return type(node)(self._element(node.a, element), self._element(node.b, element))
        if kind == "Call" and all(
            _lanes(a) == lanes or (_lanes(a) == 1 and str(a.dtype) != "handle") for a in node.args
        ):
            return tvm.tirx.Call(single, node.op, [self._element(a, element) for a in node.args])
        raise _NotElementwiseError(op_name(node) if kind == "Call" else f"the expression {kind}")


def _lanes(value: Any) -> int:
    _, _, lanes = str(value.dtype).partition("x")
    return int(lanes) if lanes.isdigit() else 1
