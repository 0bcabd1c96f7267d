"""Tile operations on memory of single threads, and copies and reductions that threads issue.

A `T.fill` or `T.copy` of a thread's own buffer is done by every thread for itself; a raw
`T.ptx_cp_async` copies some elements a thread; `T.tvm_thread_allreduce` combines a value of
threads in one or more dimensions of the block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.codegen.elementwise import element_loops
from tlmatrix.interpreter.codegen.expressions import op_name
from tlmatrix.interpreter.codegen.source import Writer
from tlmatrix.interpreter.codegen.values import Val, numpy_name

from .asynchronous import AsynchronousMixin

if TYPE_CHECKING:
    from tlmatrix.interpreter.codegen.context import Axis, Buf

__all__ = ["PrivateMixin"]

_COMBINERS = {"Add": "add", "Mul": "multiply", "Max": "fmax", "Min": "fmin"}


class PrivateMixin(AsynchronousMixin):
    """Overrides tile operations whose buffers belong to a thread."""

    _combiner: str | None = None

    def lane_axis(self, what: str) -> Axis:
        """The lane axis; see `RoleMixin`."""
        raise NotImplementedError

    def _tile_op(self, call: Any, name: str) -> None:
        if name in ("fill", "copy") and self.threads is not None:
            regions = [a for a in call.args[:2] if type(a).__name__ == "Call"]
            loads = [a.args[0] for a in regions if op_name(a) in ("tl.region", "tl.tileop.region")]
            if any(self.buffer(load.buffer).lane_axes for load in loads):
                self.lane_axis(f"T.{name} of a thread's own memory")
                self.stmt(element_loops(call, name, self.refuse))
                return
        super()._tile_op(call, name)

    # -- cp.async of single threads

    def cp_async(self, call: Any) -> None:
        """`T.ptx_cp_async`: every thread copies some elements in a row.

        Threads whose predicate does not hold read nothing and write zeros.
        """
        axis = self.lane_axis("T.ptx_cp_async")
        count = self.scalar(call.args[2], "a number of elements").code
        target, source = (self._row(arg) for arg in call.args[:2])
        mask = self.mask.code if self.mask is not None else "None"
        reads = mask
        if len(call.args) > 3:
            test = self.expr(call.args[3])
            test = self.keep_mask(self.named(f"({test.code} != 0)", "bool", (test,)))
            reads = self.keep_mask(self.both(self.mask, test)).code
        dst, dst_index = target
        src, src_index = source
        body = Writer(_names=self.w._names, location=self.w.location)  # noqa: SLF001
        element = self.temp("e")
        with body.block(f"for {element} in range({count})"):
            self.on_rows(body, src, _at(src_index, element), reads, write=False)
            self.on_rows(body, dst, _at(dst_index, element), mask, write=True)
            loaded = (
                f"gather({src.code}, {src.codec}, {_at(src_index, element)}, {reads}, {src.safe}, "
                f"{src.name!r}, {self.skips(src)})"
            )
            if len(call.args) > 3:
                loaded = f"np.where({test.code}, {loaded}, 0).astype(np.{numpy_name(src.dtype)})"
            body.line(
                f"scatter({dst.code}, {dst.codec}, {_at(dst_index, element)}, {loaded}, {mask}, "
                f"{dst.name!r}, {self.skips(dst)})"
            )
        threads = axis.extent.code
        accesses = [
            f"({buf.code!r}, {written}, row_cells(({', '.join(index)},), {count}, "
            f"{mask if written else reads}, {threads}, {buf.code}.shape), {buf.code}.shape)"
            for buf, index, written in ((src, src_index, False), (dst, dst_index, True))
            if self.tracks(buf)
        ]
        self.issue_lines("cp.async", body, accesses, "")

    def on_rows(self, body: Writer, buf: Buf, index: str, mask: str, *, write: bool) -> None:
        """One element a thread is about to be copied."""

    def _row(self, pointer: Any) -> tuple[Buf, list[str]]:
        if op_name(pointer) != "tl.access_ptr":
            raise self.refuse(f"T.ptx_cp_async of {op_name(pointer)}")
        load = pointer.args[0]
        buf = self.buffer(load.buffer)
        index = []
        for node in load.indices:
            name = self.temp("at")
            self.w.line(f"{name} = {self.expr(node).code}")
            index.append(name)
        return buf, index

    # -- reductions over threads

    def _stmt_AttrStmt(self, node: Any) -> None:
        if str(node.attr_key) == "reduce_scope":
            kind = type(node.node.result[0]).__name__
            if kind not in _COMBINERS:
                raise self.refuse(f"a reduction over threads by {kind}")
            outer, self._combiner = self._combiner, _COMBINERS[kind]
            self.stmt(node.body)
            self._combiner = outer
            return
        super()._stmt_AttrStmt(node)

    def allreduce(self, call: Any) -> None:
        """`T.tvm_thread_allreduce` of one value."""
        axis = self.lane_axis("T.tvm_thread_allreduce")
        if self._combiner is None or int(call.args[0].value) != 1 or len(self.intervals) > 1:
            raise self.refuse("T.tvm_thread_allreduce of several values or in a role")
        value = self.expr(call.args[1])
        reduced = {self.threads.axis_of(v) for v in call.args[4:] if self.threads.is_axis(v)}
        load = call.args[3]
        buf = self.buffer(load.buffer)
        if not buf.lane_axes:
            raise self.refuse(f"T.tvm_thread_allreduce into {buf.name}")
        where = ", ".join(self.scalar(i, "an index").code for i in load.indices)
        kept = [k for k in range(3) if k not in reduced]
        groups = self.prologue.fresh("groups")
        x, y, _ = self.threads.extents
        linear = f"np.arange({self.threads.count})"
        parts = [f"{linear} % {x}", f"{linear} // {x} % {y}", f"{linear} // {x * y}"]
        key = " + ".join(f"({parts[k]}) * {self.threads.count**n}" for n, k in enumerate(kept))
        self.prologue.line(
            f"{groups} = np.unique({key or '0 * ' + linear}, return_inverse=True)[1]"
        )
        code = value.code
        if value.scalar:
            code = f"np.full({axis.extent.code}, {value.code}, np.{numpy_name(value.dtype)})"
        result = Val(f"over_threads(np.{self._combiner}, {code}, {groups})", buf.dtype)
        self.w.line(f"{buf.code}[{where}] = {result.code}")


def _at(index: list[str], element: str) -> str:
    return f"({', '.join([*index[:-1], f'{index[-1]} + {element}'])},)"
