"""The recorded variant of a program: calls of a recorder beside every access.

A recorder (`runtime.tracks`) learns which block runs and which turn of which loop, which
elements a statement reads and which it writes. It says when a block starts whether to skip it
(0), to note what it does to global memory (1), or everything (2); so the variant serves to draw
who wrote what as well as to follow one element backwards.

Followed are data: what is stored, and what it was computed from. Reads of conditions, loop bounds
and addresses are no data; integers read on the way to a float are noted as addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .expressions import op_name
from .grids import GridMixin
from .sanitized import kernel_usage
from .values import Val, is_float

if TYPE_CHECKING:
    from .bounds import Access
    from .context import Buf
    from .source import Location
    from .tileops import Region

__all__ = ["Loop", "Record", "RecordedMixin", "Spot"]

_STATEMENTS = frozenset({"BufferStore", "Evaluate", "Bind"})


@dataclass(frozen=True)
class Spot:
    """A place in the user's source that reads or writes a buffer.

    Attributes:
        location: the user's line, if it is known.
        buffer: the user's name of the buffer, or of a variable.
        memory: which memory that is; views of one buffer share it.
        scope: TileLang's memory scope; "variable" of a variable or a binding.
        dtype: the IR's dtype.
        codec: name of the codec that its elements are packed with, if they are.
        action: "read", or how it is written: "store", "atomic", a tile operation's name, ….
    """

    location: Location | None
    buffer: str
    memory: str
    scope: str
    dtype: str
    codec: str | None
    action: str

    @property
    def is_global(self) -> bool:
        """Whether other blocks and kernels see it."""
        return self.scope == "global"


@dataclass(frozen=True)
class Loop:
    """A serial loop of the user's source; `name` is empty where it has no variable."""

    name: str
    location: Location | None


@dataclass(frozen=True)
class Record:
    """What a recorder needs to know of a recorded program.

    Attributes:
        spots: by number, as the generated source names them.
        loops: by number.
        grids: for each grid the names of its block indices.
        usage: per global buffer what the kernel does with it: "read", "write", "atomic".
        memories: per global buffer the memory it is.
    """

    spots: tuple[Spot, ...]
    loops: tuple[Loop, ...]
    grids: tuple[tuple[str, ...], ...]
    usage: dict[str, frozenset[str]]
    memories: dict[str, str]

    @property
    def independent(self) -> bool:
        """Whether no block can see what another does: nothing that is written is read."""
        return not any(actions - {"write", "atomic"} for actions in self._written)

    @property
    def _written(self) -> list[frozenset[str]]:
        return [actions for actions in self.usage.values() if actions & {"write", "atomic"}]


