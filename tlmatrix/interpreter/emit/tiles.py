"""Tile operations: their operands, what every one declares, and how one is emitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from tlmatrix.interpreter.analysis.expressions import is_constant_index
from tlmatrix.interpreter.ir import nodes as ir

from .access import Dim, conditions, index_width, is_unchanging, under_conditions, wrapped_index
from .instrument import Instrument
from .memory import buffer
from .numbers import add

if TYPE_CHECKING:
    from tlmatrix.interpreter.ir.nodes import Call, Region

    from .access import Buf
    from .emitter import Emitter
    from .values import Val


# Regions: the operands of tile operations, as views of buffers ------------------------------------

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
    e.notify(Instrument.before_view, box)
    if box.conditions:
        with e.w.block(f"if not ({' and '.join(box.conditions)})"):
            e.w.line(f"outside({box.buf.name!r}, {box.dims_code}, {box.buf.code}.shape)")
    return region_view(e, box)


def operand(e: Emitter, box: BufferRegion) -> str:
    """A region's values as an array of floats or integers."""
    code = checked_view(e, box)
    return f"{box.buf.codec}.widen({code})" if box.buf.codec else code


# Tile operations: what every one declares, and how one is emitted ---------------------------------


@dataclass(frozen=True)
class Effect:
    """What an operation does to a region: `action` is "read", "write" or "atomic".

    Attributes:
        kind: of an atomic "add", "max" or "min".
        unless: code of a scalar under which it does not do it; None for never.
        blocks: code of the ranks of the blocks of a cluster whose memory it accesses; None for the
            block's own.
    """

    region: BufferRegion
    action: str
    unless: str | None = None
    kind: str = ""
    blocks: str | None = None


@dataclass(frozen=True)
class Dependence:
    """How the elements an operation writes depend on those it reads; see `slices`.

    Attributes:
        rule: the name of the rule.
        sources: the regions read.
        target: the region written.
        arguments: codes of what else the rule needs.
    """

    rule: str
    sources: tuple[BufferRegion, ...]
    target: BufferRegion
    arguments: tuple[str, ...] = ()


class TileOperation:
    """One tile operation of a kernel: its operands, what it does to them, and what it emits.

    From the effects follow what sanitizers, race detection and coverage note of it. An operation
    with no rule is refused by name where a program is recorded to be explained.

    Attributes:
        name: of the operation, without `T.`.
        reads: names of the attributes that are regions it reads.
        writes: names of those that it writes.
        rule: how elements written depend on elements read (`ops.SLICES`); empty if no rule says.
        call: the call in the IR.
        clear: whether what it writes is cleared first; None for an operation that only writes.
        arguments: codes of what else the rule needs.
        predicated: regions whose elements outside of global memory are skipped.
    """

    name: ClassVar[str]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ("dst",)
    rule: ClassVar[str] = ""
    call: Call
    clear: Val | None = None
    arguments: tuple[str, ...] = ()
    predicated: Sequence[BufferRegion] = ()

    @staticmethod
    def overwritten(call: Call) -> Region | None:
        """The region that a call writes whole whatever was in it, if any."""
        del call
        return None

    @property
    def effects(self) -> Sequence[Effect]:
        """What it does to its operands, in order."""
        effects = [Effect(getattr(self, name), "read") for name in self.reads]
        written = [getattr(self, name) for name in self.writes]
        if self.clear is not None and not self.clear.lit:
            unless = self.clear.code if self.clear.lit is None else None
            effects += [Effect(region, "read", unless) for region in written]
        return [*effects, *(Effect(region, "write") for region in written)]

    @property
    def moves(self) -> tuple[BufferRegion, BufferRegion] | None:
        """Source and destination, where unwritten elements of one are unwritten in the other."""
        return None

    @property
    def dependence(self) -> Dependence | None:
        """How what it writes depends on what it reads; None if no rule says."""
        if not self.rule:
            return None
        sources = tuple(getattr(self, name) for name in self.reads)
        return Dependence(self.rule, sources, getattr(self, self.writes[0]), self.arguments)

    def emit(self, e: Emitter) -> None:
        """Write the operation."""
        raise NotImplementedError


def perform(e: Emitter, op: TileOperation) -> None:
    """Write an operation and what instruments note of it."""
    e.notify(Instrument.before_tile, op)
    op.emit(e)
    e.notify(Instrument.after_tile, op)
