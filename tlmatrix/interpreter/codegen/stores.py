"""Stores: in place where that is safe, guarded where TileLang guards, masked in branches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .bounds import Access, constant_index
from .context import Dest
from .elements import ATOMICS
from .expressions import op_name
from .reducers import ReducerMixin
from .values import Val, is_int, numpy_name

if TYPE_CHECKING:
    from .context import Buf

__all__ = ["StoreMixin", "root_choice"]


def root_choice(value: Any) -> tuple[Any, Any, Any] | None:
    """Condition and both values of an expression that is a choice."""
    kind = type(value).__name__
    if kind == "Call" and op_name(value) == "tirx.if_then_else":
        return value.args[0], value.args[1], value.args[2]
    if kind == "Select":
        return value.condition, value.true_value, value.false_value
    return None


class StoreMixin(ReducerMixin):
    """Writes buffers."""

    def _store(self, buf: Buf, nodes: list[Any], value: Any, ir: Any = None) -> None:
        if buf.variable:
            self._store_variable(buf, self.expr(value))
            return
        if self.contribution_by_assignment(buf, nodes, value):
            return
        choice = root_choice(value)
        if choice is not None and self.mask is None and self.axes:
            tests = self.uniform(choice[0])
            if tests is not None and not self.expr(choice[0]).scalar:
                every, none = tests
                with self.w.block(f"if {every}"), self.choosing(choice[0]):
                    self._store_value(buf, nodes, choice[1], ir)
                with self.w.block(f"elif {none}"):
                    self._store_value(buf, nodes, choice[2], ir)
                with self.w.block("else"):
                    self._store_value(buf, nodes, value, ir)
                return
        self._store_value(buf, nodes, value, ir)

    def _store_variable(self, buf: Buf, value: Val) -> None:
        if not value.scalar:
            raise self.refuse(f"the variable {buf.name} set from a parallel loop")
        value = self.rounded(self.cast(value, buf.dtype))
        code = self.as_scalar(value)
        if is_int(buf.dtype) and value.lit is None and not self._fits(value, buf.dtype):
            code = self.wrap(value, buf.dtype).code
        self.on_variable_write(buf, value)
        self.w.line(f"{buf.code} = {code}")

    def _store_value(self, buf: Buf, nodes: list[Any], value: Any, ir: Any) -> None:
        indices = [self.expr(i) for i in nodes]
        access = self.access(buf, indices, constant=[constant_index(i) for i in nodes])
        self.check_constants(access)
        self.dest = self._destination(buf, nodes, access, value, ir)
        dest = self.dest
        with self.mattering(self._stored_at_all(access)):
            result = self.cast(self.expr(value), buf.dtype)
        self.dest = None
        self.on_write(access, result, value)
        if not access.axes and result.scalar and (self.mask is None or self.mask.scalar):
            self._store_scalar(access, result)
            return
        extra = result.axes | (self.mask.axes if self.mask is not None else frozenset[int]())
        if dest is not None and result.code == dest.view:
            if buf.rounding and not result.exact:
                self.round_into(buf.rounding, dest.view, dest.view)
            return
        if access.block and not extra - access.axes:
            self._store_block(access, result)
            return
        result = self.rounded(result)
        mask = self.mask.code if self.mask is not None else "None"
        self.w.line(
            f"scatter({buf.code}, {buf.codec}, {access.index_code}, {result.code}, {mask}, "
            f"{buf.name!r}, {self.skips(buf)})"
        )

    def _stored_at_all(self, access: Access) -> Val | None:
        """Where a store is not skipped; None for one that nothing guards."""
        if not access.conditions or not self.axes or not self.guarded(access.buf):
            return None
        inside: Val | None = None
        for dim, extent in zip(access.dims, access.buf.shape, strict=False):
            index = dim.value
            if index.scalar or (dim.constant and dim.extent is None):
                continue
            test = Val(f"({index.code} >= 0) & ({index.code} < {extent.code})", "bool", index.axes)
            inside = self.both(inside, replace(test, code=f"({test.code})"))
        return inside

    def _destination(
        self, buf: Buf, nodes: list[Any], access: Access, value: Any, ir: Any
    ) -> Dest | None:
        """The stored-to view as scratch memory for the value, where nothing else reads it."""
        from tilelang import tvm

        if (
            ir is None
            or self.mask is not None
            or not access.block
            or not access.axes
            or access.conditions
            or buf.codec
        ):
            return None
        reads = 0
        clean = True

        def visit(child: Any) -> None:
            nonlocal reads, clean
            if isinstance(child, tvm.tirx.BufferLoad) and self.buffers.get(child.buffer) is buf:
                same = all(
                    tvm.ir.structural_equal(x, y) for x, y in zip(child.indices, nodes, strict=True)
                )
                reads += same
                clean = clean and same
            elif isinstance(child, tvm.tirx.Call) and op_name(child) in ATOMICS:
                clean = False

        tvm.tirx.stmt_functor.post_order_visit(value, visit)
        if not clean:
            return None
        return Dest(self.view(access), buf.code, numpy_name(buf.dtype), access.axes, reads)

    def _store_scalar(self, access: Access, value: Val) -> None:
        buf = access.buf
        value = self.rounded(value) if not buf.codec else value
        code = value.code
        if is_int(buf.dtype) and value.lit is None and not self._fits(value, buf.dtype):
            code = self.wrap(value, buf.dtype).code
        index = ", ".join(d.base.code for d in access.dims)
        if not access.conditions and buf.codec is None:
            self.w.line(f"{buf.code}[{index}] = {code}")
        else:
            self.w.line(
                f"put({buf.code}, {buf.codec}, ({index},), {code}, {buf.name!r}, {self.skips(buf)})"
            )

    def _store_block(self, access: Access, value: Val) -> None:
        buf = access.buf
        if access.conditions and self.mask is not None and not self.skips(buf):
            # Only active lanes must be inside: element by element.
            value = self.rounded(value)
            self.w.line(
                f"scatter({buf.code}, {buf.codec}, {access.index_code}, {value.code}, "
                f"{self.mask.code}, {buf.name!r}, False)"
            )
            return
        if not access.conditions:
            self._store_inside(access, value)
            return
        value = self.rounded(value) if not buf.codec else value
        with self.w.block(f"if {access.inside}"):
            self._store_inside(access, value)
        with self.w.block("else"):
            where = self.to_dims(self.mask, access) if self.mask is not None else "None"
            self.w.line(
                f"store_block({buf.code}, {buf.codec}, {access.dims_code}, "
                f"{self.to_dims(value, access)}, {where}, {buf.name!r}, {self.skips(buf)})"
            )

    def _store_inside(self, access: Access, value: Val) -> None:
        buf = access.buf
        view = self.view(access)
        if value.code == view:
            return
        where = f", where={self.mask.code}" if self.mask is not None else ""
        if buf.codec:
            self.w.line(f"{buf.codec}.narrow({view}, {value.code}{where})")
        elif buf.rounding and not value.exact and self.mask is None and not value.scalar:
            if value.axes == access.axes:
                self.round_into(buf.rounding, view, value.code)
            else:
                self.w.line(f"np.copyto({view}, {buf.rounding}.round({value.code}))")
        elif value.scalar and self.mask is None and view == buf.code:
            self.w.line(f"{view}.fill({self.rounded(value).code})")
        else:
            self.w.line(f"np.copyto({view}, {self.rounded(value).code}{where})")
