"""Tile operations: copy, fill, gemm, reductions, scans and atomics on regions of buffers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .bounds import Dim, add, constant, constant_index, wrapped_index
from .calls import CallMixin
from .expressions import op_name
from .values import Val, is_float, is_float8, is_int

if TYPE_CHECKING:
    from .context import Buf

__all__ = ["Region", "TileOpMixin"]


@dataclass(frozen=True)
class Region:
    """A box of a buffer: the argument of a tile operation."""

    buf: Buf
    dims: tuple[Dim, ...]
    conditions: tuple[str, ...]

    @property
    def ranges(self) -> list[Dim]:
        """The dims whose extent is not the constant one."""
        return [d for d in self.dims if d.extent is not None]

    @property
    def dims_code(self) -> str:
        """A tuple for the runtime's block functions."""
        return "(" + ", ".join(d.code for d in self.dims) + ",)"


_LEVEL = {
    "global": 0,
    "shared": 1,
    "shared.dyn": 1,
    "shared.tmem": 1,
    "local": 2,
    "local.fragment": 2,
}
# Codecs whose conversion does not saturate, and torch's name of their dtype.
_REDUCTIONS = {"sum", "abssum", "max", "absmax", "min", "bitand", "bitor", "bitxor"}


class TileOpMixin(CallMixin):
    """Turns tile operations into calls of the runtime."""

    def region(self, node: Any, *, keep_units: bool = False) -> Region:
        """A region argument; an extent of one is an index, unless `keep_units`."""
        name = op_name(node) if type(node).__name__ == "Call" else type(node).__name__
        if name not in ("tl.region", "tl.tileop.region"):
            raise self.refuse(f"a tile operation on {name}")
        load = node.args[0]
        buf = self.buffer(load.buffer)
        if buf.variable:
            raise self.refuse(f"a tile operation on the variable {buf.name}")
        dims = []
        for index, n, extent_node in zip(load.indices, buf.shape, node.args[2:], strict=True):
            logical = self.scalar(index, "a tile operation at an index")
            base = wrapped_index(logical, n)
            extent = self.scalar(extent_node, "a tile operation of an extent")
            if n.code in self.cut_names:
                extent = n  # all of its rows, or it would not be cut
            constant = constant_index(index) or (
                logical.lo is not None and logical.lo == logical.hi
            )
            if extent.lit == 1 and not keep_units:
                dims.append(Dim(base, base, constant=constant))
            else:
                dims.append(Dim(base, base, extent=extent, constant=constant))
        return self._boxed(buf, dims)

    def _boxed(self, buf: Buf, dims: list[Dim]) -> Region:
        conditions: list[str] = []
        for dim, n in zip(dims, buf.shape, strict=True):
            conditions += self.conditions(dim, n)
        return Region(buf, tuple(dims), tuple(conditions))

    def region_view(self, region: Region) -> str:
        """Code of the numpy view of a region that is inside."""
        parts = []
        whole = True
        for dim, n in zip(region.dims, region.buf.shape, strict=True):
            if dim.extent is None:
                parts.append(dim.base.code)
                whole = False
            elif dim.base.lit == 0 and dim.extent.code == n.code:
                parts.append(":")
            else:
                whole = False
                parts.append(f"{dim.base.code}:{add(dim.base, dim.extent).code}")
        if whole:
            return region.buf.code
        while parts and parts[-1] == ":":
            parts.pop()
        code = f"{region.buf.code}[{', '.join(parts)}]"
        fixed = constant(region.dims)
        # One element has no view to make once: its name would be a copy of the value.
        if fixed and region.ranges and region.buf.static_shape is not None:
            return self._hoisted(region.buf, code)
        return code

    def checked_view(self, region: Region) -> str:
        """The view of a region that nothing guards: outside is an error."""
        if region.buf.lane_axes:
            raise self.refuse(f"a tile operation on {region.buf.name} in a parallel loop")
        if region.conditions:
            with self.w.block(f"if not ({' and '.join(region.conditions)})"):
                self.w.line(
                    f"outside({region.buf.name!r}, {region.dims_code}, {region.buf.code}.shape)"
                )
        return self.region_view(region)

    def _operand(self, region: Region) -> str:
        """A region's values as an array of floats or integers."""
        view = self.checked_view(region)
        return f"{region.buf.codec}.widen({view})" if region.buf.codec else view

    # -- copy

    def tile_copy(self, node: Any) -> None:
        """`T.copy`: predicated on both sides, cast to the destination's dtype."""
        src, dst = self._matched(self.region(node.args[0]), self.region(node.args[1]))
        self._check_region_constants(src)
        self._check_region_constants(dst)
        conditions = [*src.conditions, *dst.conditions]
        if not conditions:
            self._copy_inside(src, dst)
            return
        with self.w.block(f"if {' and '.join(dict.fromkeys(conditions))}"):
            self._copy_inside(src, dst)
        with self.w.block("else"):
            rounding = dst.buf.rounding if dst.buf.dtype != src.buf.dtype else None
            self.w.line(
                f"copy_block({dst.buf.code}, {dst.buf.codec}, {dst.dims_code}, "
                f"{src.buf.code}, {src.buf.codec}, {src.dims_code}, "
                f"rounding={rounding}, safe={src.buf.safe}, "
                f"src_name={src.buf.name!r}, dst_name={dst.buf.name!r}, "
                f"src_units={self.skips(src.buf)}, dst_units={self.skips(dst.buf)})"
            )

    def _matched(self, src: Region, dst: Region) -> tuple[Region, Region]:
        """Both sides with the extents of the one that TileLang loops over."""
        if len(src.ranges) != len(dst.ranges):
            raise self.refuse(
                f"T.copy from {src.buf.name} to {dst.buf.name} with ranges of different rank"
            )
        src_base = _LEVEL.get(src.buf.scope, 0) >= _LEVEL.get(dst.buf.scope, 0)
        extents = [d.extent for d in (src if src_base else dst).ranges]

        def reshaped(region: Region) -> Region:
            remaining = iter(extents)
            dims = [
                d if d.extent is None else replace(d, extent=next(remaining)) for d in region.dims
            ]
            return self._boxed(region.buf, dims)

        return reshaped(src), reshaped(dst)

    def _check_region_constants(self, region: Region) -> None:
        buf = region.buf
        if not self.guarded(buf):
            return
        for k, (dim, n) in enumerate(zip(region.dims, buf.shape, strict=True)):
            if dim.constant and dim.extent is None and self.conditions(dim, n):
                self.w.line(f"require({buf.name!r}, {k}, {dim.base.code}, {buf.code}.shape)")

    def _copy_inside(self, src: Region, dst: Region) -> None:
        source, target = self.region_view(src), self.region_view(dst)
        if source == target and src.buf is dst.buf:
            return
        same = src.buf.dtype == dst.buf.dtype
        if dst.buf.codec:
            if same and src.buf.codec:
                self.w.line(f"np.copyto({target}, {source})")
                return
            values = f"{src.buf.codec}.widen({source})" if src.buf.codec else source
            if not src.ranges:
                values = f"np.asarray({values})"
                target, values = f"{target[:-1]}, None]", f"{values}"
            self.w.line(f"{dst.buf.codec}.narrow({target}, {values})")
            return
        if src.buf.codec:
            if not src.ranges:
                value = Val(f"{src.buf.codec}.widen({source[:-1]}, None])[0]", src.buf.dtype)
                value = self.cast(value, dst.buf.dtype)
                self.w.line(f"{target} = {value.code}")
                return
            if same or dst.buf.dtype == "float32":
                self.w.line(f"{src.buf.codec}.widen_into({self.tensor(target)}, {source})")
                return
            source = f"{src.buf.codec}.widen({source})"
        if not dst.ranges:
            value = self.cast(Val(source, src.buf.dtype), dst.buf.dtype)
            self.w.line(f"{target} = {value.code}")
        elif same:
            self.w.line(f"np.copyto({target}, {source})")
        elif is_float(src.buf.dtype) and not is_float(dst.buf.dtype) and dst.buf.dtype != "bool":
            self.w.line(f"np.copyto({target}, to_int({source}, {dst.buf.dtype!r}))")
        elif dst.buf.rounding:
            self.round_into(dst.buf.rounding, target, source)
        else:
            self.w.line(f"np.copyto({target}, {source}, casting='unsafe')")

    # -- fill

    def tile_fill(self, node: Any) -> None:
        """`T.fill` and `T.clear`."""
        region = self.region(node.args[0])
        buf = region.buf
        value = self.cast(self.scalar(node.args[1], "a fill with a value"), buf.dtype)
        if buf.lane_axes:
            raise self.refuse(f"T.fill of {buf.name} in a parallel loop")
        if region.conditions and not self.skips(buf):
            view = self.checked_view(region)
        elif region.conditions or buf.codec:
            self._check_region_constants(region)
            self.w.line(
                f"store_block({buf.code}, {buf.codec}, {region.dims_code}, {value.code}, None, "
                f"{buf.name!r}, {self.skips(buf)})"
            )
            return
        elif any(node.same_as(each) for each in self.from_zero):
            return  # the product that follows is written over it
        else:
            view = self.region_view(region)
        self.w.line(f"{view} = {value.code}" if not region.ranges else f"{view}.fill({value.code})")

    # -- matrix product

    def tile_gemm(self, node: Any) -> None:
        """`T.gemm`: `C = A @ B` or `C += A @ B`."""
        a, b, c = (self._matrix(arg) for arg in node.args[:3])
        turns = [self.scalar(node.args[k], "a transposition").code for k in (3, 4)]
        self.check_gemm_barrier(node)
        annotations = dict(node.annotations.items()) if node.annotations is not None else {}
        if annotations.get("use_2cta"):
            raise self.refuse("T.gemm over two blocks (use_2cta)")
        clear = self.scalar(node.args[9], "clear_accum")
        operands = [self._operand(a), self._operand(b)]
        if c.buf.codec:
            raise self.refuse(f"T.gemm into the global buffer {c.buf.name}")
        target = self.checked_view(c)
        from_zero = any(node.same_as(each) for each in self.from_zero)
        clears = from_zero or clear.code
        flags = f"{turns[0]}, {turns[1]}, {clears}"
        if is_int(c.buf.dtype):
            self.w.line(f"gemm_int({operands[0]}, {operands[1]}, {target}, {flags})")
            return
        if c.buf.dtype == "float32" and all(is_float8(r.buf.dtype) for r in (a, b)):
            self.w.line(f"gemm_float8({operands[0]}, {operands[1]}, {target}, {flags})")
            return
        if c.buf.dtype == "float64":
            operands = [f"np.asarray({code}, np.float64)" for code in operands]
        elif any(r.buf.dtype == "float64" or not is_float(r.buf.dtype) for r in (a, b)):
            raise self.refuse(f"T.gemm of {a.buf.dtype} and {b.buf.dtype} into {c.buf.dtype}")
        factors = []
        for k, code in enumerate(operands):
            turned = self.turned(code) if turns[k] == "True" else None
            turns[k] = "False" if turned is not None else turns[k]
            factors.append(turned or self.tensor(code))
        self.w.line(
            f"gemm({', '.join(factors)}, {self.tensor(target)}, {', '.join(turns)}, {clears})"
        )
        if c.buf.rounding:
            self.round_into(c.buf.rounding, target, target)

    def check_gemm_barrier(self, node: Any) -> None:
        """Refuse a barrier that a matrix product arrives at when it is done."""
        if len(node.args) > 10 and type(node.args[10]).__name__ != "IntImm":
            raise self.refuse("T.gemm with an mbarrier")

    def _matrix(self, node: Any) -> Region:
        """A region whose last two dims are the matrix."""
        region = self.region(node, keep_units=True)
        leading = [replace(d, extent=None) for d in region.dims[:-2]]
        return Region(region.buf, (*leading, *region.dims[-2:]), region.conditions)

    # -- reductions and scans

    def tile_reduce(self, node: Any) -> None:
        """`T.reduce_*` along one dimension."""
        src = self.region(node.args[0], keep_units=True)
        dst = self.region(node.args[1], keep_units=True)
        kind = str(node.args[2].value)
        if kind not in _REDUCTIONS:
            raise self.refuse(f"T.reduce_{kind}")
        axis = int(node.args[3].value)
        clear = self.scalar(node.args[4], "clear")
        if dst.buf.codec:
            raise self.refuse(f"T.reduce_{kind} into the global buffer {dst.buf.name}")
        source, target = self._operand(src), self.checked_view(dst)
        if is_float(src.buf.dtype):
            annotations = dict(node.annotations.items()) if node.annotations is not None else {}
            keeps = kind in ("max", "min", "absmax") and bool(annotations.get("nan_propagate"))
            if keeps and dst.buf.dtype not in ("float16", "bfloat16"):
                raise self.refuse(f"T.reduce_{kind} with nan_propagate into {dst.buf.dtype}")
            self.w.line(
                f"reduce_float({kind!r}, {self.tensor(source)}, {axis}, {target}, "
                f"{clear.code}, {dst.buf.rounding}, {keeps})"
            )
            return
        self.w.line(f"reduce_int({kind!r}, {source}, {axis}, {target}, {clear.code})")

    def tile_scan(self, node: Any, kind: str) -> None:
        """`T.cumsum` and `T.cummax` along one dimension."""
        src = self.region(node.args[0], keep_units=True)
        dst = self.region(node.args[1], keep_units=True)
        axis = int(node.args[2].value)
        reverse = self.scalar(node.args[3], "reverse")
        if dst.buf.codec:
            raise self.refuse(f"T.{kind} into the global buffer {dst.buf.name}")
        source = self._operand(src)
        self.w.line(
            f"scan({kind!r}, {source}, {axis}, {reverse.code}, "
            f"{self.checked_view(dst)}, {dst.buf.rounding})"
        )

    def tile_transpose(self, node: Any) -> None:
        """`T.transpose` of the last two dimensions."""
        src = self.region(node.args[0], keep_units=True)
        dst = self.region(node.args[1], keep_units=True)
        source = self._operand(src)
        self.w.line(
            f"np.copyto({self.checked_view(dst)}, {source}.swapaxes(-1, -2).copy(), "
            "casting='unsafe')"
        )

    def tile_im2col(self, node: Any) -> None:
        """`T.im2col`: rows are pixels, columns what the filter's taps see of the channels."""
        image = self.region(node.args[0], keep_units=True)
        column = self.region(node.args[1], keep_units=True)
        kernel, stride, dilation, pad = (int(a) for a in node.args[4:8])
        if not image.buf.is_global or len(image.dims) != 4 or len(column.dims) != 2:
            raise self.refuse(f"T.im2col from {image.buf.name} to {column.buf.name}")
        if (kernel - 1) * dilation != 2 * pad:
            # The hardware walks a box of pixels that TileLang bounds by the padding alone.
            raise self.refuse("T.im2col with a padding that changes the size of the image")
        row, step = (self.scalar(a, "a step of T.im2col").code for a in node.args[2:4])
        self.w.line(
            f"im2col({image.buf.code}, {image.buf.codec}, {self.checked_view(column)}, "
            f"{row}, {step}, {kernel}, {stride}, {dilation}, {pad})"
        )

    # -- atomics

    def tile_atomic(self, node: Any, kind: str) -> None:
        """`T.atomic_add`, `max`, `min` of a tile into a region."""
        dst = self.region(node.args[1])
        value_node = node.args[0]
        named = op_name(value_node) if type(value_node).__name__ == "Call" else ""
        if named in ("tl.region", "tl.tileop.region"):
            src, dst = self._matched_atomic(self.region(value_node), dst)
            value = self._operand(src)
        else:
            value = self.cast(self.scalar(value_node, "an atomic of a value"), dst.buf.dtype).code
        self._check_region_constants(dst)
        buf = dst.buf
        # Predicated like T.copy on its ranges; a single index is guarded in global memory only.
        guard = self.skips(buf) or all(d.extent is not None for d in dst.dims)
        self.w.line(
            f"atomic_block({kind!r}, {buf.code}, {buf.codec}, {dst.dims_code}, {value}, None, "
            f"{buf.name!r}, {guard})"
        )

    def _matched_atomic(self, src: Region, dst: Region) -> tuple[Region, Region]:
        if len(src.ranges) != len(dst.ranges):
            raise self.refuse(
                f"an atomic from {src.buf.name} to {dst.buf.name} with ranges of different rank"
            )
        return self._matched(src, dst)
