"""Regions: the operands of tile operations, as views of buffers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.constants import is_constant_index
from tlmatrix.interpreter.ir import nodes as ir

from .access import Dim, conditions, index_width, is_unchanging, under_conditions, wrapped_index
from .integers import add
from .memory import buffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .buffers import Buf
    from .emitter import Emitter
    from .values import Val

_LEVEL = {
    "global": 0,
    "shared": 1,
    "shared.dyn": 1,
    "shared.tmem": 1,
    "local": 2,
    "local.fragment": 2,
}


@dataclass(frozen=True)
class BufferRegion:
    """A box of a buffer.

    Attributes:
        buf: the buffer.
        dims: its dimensions; of a single index `extent` is None.
        conditions: what must hold at run time for it to be inside; none when proven.
    """

    buf: Buf
    dims: tuple[Dim, ...]
    conditions: tuple[str, ...]

    @property
    def ranges(self) -> list[Dim]:
        """The dims that are no single index."""
        return [d for d in self.dims if d.extent is not None]

    @property
    def dims_code(self) -> str:
        """A tuple for the runtime's block functions."""
        return "(" + ", ".join(d.code for d in self.dims) + ",)"

    @property
    def is_whole_local(self) -> bool:
        """Whether it is all of a buffer that only the block sees."""
        return not self.buf.is_global and all(
            (d.extent is not None and d.base.lit == 0 and d.extent.code == n.code)
            or (n.lit == 1 and d.base.lit == 0)
            for d, n in zip(self.dims, self.buf.shape, strict=True)
        )


def region(e: Emitter, node: Any, *, keep_units: bool = False) -> BufferRegion:
    """A region operand; an extent of one is an index, unless `keep_units`."""
    if not isinstance(node, ir.Region):
        name = node.op if isinstance(node, ir.Call) else type(node).__name__
        raise e.refuse(f"a tile operation on {name}")
    buf = buffer(e, node.buffer)
    if buf.variable:
        raise e.refuse(f"a tile operation on the variable {buf.name}")
    dims = []
    for index, n, size in zip(node.indices, buf.shape, node.extents, strict=True):
        with index_width(e, buf):
            logical = e.scalar(index, "a tile operation at an index")
            logical = under_conditions(e, index, logical)
        base = wrapped_index(logical, n)
        extent: Val | None = e.scalar(size, "a tile operation of an extent")
        constant = is_constant_index(index) or (logical.lo is not None and logical.lo == logical.hi)
        if extent is not None and extent.lit == 1 and not keep_units:
            extent = None
        dims.append(Dim(base, base, extent=extent, constant=constant))
    return _box(buf, dims)


def _box(buf: Buf, dims: Sequence[Dim]) -> BufferRegion:
    unproven: list[str] = []
    for dim, n in zip(dims, buf.shape, strict=True):
        unproven += conditions(dim, n)
    return BufferRegion(buf, tuple(dims), tuple(unproven))


def matrix(e: Emitter, node: Any) -> BufferRegion:
    """A region whose last two dims are a matrix."""
    found = region(e, node, keep_units=True)
    leading = [replace(d, extent=None) for d in found.dims[:-2]]
    return BufferRegion(found.buf, (*leading, *found.dims[-2:]), found.conditions)


def matched(
    e: Emitter, src: BufferRegion, dst: BufferRegion, what: str
) -> tuple[BufferRegion, BufferRegion]:
    """Both sides of a copy with the extents of the one that TileLang loops over."""
    if len(src.ranges) != len(dst.ranges):
        raise e.refuse(
            f"{what} from {src.buf.name} to {dst.buf.name} with ranges of different rank"
        )
    src_base = _LEVEL.get(src.buf.scope, 0) >= _LEVEL.get(dst.buf.scope, 0)
    extents = [d.extent for d in (src if src_base else dst).ranges]

    def reshaped(side: BufferRegion) -> BufferRegion:
        remaining = iter(extents)
        return _box(
            side.buf,
            [d if d.extent is None else replace(d, extent=next(remaining)) for d in side.dims],
        )

    return reshaped(src), reshaped(dst)


def region_view(e: Emitter, box: BufferRegion) -> str:
    """Code of the NumPy view of a region that is inside."""
    parts = []
    whole = True
    for dim, n in zip(box.dims, box.buf.shape, strict=True):
        if dim.extent is None:
            parts.append(dim.base.code)
            whole = False
        elif dim.base.lit == 0 and dim.extent.code == n.code:
            parts.append(":")
        else:
            whole = False
            parts.append(f"{dim.base.code}:{add(dim.base, dim.extent).code}")
    if whole:
        return box.buf.code
    while parts and parts[-1] == ":":
        parts.pop()
    code = f"{box.buf.code}[{', '.join(parts)}]"
    # One element has no view to make once: its name would be a copy of the value.
    if is_unchanging(box.dims) and box.ranges and box.buf.static_shape is not None:
        return e.hoisted(box.buf, code)
    return code


def checked_view(e: Emitter, box: BufferRegion) -> str:
    """The view of a region that nothing guards: outside is an error."""
    if box.buf.private_axes:
        raise e.refuse(f"a tile operation on {box.buf.name} in a parallel loop")
    for instrument in e.instruments:
        instrument.before_view(e, box)
    if box.conditions:
        with e.w.block(f"if not ({' and '.join(box.conditions)})"):
            e.w.line(f"outside({box.buf.name!r}, {box.dims_code}, {box.buf.code}.shape)")
    return region_view(e, box)


def operand(e: Emitter, box: BufferRegion) -> str:
    """A region's values as an array of floats or integers."""
    code = checked_view(e, box)
    return f"{box.buf.codec}.widen({code})" if box.buf.codec else code