class RecordedMixin(GridMixin):
    """Overrides the hooks and the tile operations."""

    def start_recording(self, func: Any) -> None:
        """Set up, before anything is generated."""
        self._spots: dict[Spot, int] = {}
        self._loops: list[Loop] = []
        self._loop_numbers: list[int] = []
        self._grids: list[tuple[str, ...]] = []
        self._base: dict[str, str] = {}
        self._let: dict[Any, tuple[str, frozenset[int]]] = {}
        self._pending: tuple[Buf, str, str] | None = None
        self._usage_of_data = kernel_usage(func)
        self.w.reserve("rec", "on")

    def record(self) -> Record:
        """What the program's recorder needs to know."""
        usage = {
            buf.name: frozenset(
                next((v for k, v in self._usage_of_data.items() if k.same_as(node.data)), set())
            )
            for node, buf in self.buffers.items()
            if buf.is_global
        }
        memories = {buf.name: buf.code for buf in self.buffers.values() if buf.is_global}
        return Record(tuple(self._spots), tuple(self._loops), tuple(self._grids), usage, memories)

    def _spot(self, buf: Buf, action: str) -> int:
        spot = Spot(
            self.w.location,
            buf.name,
            self._base.get(buf.code, buf.code),
            "variable" if buf.variable else buf.scope,
            buf.dtype,
            buf.codec,
            action,
        )
        return self._spots.setdefault(spot, len(self._spots))

    @staticmethod
    def _guard(buf: Buf) -> str:
        """Of what only this block sees, notes are taken only where they are asked for."""
        return "" if buf.is_global else "on > 1 and "

    @staticmethod
    def _array(buf: Buf) -> str:
        return "None" if buf.variable else buf.code

    def _mask_code(self) -> str:
        return self.mask.code if self.mask is not None else "None"

    # -- the grid, statements, loops

    def on_grid(self) -> None:
        """A grid is numbered."""
        self._grids.append(())

    def on_block(self, indices: list[Any]) -> None:
        """The recorder says what of the block to note."""
        codes = [self.vars[var].code for var in indices]
        self._grids[-1] = tuple(str(var.name) for var in indices)
        self.w.line(f"on = rec.enter({len(self._grids) - 1}, ({', '.join(codes)},))")
        with self.w.block("if not on"):
            self.w.line("continue")

    def note_whole_kernel(self, func: Any) -> None:
        """A kernel that has no grid is one block."""
        from tilelang import tvm

        grids: list[Any] = []

        def visit(node: Any) -> None:
            if isinstance(node, tvm.tirx.For) and int(node.kind) == 4:
                grids.append(node)

        tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
        if not grids:
            self._grids.append(())
            self.prologue.line("on = rec.enter(0, ())")

    def stmt(self, node: Any) -> None:
        """Write one statement, its start noted."""
        if type(node).__name__ in _STATEMENTS:
            span = self.span_of(node)
            if span is not None:
                self.w.location = span
            self.w.line(f"rec.begin({self._line()})")
        super().stmt(node)

    def _line(self) -> int:
        """The number of the place where a statement starts."""
        spot = Spot(self.w.location, "", "", "", "", None, "statement")
        return self._spots.setdefault(spot, len(self._spots))

    def on_loop(self, node: Any, ranged: str) -> None:
        """A serial loop is about to start."""
        if int(getattr(node, "kind", 0)) == 4:
            return
        variable = getattr(node, "loop_var", None)
        number = len(self._loops)
        name = "" if variable is None else str(variable.name)
        self._loops.append(Loop(name, self.w.location))
        self._loop_numbers.append(number)
        self.w.line(f"rec.loop({number}, range({ranged}))" if ranged else f"rec.loop({number})")

    def on_turn(self, node: Any, name: str) -> None:
        """A turn of a serial loop starts."""
        if int(getattr(node, "kind", 0)) != 4:
            self.w.line(f"rec.turn({name})")

    def on_loop_end(self, node: Any) -> None:
        """A serial loop has ended."""
        if int(getattr(node, "kind", 0)) != 4:
            self.w.line(f"rec.leave({self._loop_numbers.pop()})")

    # -- bindings and variables

    def _stmt_Bind(self, node: Any) -> None:
        super()._stmt_Bind(node)
        found = self.vars.get(node.var)
        if not isinstance(found, Val) or not is_float(found.dtype) or found.lit is not None:
            return
        if not found.code.isidentifier():
            return
        name = str(node.var.name)
        self._let[node.var] = (found.code, found.axes)
        spot = Spot(self.w.location, name, found.code, "variable", found.dtype, None, "let")
        number = self._spots.setdefault(spot, len(self._spots))
        self.w.line(
            f"on > 1 and rec.named({number}, {found.code}, {self._lanes_of(found.axes)}, "
            f"{self._mask_code()})"
        )

    def _lanes_of(self, axes: frozenset[int]) -> str:
        """The shape of what varies over axes, and each lane's index into it."""
        if not axes:
            return "(), ()"
        codes = [self.axis_at(p).iota.code if p in axes else "0" for p in range(self.rank)]
        return f"{self.shape_of(axes)}, ({''.join(f'{code}, ' for code in codes)})"

    def _expr_Var(self, node: Any) -> Val:
        value = super()._expr_Var(node)
        known = self._let.get(node)
        if known is not None and value.code == known[0]:
            spot = Spot(
                self.w.location, str(node.name), known[0], "variable", value.dtype, None, "read"
            )
            number = self._spots.setdefault(spot, len(self._spots))
            self.w.line(
                f"on > 1 and rec.recalled({number}, {self._lanes_of(known[1])}, "
                f"{self._mask_code()})"
            )
        return value

    def on_variable(self, buf: Buf, code: str) -> str:
        """A variable read in the middle of an expression."""
        return f"rec.one({self._spot(buf, 'read')}, None, (), {code})"

    def _store_variable(self, buf: Buf, value: Val) -> None:
        super()._store_variable(buf, value)
        self.w.line(f"on > 1 and rec.assigned({self._spot(buf, 'store')}, {buf.code})")

    def on_spread(self, buf: Buf, spread: Buf) -> None:
        """A local buffer has got one copy a lane."""
        source, target = self._spot(buf, "read"), self._spot(spread, "copy")
        self.w.line(
            f"on > 1 and rec.spread({source}, {self._array(buf)}, {target}, {spread.code}, True)"
        )

    def on_collapse(self, buf: Buf, spread: Buf) -> None:
        """A local buffer is one again."""
        source, target = self._spot(spread, "read"), self._spot(buf, "copy")
        self.w.line(
            f"on > 1 and rec.spread({target}, {self._array(buf)}, {source}, {spread.code}, False)"
        )

    def _reshaped(self, node: Any) -> Buf:
        whole = next((b for k, b in self.buffers.items() if k.data.same_as(node.data)), None)
        found = super()._reshaped(node)
        if whole is not None:
            if found.dtype != whole.dtype:
                raise self.refuse(f"following {found.name} through a view of another dtype")
            self._base[found.code] = self._base.get(whole.code, whole.code)
        return found

    # -- single elements

    def on_read(self, access: Access) -> None:
        """Lanes are about to read."""
        buf = access.buf
        self.w.line(
            f"{self._guard(buf)}rec.read({self._spot(buf, 'read')}, {buf.code}, "
            f"{access.index_code}, {self._mask_code()})"
        )

    def on_scalar(self, access: Access, code: str) -> str:
        """A single element read in the middle of an expression."""
        buf = access.buf
        index = "(" + ", ".join(d.base.code for d in access.dims) + ",)"
        return f"rec.one({self._spot(buf, 'read')}, {buf.code}, {index}, {code})"

    def on_write(self, access: Access, result: Val, value: Any) -> None:
        """A value is about to be stored: noted once it is."""
        del result, value
        self._pending = (access.buf, access.index_code, "store")

    def on_atomic(self, access: Access, result: Val, *, previous: bool) -> None:
        """An atomic is about to be done: noted once it is."""
        del result, previous
        self._pending = (access.buf, access.index_code, "atomic")

    def _store_value(self, buf: Buf, nodes: list[Any], value: Any, ir: Any) -> None:
        super()._store_value(buf, nodes, value, ir)
        self._written()

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
        found = super()._one_atomic(buf, indices, constant, value, kind, previous=previous)
        self._written()
        return found

    def _written(self) -> None:
        assert self._pending is not None
        buf, index, action = self._pending
        self._pending = None
        lanes = self.shape_of(self.all_axes) if self.axes else "()"
        self.w.line(
            f"{self._guard(buf)}rec.wrote({self._spot(buf, action)}, {buf.code}, {index}, "
            f"{self._mask_code()}, {lanes})"
        )

    # -- tile operations

    def _tile(self, action: str, sources: tuple[Region, ...], target: Region, *extra: str) -> None:
        spots = "".join(
            f"({self._spot(r.buf, 'read')}, {r.buf.code}, {r.dims_code}), " for r in sources
        )
        buf = target.buf
        loud = buf.is_global or any(r.buf.is_global for r in sources)
        more = "".join(f", {code}" for code in extra)
        self.w.line(
            f"{'' if loud else 'on > 1 and '}rec.tile({self._spot(buf, action)}, ({spots}), "
            f"{buf.code}, {target.dims_code}{more})"
        )

    def tile_copy(self, node: Any) -> None:
        """`T.copy`."""
        super().tile_copy(node)
        src, dst = self._matched(self.region(node.args[0]), self.region(node.args[1]))
        self._tile("copy", (src,), dst)

    def tile_fill(self, node: Any) -> None:
        """`T.fill` and `T.clear`."""
        super().tile_fill(node)
        self._tile("fill", (), self.region(node.args[0]))

    def reducer_init(self, node: Any) -> None:
        """A reducer starts with a value."""
        super().reducer_init(node)
        self._tile("fill", (), self.region(node.args[0]))

    def tile_gemm(self, node: Any) -> None:
        """`T.gemm`."""
        super().tile_gemm(node)
        a, b, c = (self._matrix(arg) for arg in node.args[:3])
        flags = [self.scalar(node.args[k], "a flag").code for k in (3, 4, 9)]
        self._tile("gemm", (a, b), c, *flags)

    def tile_reduce(self, node: Any) -> None:
        """`T.reduce_*`."""
        super().tile_reduce(node)
        src, dst = (self.region(arg, keep_units=True) for arg in node.args[:2])
        clear = self.scalar(node.args[4], "clear").code
        self._tile("reduce", (src,), dst, str(int(node.args[3].value)), clear)

    def tile_scan(self, node: Any, kind: str) -> None:
        """`T.cumsum` and `T.cummax`."""
        super().tile_scan(node, kind)
        src, dst = (self.region(arg, keep_units=True) for arg in node.args[:2])
        reverse = self.scalar(node.args[3], "reverse").code
        self._tile("scan", (src,), dst, str(int(node.args[2].value)), reverse)

    def tile_transpose(self, node: Any) -> None:
        """`T.transpose`."""
        super().tile_transpose(node)
        src, dst = (self.region(arg, keep_units=True) for arg in node.args[:2])
        self._tile("transpose", (src,), dst)

    def tile_atomic(self, node: Any, kind: str) -> None:
        """Tile atomics."""
        super().tile_atomic(node, kind)
        dst = self.region(node.args[1])
        value = node.args[0]
        named = op_name(value) if type(value).__name__ == "Call" else ""
        sources: tuple[Region, ...] = ()
        if named in ("tl.region", "tl.tileop.region"):
            src, dst = self._matched_atomic(self.region(value), dst)
            sources = (src,)
        self._tile("atomic", sources, dst)
