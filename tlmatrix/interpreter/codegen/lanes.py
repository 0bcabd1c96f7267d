"""Parallel loops, and the local variables that have one value a lane inside them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .expressions import op_name
from .stores import StoreMixin
from .threadturns import loop_of_turns
from .values import Val, numpy_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .context import Buf
    from .threadturns import Inferred, ThreadTurns

__all__ = ["LaneMixin", "spreads"]

_PARALLEL, _VECTORIZED = 1, 2


class LaneMixin(StoreMixin):
    """Enters and leaves parallel loops."""

    def layouts_inferred(self) -> Inferred | None:
        """What TileLang infers; None where nobody annotated layouts of fragments."""
        raise NotImplementedError

    def _parallel(self, node: Any) -> None:
        turns = None if self.axes else loop_of_turns(node, self.layouts_inferred)
        if turns is not None:
            self._take_turns(turns)
            return
        start = self.scalar(node.min, "a parallel loop whose start")
        extent = self.scalar(node.extent, "a parallel loop whose extent")
        extent = self.rows_of(node.loop_var) or extent
        if self.axes:
            self._lane_loop(node, start, extent)
            return
        self.rank = _depth(node)
        restore = self._expand_locals(node)
        self._lane_loop(node, start, extent, restore)
        self.rank = 0

    def _lane_loop(
        self, node: Any, start: Val, extent: Val, expanded: dict[Any, tuple[int, ...]] | None = None
    ) -> None:
        axis = self.push_axis(extent)
        shifted = axis.iota
        if start.lit != 0:
            affine = self._affine("+", start, axis.iota)
            shifted = Val(
                f"({start.code} + {axis.iota.code})", "int32", axis.iota.axes, affine=affine
            )
        dtype = str(node.loop_var.dtype)
        self.vars[node.loop_var] = replace(shifted, dtype=dtype)
        if expanded:
            self._with_lanes(node, expanded)
        else:
            self.stmt(node.body)
        self.axes.pop()

    def _take_turns(self, turns: ThreadTurns) -> None:
        """A loop over what each thread does first, second, ...: its lanes are the threads."""
        names = [self.w.fresh(str(var.name)) for var in turns.variables]
        parameters = ", ".join(f"i{k}" for k in range(len(names)))
        made = self.prologue.fresh("turns")
        self.prologue.line(
            f"{made} = thread_turns({turns.extents}, lambda {parameters}: {turns.thread}, "
            f"lambda {parameters}: {turns.place})"
        )
        self.rank = 1
        with self.w.block(f"for {', '.join(names)}{',' * (len(names) == 1)} in {made}"):
            self.push_axis(Val(f"len({names[0]})", "int32", lo=1, hi=turns.threads))
            for var, name, extent in zip(turns.variables, names, turns.extents, strict=True):
                self.vars[var] = Val(name, str(var.dtype), frozenset({0}), lo=0, hi=extent - 1)
            self.stmt(turns.body)
            self.axes.pop()
        self.rank = 0

    def _expand_locals(self, node: Any) -> dict[Any, tuple[int, ...]]:
        """Which local buffers a parallel loop writes, and over which axes they then vary."""
        from tilelang import tvm

        written: dict[Any, set[int]] = {}
        for child, depth in _statements(node, 0):
            buffer = None
            if isinstance(child, tvm.tirx.BufferStore):
                buffer = child.buffer
            elif isinstance(child, tvm.tirx.Evaluate):
                buffer = _written_by(child.value)
            if buffer is not None and str(buffer.scope()) in ("local", "local.var"):
                written.setdefault(buffer, set()).update(range(depth))
        return {buffer: tuple(sorted(axes)) for buffer, axes in written.items()}

    def _with_lanes(self, node: Any, expanded: dict[Any, tuple[int, ...]]) -> None:
        """Run a parallel body with one copy of each written local buffer a lane.

        The copies are made along the axes that are known when the outermost loop is entered;
        the extents of inner axes are read ahead.
        """
        extents = self._inner_extents(node)
        saved: dict[Any, Buf] = {}
        for buffer, axes in expanded.items():
            buf = self.buffer(buffer)
            saved[buffer] = buf
            shape = ", ".join(extents[p] for p in axes)
            code = self.temp(f"{buf.code}_lanes")
            np_dtype = numpy_name(buf.dtype)
            source = f"np.array([{buf.code}], {np_dtype!r})" if buf.variable else buf.code
            if buf.lane_axes:
                # Every thread has one: what they agree on goes in, and comes out again.
                source = f"collapse({buf.code}, {len(buf.shape)})"
            self.w.line(f"{code} = lanes({source}, ({shape},))")
            self.buffers[buffer] = replace(
                buf, code=code, variable=False, lane_axes=axes, of_threads=False, views={}
            )
            self.on_spread(buf, self.buffers[buffer])
        self.stmt(node.body)
        for buffer, buf in saved.items():
            code = self.buffers[buffer].code
            if buf.variable:
                self.w.line(f"{buf.code} = agreed({code})")
            else:
                last = "[..., None]" if buf.lane_axes else ""
                self.w.line(f"{buf.code}[...] = collapse({code}, {len(buf.shape)}){last}")
            self.on_collapse(buf, self.buffers[buffer])
            self.buffers[buffer] = buf

    def _inner_extents(self, node: Any) -> list[str]:
        from tilelang import tvm

        extents: dict[int, str] = {}
        for child, depth in _statements(node, 0):
            if isinstance(child, tvm.tirx.For) and spreads(child):
                code = self.scalar(child.extent, "a parallel loop whose extent").code
                if extents.setdefault(depth, code) != code:
                    raise self.refuse(
                        "local variables written in parallel loops of different extents"
                    )
        return [extents[k] for k in range(len(extents))]


def spreads(loop: Any) -> bool:
    """Whether the iterations of a loop are lanes.

    Those of a vectorized loop belong to one thread: where it writes memory of its own, they
    follow each other.
    """
    from tilelang import tvm

    if int(loop.kind) != _VECTORIZED:
        return int(loop.kind) == _PARALLEL
    private = False

    def visit(node: Any) -> None:
        nonlocal private
        if isinstance(node, tvm.tirx.BufferStore):
            private = private or str(node.buffer.scope()) in ("local", "local.var")

    tvm.tirx.stmt_functor.post_order_visit(loop.body, visit)
    return not private


def _written_by(call: Any) -> Any:
    """The buffer that a `T.fill` or `T.copy` writes; None for any other expression."""
    position = {"tl.tileop.fill": 0, "tl.tileop.copy": 1}.get(
        op_name(call) if type(call).__name__ == "Call" else ""
    )
    return None if position is None else call.args[position].args[0].buffer


def _statements(node: Any, depth: int) -> Iterator[tuple[Any, int]]:
    """The statements inside one, itself first, each with the parallel loops it is inside of."""
    from tilelang import tvm

    yield node, depth
    inner: list[Any] = []
    if isinstance(node, tvm.tirx.For):
        inner, depth = [node.body], depth + spreads(node)
    elif isinstance(node, tvm.tirx.SeqStmt):
        inner = list(node.seq)
    elif isinstance(node, tvm.tirx.IfThenElse):
        inner = [node.then_case] if node.else_case is None else [node.then_case, node.else_case]
    elif isinstance(node, (tvm.tirx.While, tvm.tirx.AttrStmt)):
        inner = [node.body]
    for child in inner:
        yield from _statements(child, depth)


def _depth(node: Any) -> int:
    """How many parallel loops are nested at most in a statement."""
    return max(depth for _, depth in _statements(node, 0))
