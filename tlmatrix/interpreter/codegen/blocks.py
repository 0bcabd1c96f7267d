"""Blocks: their buffers, fresh for every block of the grid, and their annotations."""

from __future__ import annotations

from typing import Any

from .context import Buf
from .lanes import LaneMixin
from .source import buffer_location
from .values import LOW_PRECISION, is_float, is_int, literal, memory_name, numpy_name

__all__ = ["BlockMixin"]

_SCOPES = frozenset(
    {"global", "shared", "shared.dyn", "shared.tmem"}
    | {"local", "local.fragment", "local.var", "local.reducer"}
)


class BlockMixin(LaneMixin):
    """Allocates buffers."""

    def _stmt_SBlockRealize(self, node: Any) -> None:
        self.stmt(node.block)

    def _stmt_SBlock(self, node: Any) -> None:
        annotations = dict(node.annotations.items()) if node.annotations is not None else {}
        self._annotate(node, annotations)
        for buffer in node.alloc_buffers:
            self.allocate(buffer)
        self.stmt(node.body)

    def _annotate(self, node: Any, annotations: dict[str, Any]) -> None:
        """Take note of safe values; refuse annotations that change what a kernel means."""
        for key in ("reducer_info", "reducer_info_v2"):
            for var, info in dict(annotations.get(key, {})).items():
                for buffer in node.alloc_buffers:
                    if buffer.data.same_as(var):
                        self.reducers[str(buffer.name)] = str(info["op"])
        for var, value in dict(annotations.get("safe_value_map", {})).items():
            for buf in self.buffers.items():
                if buf[0].data.same_as(var):
                    buf[1].safe = self._safe_value(value, buf[1].dtype)
            for buffer in node.alloc_buffers:
                if buffer.data.same_as(var):
                    self.safe_later[buffer.name] = value
        allocated = [buffer.data for buffer in node.alloc_buffers]
        for var in dict(annotations.get("layout_map", {})):
            if not any(data.same_as(var) for data in allocated):
                self.layouts[self._global_of(var)] = annotations["layout_map"][var]

    def _safe_value(self, value: Any, dtype: str) -> str:
        if isinstance(value, (bool, int, float)):
            return literal(value, dtype).code
        return self.cast(self.scalar(value, "a safe value"), dtype).code

    def _global_of(self, var: Any) -> str:
        for buffer, buf in self.buffers.items():
            if buffer.data.same_as(var):
                return buf.name
        raise self.refuse(f"a layout of {var}, which is not a buffer of the kernel")

    def allocate(self, buffer: Any) -> None:
        """Make a buffer, poisoned anew for every block that might read what it did not write."""
        self.w.location = buffer_location(buffer) or self.w.location
        scope = str(buffer.scope())
        if scope not in _SCOPES:
            raise self.refuse(f"memory of scope {scope} ({buffer.name})")
        dtype = str(buffer.dtype)
        if "x" in dtype or not (is_float(dtype) or is_int(dtype) or dtype == "bool"):
            raise self.refuse(f"a buffer of dtype {dtype} ({buffer.name})")
        whole = tuple(self.scalar(n, "a buffer shape") for n in buffer.shape)
        rows = self.rows_of(buffer.data)
        shape = whole if rows is None else (rows, *whole[1:])
        name = str(buffer.name)
        code = self.w.fresh(name)
        np_dtype = numpy_name(dtype)
        low = LOW_PRECISION.get(dtype)
        held = buffer.data in self.viewed and low is not None
        if held:
            np_dtype = memory_name(dtype)
        variable = scope == "local.var" and buffer not in self.addressed and not held
        buf = Buf(
            name,
            code,
            dtype,
            shape,
            scope,
            codec=low if held else None,
            rounding=None if held else low,
            variable=variable,
            whole=None if rows is None else whole,
        )
        if name in self.safe_later:
            buf.safe = self._safe_value(self.safe_later[name], dtype)
        self.buffers[buffer] = buf
        # All bits set is NaN in every low-precision dtype that lies as integers.
        blank = "-1" if held and np_dtype == "int16" else _poison(np_dtype)
        blank = "255" if held and np_dtype == "uint8" else blank
        if variable:
            self.w.line(f"{code} = {f'np.{np_dtype}({blank})' if is_float(dtype) else blank}")
            return
        shape_code = "(" + ", ".join(n.code for n in whole) + ",)"
        static = buf.static_shape is not None
        if scope == "global":
            # A workspace of the whole launch, which every block sees.
            self.prologue.line(f"{code} = allocate({shape_code}, {np_dtype!r})")
        elif static:
            self.fixed.add(code)
            memory = code if rows is None else self.prologue.fresh(f"{code}_whole")
            self.prologue.line(f"{memory} = np.empty({shape_code}, {np_dtype!r})")
            if rows is not None:
                self.once(code, f"{memory}[:{rows.code}]", rows.code)
            if not (self.shortens and buffer.data in self.written_first):
                self.w.line(f"{code}.fill({blank})")
        else:
            self.w.line(f"{code} = allocate({shape_code}, {np_dtype!r})")


def _poison(np_dtype: str) -> str:
    """Code of what unwritten memory holds (`runtime.poison`)."""
    from tlmatrix.interpreter.runtime import poison

    value = poison(np_dtype)
    return "NAN" if is_float(np_dtype) else repr(value.item() if hasattr(value, "item") else value)
