"""Atomics on single elements, one a lane, and tests over a whole buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .bounds import add, constant_index
from .expressions import op_name
from .tileops import TileOpMixin
from .values import Val, is_float, literal

if TYPE_CHECKING:
    from .context import Buf

__all__ = ["ATOMICS", "ElementMixin"]

# Name of the operation, whether it returns the previous value, how many elements it spans.
ATOMICS = {
    "tl.atomic_add_elem_op": ("add", False, 1),
    "tl.atomic_add_ret_elem_op": ("add", True, 1),
    "tl.atomic_addx2_elem_op": ("add", False, 2),
    "tl.atomic_addx4_elem_op": ("add", False, 4),
    "tl.atomic_max_elem_op": ("max", False, 1),
    "tl.atomic_max_ret_elem_op": ("max", True, 1),
    "tl.atomic_min_elem_op": ("min", False, 1),
    "tl.atomic_min_ret_elem_op": ("min", True, 1),
    "tl.atomic_or_elem_op": ("or", False, 1),
}


class ElementMixin(TileOpMixin):
    """Element atomics."""

    def element_atomic(self, node: Any, kind: str, *, previous: bool, width: int = 1) -> Val:
        """An atomic on one element (or `width` consecutive ones) a lane."""
        pointer = node.args[0]
        if op_name(pointer) != "tl.access_ptr":
            raise self.refuse(f"an atomic through {op_name(pointer)}")
        load = pointer.args[0]
        buf = self.buffer(load.buffer)
        value = literal(0, buf.dtype)
        if width > 1:
            self.together[buf.name] = max(width, self.together.get(buf.name, 1))
        for k in range(width):
            indices = [self.expr(i) for i in load.indices]
            constant = [constant_index(i) for i in load.indices]
            if width == 1:
                value = self.cast(self.expr(node.args[1]), buf.dtype)
            else:
                source = node.args[1].args[0]
                source_indices = [self.expr(i) for i in source.indices]
                source_indices[-1] = self._shifted(source_indices[-1], k)
                value = self.cast(
                    self._load_values(self.buffer(source.buffer), source_indices), buf.dtype
                )
                indices[-1] = self._shifted(indices[-1], k)
            value = self._one_atomic(buf, indices, constant, value, kind, previous=previous)
        return value

    def _shifted(self, index: Val, offset: int) -> Val:
        if offset == 0:
            return index
        other = literal(offset, "int32")
        if index.scalar:
            return add(index, other)
        affine = self._affine("+", index, other)
        return Val(f"({index.code} + {offset})", index.dtype, index.axes, affine=affine)

    def _load_values(self, buf: Buf, indices: list[Val]) -> Val:
        access = self.access(buf, indices)
        if not access.axes:
            return self._load_scalar(access)
        self.on_read(access)
        if access.block:
            return self._load_block(access)
        name = self.temp()
        mask = self.mask.code if self.mask is not None else "None"
        self.w.line(
            f"{name} = gather({buf.code}, {buf.codec}, {access.index_code}, {mask}, "
            f"{buf.safe}, {buf.name!r}, {self.skips(buf)})"
        )
        return Val(name, buf.dtype, access.axes, owned=True)

    def _one_atomic(
        self,
        buf: Buf,
        indices: list[Val],
        constant: list[bool],
        value: Val,
        kind: str,
        *,
        previous: bool,
    ) -> Val:
        value = self.rounded(value)
        access = self.access(buf, indices, constant=constant)
        self.check_constants(access)
        self.on_atomic(access, value, previous=previous)
        mask_axes = self.mask.axes if self.mask is not None else frozenset[int]()
        everything = access.axes | value.axes | mask_axes
        if self.all_axes - everything:
            # Every lane of the loop performs the atomic, whether or not it shows in the index.
            everything = self.all_axes
        mask = self.mask.code if self.mask is not None else "None"
        if access.block and access.axes and access.axes == everything and not previous:
            where = self.to_dims(self.mask, access) if self.mask is not None else "None"
            self.w.line(
                f"atomic_block({kind!r}, {buf.code}, {buf.codec}, {access.dims_code}, "
                f"{self.to_dims(value, access)}, {where}, {buf.name!r}, {self.skips(buf)})"
            )
            return literal(0, buf.dtype)
        shape = self.shape_of(everything) if everything else "()"
        name = self.temp("old")
        self.w.line(
            f"{name} = atomic_lanes({kind!r}, {buf.code}, {buf.codec}, {access.index_code}, "
            f"{value.code}, {mask}, {shape}, {buf.name!r}, {self.skips(buf)}, {previous})"
        )
        if not everything and not is_float(buf.dtype):
            return Val(f"int({name})", buf.dtype)
        return Val(name if everything else f"{name}[()]", buf.dtype, everything)

    def to_dims(self, value: Val, access: Any) -> str:
        """Code of a value in the order of a block's own dims."""
        if value.scalar:
            return value.code
        axes = [d.axis for d in access.dims if d.axis is not None]
        order = sorted(axes)
        code = value.code
        if order != list(range(self.rank)):
            code += "[" + ", ".join(":" if p in order else "0" for p in range(self.rank)) + "]"
        if axes != order:
            code += ".transpose(" + ", ".join(str(order.index(a)) for a in axes) + ")"
        return code

    def _expr_Call(self, node: Any) -> Val:
        name = op_name(node)
        if name in ATOMICS:
            kind, previous, width = ATOMICS[name]
            return self.element_atomic(node, kind, previous=previous, width=width)
        if name == "tl.atomic_load_elem_op":
            return self.expr(node.args[0].args[0])
        if name in ("tl.any_of", "tl.all_of"):
            return self._any_of(node, name)
        return super()._expr_Call(node)

    def _any_of(self, node: Any, name: str) -> Val:
        load = node.args[0].args[0]
        buf = self.buffer(load.buffer)
        extent = self.scalar(node.args[1], "an extent")
        dims = [self.scalar(i, "an index") for i in load.indices]
        strides = ", ".join(d.code for d in dims)
        offset = f"int(np.ravel_multi_index(({strides},), {buf.code}.shape))"
        start = self.temp("offset")
        self.w.line(f"{start} = {offset}")
        function = "np.any" if name == "tl.any_of" else "np.all"
        return Val(
            f"bool({function}({buf.code}.reshape(-1)[{start}:{start} + {extent.code}]))", "bool"
        )
