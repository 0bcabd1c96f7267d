"""Matrix instructions that the lanes of a warp do together: `T.ptx_ldmatrix` and `T.ptx_mma`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.codegen.expressions import op_name
from tlmatrix.interpreter.codegen.values import Val, is_float, literal

from .private import PrivateMixin

if TYPE_CHECKING:
    from tlmatrix.interpreter.codegen.context import Buf

__all__ = ["WarpMatrixMixin"]

_SHAPE = re.compile(r"m16n8k(\d+)$")
# The lengths of a sum that mma.m16n8kK has, by the bits of a factor's element (PTX ISA).
_LENGTHS = {8: (16, 32), 16: (8, 16), 32: (4, 8)}
_MATRICES = (1, 2, 4)
_BITS = re.compile(r"[a-z]+(\d+)")


def _bits(buf: Buf) -> int:
    found = _BITS.match(buf.dtype)
    return int(found.group(1)) if found is not None else 8


class WarpMatrixMixin(PrivateMixin):
    """Overrides what a warp does with fragments that its lanes hold."""

    def _call_tl_ptx_ldmatrix(self, node: Any, dtype: str) -> Val:
        """`T.ptx_ldmatrix(transposed, matrices, rows in shared memory, fragment)`."""
        axis = self.lane_axis("T.ptx_ldmatrix")
        transposed, matrices = bool(node.args[0].value), int(node.args[1].value)
        source = self._element_of(node.args[2], "T.ptx_ldmatrix")
        target = self._element_of(node.args[3], "T.ptx_ldmatrix")
        src, dst = self.buffer(source.buffer), self.buffer(target.buffer)
        bits = _bits(src)
        if (
            not src.scope.startswith("shared")
            or src.dtype != dst.dtype
            or matrices not in _MATRICES
            or (transposed and bits != 16)
        ):
            raise self.refuse(f"T.ptx_ldmatrix from {src.name} ({src.dtype}) to {dst.name}")
        rows = [self.expr(i).code for i in source.indices]
        index = "(" + ", ".join(rows) + ",)"
        start = self._start(dst, list(target.indices))
        mask = self.mask.code if self.mask is not None else "None"
        width, threads = 128 // bits, axis.extent.code
        if self.tracks(src):
            # Only as many lanes as there are rows give an address.
            lanes = f"(np.arange({threads}) % 32 < {8 * matrices})"
            lanes = f"({lanes} & {mask})" if self.mask is not None else lanes
            spread = [f"np.asarray({row})[..., None]" for row in rows]
            spread[-1] += f" + np.arange({width})"
            self.w.line(
                f"me.touches({src.code!r}, ({', '.join(spread)},), {lanes}[:, None], "
                f"{src.code}.shape, write=False)"
            )
        self.w.line(
            f"ldmatrix({src.code}, {index}, {dst.code}, {start}, {matrices}, {width}, "
            f"{transposed}, {mask}, {threads}, {src.name!r})"
        )
        return literal(0, "int32") if dtype == "handle" else literal(0, dtype)

    def _call_tirx_ptx_mma(self, node: Any, dtype: str) -> Val:
        """`T.ptx_mma` with fragments in memory of the lanes."""
        axis = self.lane_axis("T.ptx_mma")
        shape, left, right = (str(a.value) for a in node.args[:3])
        a, b, c = (self._fragment(node.args[k]) for k in (6, 8, 10))
        match, bits = _SHAPE.match(shape), _bits(a)
        if (
            match is None
            or (left, right) != ("row", "col")
            or int(match.group(1)) not in _LENGTHS.get(bits, ())
            or _bits(b) != bits
            or is_float(c.dtype) != is_float(a.dtype)
            or int(node.args[12].value)
            or len(node.args) > 13
        ):
            raise self.refuse(
                f"T.ptx_mma {shape} of {a.dtype} ({left}) and {b.dtype} ({right}) into {c.dtype}"
            )
        parts = [
            f"({buf.code}, {self.scalar(node.args[k], 'a fragment').code})"
            for buf, k in ((a, 7), (b, 9), (c, 11))
        ]
        mask = self.mask.code if self.mask is not None else "None"
        self.w.line(
            f"mma({match.group(1)}, {32 // bits}, {', '.join(parts)}, {c.rounding}, {mask}, "
            f"{axis.extent.code})"
        )
        return literal(0, "int32") if dtype == "handle" else literal(0, dtype)

    def _element_of(self, pointer: Any, what: str) -> Any:
        if type(pointer).__name__ != "Call" or op_name(pointer) != "tl.access_ptr":
            raise self.refuse(f"{what} of {pointer}")
        return pointer.args[0]

    def _fragment(self, data: Any) -> Buf:
        for buffer in list(self.buffers):
            if buffer.data.same_as(data):
                return self._private(self.buffer(buffer))
        raise self.refuse(f"T.ptx_mma of {data}")

    def _private(self, buf: Buf) -> Buf:
        """A fragment: one-dimensional memory of which every lane has its own."""
        if not buf.lane_axes or len(buf.shape) != 1 or buf.scope != "local":
            raise self.refuse(f"a matrix instruction on {buf.name}")
        return buf

    def _start(self, buf: Buf, indices: list[Any]) -> str:
        self._private(buf)
        return self.scalar(indices[0], "a fragment").code
