"""Loops over the threads of a block (`T.thread_binding(0, n, thread="threadIdx.x")`).

Such a loop is no loop: it names the thread index. Here it becomes the binding that
`T.get_thread_binding` makes.
"""

from __future__ import annotations

from typing import Any

__all__ = ["without_thread_loops"]

_THREAD_BINDING = 4
_TAGS = {"threadIdx.x": 0, "threadIdx.y": 1, "threadIdx.z": 2}


def without_thread_loops(func: Any) -> Any:
    """A PrimFunc whose loops over all threads of a block are bindings; the same if it has none.

    A loop over fewer threads than the block has stays as it is.
    """
    from tilelang import tvm

    launched: list[int] = []
    found = False

    def visit(node: Any) -> None:
        nonlocal found
        if isinstance(node, tvm.tirx.SBlock) and node.annotations is not None:
            extents = dict(node.annotations.items()).get("tl.launch_threads")
            if extents is not None:
                launched[:] = [int(n) for n in extents]
        elif isinstance(node, tvm.tirx.For):
            found = found or _axis(node) is not None

    tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
    if not found or not launched:
        return func

    def bound(loop: Any) -> Any:
        axis = _axis(loop)
        whole = (
            axis is not None
            and int(getattr(loop.min, "value", -1)) == 0
            and int(getattr(loop.extent, "value", -1)) == launched[axis]
        )
        if not whole:
            return None
        index = tvm.tirx.Call(
            str(loop.loop_var.dtype),
            tvm.tirx.op.Op.get("tl.launch_thread_idx"),
            [tvm.tirx.const(axis, "int32")],
        )
        return tvm.tirx.SeqStmt([tvm.tirx.Bind(loop.loop_var, index), loop.body])

    return func.with_body(tvm.tirx.stmt_functor.ir_transform(func.body, None, bound, ["tirx.For"]))


def _axis(loop: Any) -> int | None:
    """Which thread index a loop runs over; None for any other loop."""
    if int(loop.kind) != _THREAD_BINDING:
        return None
    return _TAGS.get(str(loop.thread_binding.thread_tag))
