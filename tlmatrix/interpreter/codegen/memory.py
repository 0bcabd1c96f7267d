"""Loads, and the numpy views that loads and stores of a block share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .bounds import Access, add, constant, constant_index
from .logic import LogicMixin
from .values import LOW_PRECISION, Val, is_float, is_int, literal, memory_name, numpy_type

if TYPE_CHECKING:
    from .context import Buf

__all__ = ["MemoryMixin"]


class MemoryMixin(LogicMixin):
    """Reads buffers."""

    def buffer(self, node: Any) -> Buf:
        """The buffer record of an IR buffer."""
        found = self.buffers.get(node)
        return found if found is not None else self._reshaped(node)

    def _reshaped(self, node: Any) -> Buf:
        """A `T.reshape` or `T.view` of a buffer: another shape or dtype of the same memory."""
        whole = next((b for k, b in self.buffers.items() if k.data.same_as(node.data)), None)
        if whole is None:
            raise self.refuse(f"the buffer {node.name}, which is not allocated where it is used")
        dtype = str(node.dtype)
        offset = (
            self.scalar(node.elem_offset, "an offset") if node.elem_offset is not None else None
        )
        if whole.variable or whole.lane_axes or (offset is not None and offset.lit != 0):
            raise self.refuse(f"a view of {whole.name} ({node.name})")
        packed = dtype in LOW_PRECISION or whole.dtype in LOW_PRECISION
        if dtype != whole.dtype and (
            dtype == "bool" or (packed and not whole.is_global and node.data not in self.viewed)
        ):
            raise self.refuse(f"a view of {whole.name} ({whole.dtype}) as {dtype}")
        shape = tuple(self.scalar(n, "a buffer shape") for n in node.shape)
        code = self.prologue.fresh(whole.code + "_as")
        held = memory_name(dtype) if dtype in LOW_PRECISION else dtype
        cast = "" if dtype == whole.dtype else f".view(np.{held})"
        extents = ", ".join(n.code for n in shape)
        self.prologue.line(f"{code} = {whole.code}{cast}.reshape({extents})")
        if whole.code in self.fixed:
            self.fixed.add(code)
        found = replace(whole, code=code, dtype=dtype, shape=shape, views={})
        if dtype != whole.dtype:
            found = replace(found, codec=LOW_PRECISION.get(dtype), rounding=None, safe="0")
        self.buffers[node] = found
        return found

    def _expr_BufferLoad(self, node: Any) -> Val:
        buf = self.buffer(node.buffer)
        if node.predicate is not None:
            raise self.refuse(f"a predicated load of {buf.name}")
        return self.load(buf, list(node.indices))

    def load(self, buf: Buf, nodes: list[Any]) -> Val:
        """The value at indices of a buffer."""
        if buf.variable:
            return Val(self.on_variable(buf, buf.code), buf.dtype, mutable=True)
        indices = [self.expr(i) for i in nodes]
        access = self.access(buf, indices, constant=[constant_index(i) for i in nodes])
        if not access.axes:
            return self._load_scalar(access)
        self.on_read(access)
        if access.block:
            self.check_constants(access)
            return self._load_block(access)
        self.consume(*indices)
        self.check_constants(access)
        name = self.temp()
        mask = self.mask.code if self.mask is not None else "None"
        self.w.line(
            f"{name} = gather({buf.code}, {buf.codec}, {access.index_code}, {mask}, "
            f"{buf.safe}, {buf.name!r}, {self.skips(buf)})"
        )
        return Val(name, buf.dtype, access.axes, owned=True)

    def guarded(self, buf: Buf) -> bool:
        """Whether TileLang guards this buffer's accesses."""
        return buf.is_global and self.guard

    def skips(self, buf: Buf) -> bool:
        """Whether an access of a single element or block outside is skipped when it runs."""
        return self.guarded(buf)

    def check_constants(self, access: Access) -> None:
        """Check constant indices into global memory, which are not guarded."""
        buf = access.buf
        if not self.guarded(buf):
            return
        for k, (dim, n) in enumerate(zip(access.dims, buf.shape, strict=False)):
            if dim.constant and dim.extent is None and self.conditions(dim, n):
                self.w.line(f"require({buf.name!r}, {k}, {dim.base.code}, {buf.code}.shape)")

    def _load_scalar(self, access: Access) -> Val:
        buf = access.buf
        lo = hi = None
        if buf.dtype == "bool":
            lo, hi = 0, 1
        index = ", ".join(d.base.code for d in access.dims)
        constants = any(d.constant for d in access.dims)
        if self.guarded(buf) and constants and access.conditions:
            self.check_constants(access)
        if not access.conditions and buf.codec is None:
            code = f"{buf.code}[{index}]"
            if not is_float(buf.dtype):
                code = f"{buf.code}.item({index})"
            return Val(self.on_scalar(access, code), buf.dtype, lo=lo, hi=hi)
        if len(access.dims) == 1 and self.skips(buf) and is_int(buf.dtype):
            code = f"item({buf.code}, {index}, {buf.safe})"
            return Val(self.on_scalar(access, code), buf.dtype)
        code = (
            f"at({buf.code}, {buf.codec}, ({index},), {buf.safe}, {buf.name!r}, {self.skips(buf)})"
        )
        if is_float(buf.dtype) and buf.codec is None and self.skips(buf):
            code = f"np.{numpy_type(buf.dtype)}({code})"
        return Val(self.on_scalar(access, code), buf.dtype, lo=lo, hi=hi)

    def view(self, access: Access) -> str:
        """Code of the numpy view of a block that is inside, aligned to the axes in force."""
        buf = access.buf
        shape = list(buf.shape) + [self.axis_at(p).extent for p in buf.lane_axes]
        parts: list[str] = []
        whole = True
        for dim, n in zip(access.dims, shape, strict=True):
            if dim.extent is None:
                parts.append(dim.base.code)
                whole = False
            elif dim.base.lit == 0 and dim.step == 1 and dim.extent.code == n.code:
                parts.append(":")
            else:
                whole = False
                stop = add(dim.last, literal(1, "int32"))
                step = f":{dim.step}" if dim.step != 1 else ""
                parts.append(f"{dim.base.code}:{stop.code}{step}")
        axes = [d.axis for d in access.dims if d.axis is not None]
        in_order = axes == sorted(axes)
        if in_order:
            if whole and axes == list(range(self.rank)):
                return buf.code
            parts = self._with_missing_axes(parts, access)
            code = f"{buf.code}[{', '.join(parts)}]"
        else:
            order = sorted(axes)
            permutation = ", ".join(str(axes.index(a)) for a in order)
            tail = ", ".join(":" if p in axes else "None" for p in range(self.rank))
            code = f"{buf.code}[{', '.join(parts)}].transpose({permutation})[{tail}]"
        fixed = constant(access.dims) and buf.static_shape is not None
        return self._hoisted(buf, code) if fixed else code

    def _with_missing_axes(self, parts: list[str], access: Access) -> list[str]:
        out: list[str] = []
        position = 0
        for text, dim in zip(parts, access.dims, strict=True):
            if dim.axis is not None:
                out += ["None"] * (dim.axis - position)
                position = dim.axis + 1
            out.append(text)
        return out + ["None"] * (self.rank - position)

    def _hoisted(self, buf: Buf, code: str) -> str:
        """A view that never changes, made once."""
        if buf.is_global or buf.lane_axes or code == buf.code:
            return code
        name = buf.views.get(code)
        if name is None:
            name = self.prologue.fresh(f"{buf.code}_v")
            self.once(name, code, buf.code)
            buf.views[code] = name
            self.fixed.add(name)
        return name

    def _load_block(self, access: Access) -> Val:
        buf = access.buf
        axes = access.axes
        if not access.conditions:
            return self._inside_block(access)
        if self.mask is not None and not self.skips(buf):
            # Only active lanes must be inside: element by element.
            name = self.temp()
            self.w.line(
                f"{name} = gather({buf.code}, {buf.codec}, {access.index_code}, "
                f"{self.mask.code}, {buf.safe}, {buf.name!r}, False)"
            )
            return Val(name, buf.dtype, axes, owned=True)
        name = self.temp()
        with self.w.block(f"if {access.inside}"):
            view = self.view(access)
            source = f"{buf.codec}.widen({view})" if buf.codec else view
            self.w.line(f"{name} = {source}")
        with self.w.block("else"):
            self.w.line(
                f"{name} = load_block({buf.code}, {buf.codec}, {access.dims_code}, "
                f"{buf.safe}, {buf.name!r}, {self.skips(buf)}){self.align(access)}"
            )
        if buf.codec:
            return Val(name, buf.dtype, axes, owned=True)
        return self._alias(buf, name, access)

    def _inside_block(self, access: Access) -> Val:
        buf = access.buf
        view = self.view(access)
        if buf.codec:
            name = self.temp()
            self.w.line(f"{name} = {buf.codec}.widen({view})")
            return Val(name, buf.dtype, access.axes, owned=True)
        return self._alias(buf, view, access)

    def _alias(self, buf: Buf, code: str, access: Access) -> Val:
        dest = self.dest
        if dest is not None and dest.name == buf.code:
            dest.reads_left -= 1
            dest.live += 1
        return Val(code, buf.dtype, access.axes, alias=buf.code)

    def align(self, access: Access) -> str:
        """Code that aligns an array of a block's own dims to the axes in force."""
        axes = [d.axis for d in access.dims if d.axis is not None]
        order = sorted(axes)
        code = ""
        if axes != order:
            code += ".transpose(" + ", ".join(str(axes.index(a)) for a in order) + ")"
        if order != list(range(self.rank)):
            code += "[" + ", ".join(":" if p in order else "None" for p in range(self.rank)) + "]"
        return code
