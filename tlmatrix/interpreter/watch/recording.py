"""Records every access, for explanations.

A recorder (`recorders`) notes which block runs and which iteration of which loop, which
elements a statement reads and which it writes. It answers when a block starts whether to skip it
(0), to note what it writes to global memory (1), or everything (2); so the variant serves to find
the writers of an element as well as to follow it backwards.

Followed are data: what is stored, and what it was computed from. Reads of conditions, loop bounds
and addresses are no data; integers read on the way to a float are noted as addresses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tlmatrix.interpreter.analysis.usage import is_grid
from tlmatrix.interpreter.emit.values import is_float
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import walk
from tlmatrix.interpreter.program import Loop, Record, Site
from tlmatrix.interpreter.runtime.elements import IndexArrays, Tile

from .observer import Observer, global_usage

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.access import Access, Buf
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.tiles import BufferRegion, TileOperation
    from tlmatrix.interpreter.emit.values import Val
    from tlmatrix.interpreter.program import Options

    from .observer import SiteTable

_STATEMENTS = (ir.BufferStore, ir.Evaluate, ir.Bind)


class Recording(Observer):
    """Writes calls of a recorder."""

    name = "recorded"
    argument = "rec"
    reserved = ("on",)
    functions: ClassVar = {"IndexArrays": IndexArrays, "Tile": Tile}
    sees_every_read = True
    sees_writes = True

    def __init__(self, kernel: ir.Kernel, options: Options, sites: SiteTable) -> None:
        super().__init__(kernel, options, sites)
        self._loops: list[Loop] = []
        self._loop_numbers: list[int] = []
        self._grids: list[tuple[str, ...]] = []
        self._base: dict[str, str] = {}
        self._bound: dict[Any, tuple[str, frozenset[int]]] = {}
        self._pending: tuple[Buf, str, str] | None = None

    def plan(self, e: Emitter) -> Record:
        """What the program's recorder needs to know."""
        memories = {buf.name: buf.code for buf in e.buffers.values() if buf.is_global}
        loops, grids = tuple(self._loops), tuple(self._grids)
        return Record(self.sites.sites, loops, grids, global_usage(e), memories)

    def _site(self, e: Emitter, buf: Buf, action: str) -> int:
        scope = "variable" if buf.variable else buf.scope
        memory = self._base.get(buf.code, buf.code)
        return self.sites.number(
            Site(e.w.location, buf.name, action, scope, memory, buf.dtype, buf.codec)
        )

    def _variable(self, e: Emitter, name: str, value: Val, memory: str, action: str) -> int:
        site = Site(e.w.location, name, action, "variable", memory, value.dtype)
        return self.sites.number(site)

    @staticmethod
    def _guard(buf: Buf) -> str:
        """Writes that only this block sees are noted only where they are asked for."""
        return "" if buf.is_global else "on > 1 and "

    # -- the grid, statements, loops

    def parameters(self, e: Emitter) -> None:
        """A kernel that has no grid is one block."""
        if not any(is_grid(node) for node in walk(e.kernel.body)):
            self._grids.append(())
            e.prologue.line("on = rec.enter(0, ())")

    def grid(self, e: Emitter) -> None:
        """A grid is numbered."""
        del e
        self._grids.append(())

    def block(self, e: Emitter, indices: list[Any]) -> None:
        """The recorder says what of the block to note."""
        codes = [e.vars[var].code for var in indices]
        self._grids[-1] = tuple(var.name for var in indices)
        e.w.line(f"on = rec.enter({len(self._grids) - 1}, ({', '.join(codes)},))")
        with e.w.block("if not on"):
            e.w.line("continue")

    def before_statement(self, e: Emitter, node: Any) -> None:
        """A statement starts."""
        if isinstance(node, _STATEMENTS):
            if node.location is not None:
                e.w.location = node.location
            site = self.sites.number(Site(e.w.location, "", "statement"))
            e.w.line(f"rec.begin({site})")

    def before_loop(self, e: Emitter, node: Any, ranged: str) -> None:
        """A serial loop is about to start."""
        number = len(self._loops)
        name = node.loop_var.name if isinstance(node, ir.For) else ""
        self._loops.append(Loop(name, e.w.location))
        self._loop_numbers.append(number)
        e.w.line(f"rec.loop({number}, range({ranged}))" if ranged else f"rec.loop({number})")

    def iteration(self, e: Emitter, node: Any, name: str) -> None:
        """An iteration of a serial loop starts."""
        del node
        e.w.line(f"rec.iteration({name})")

    def after_loop(self, e: Emitter, node: Any) -> None:
        """A serial loop has ended."""
        del node
        e.w.line(f"rec.leave({self._loop_numbers.pop()})")

    # -- bindings and variables

    def bound(self, e: Emitter, var: Any, value: Val) -> None:
        """A variable was bound to a float that has a name."""
        if not is_float(value.dtype) or value.lit is not None or not value.code.isidentifier():
            return
        self._bound[var] = (value.code, value.axes)
        number = self._variable(e, var.name, value, value.code, "let")
        e.w.line(f"on > 1 and rec.wrote({number}, {value.code}, {_elements(e, value.axes)})")

    def recalled(self, e: Emitter, var: Any, value: Val) -> None:
        """A bound variable is used."""
        known = self._bound.get(var)
        if known is not None and value.code == known[0]:
            number = self._variable(e, var.name, value, known[0], "read")
            e.w.line(f"on > 1 and rec.read({number}, {_elements(e, known[1])})")

    def read_variable(self, e: Emitter, buf: Buf, code: str) -> str:
        """A variable is read in the middle of an expression."""
        return f"rec.one({self._site(e, buf, 'read')}, (), (), {code})"

    def after_assignment(self, e: Emitter, buf: Buf) -> None:
        """A variable was assigned."""
        site = self._site(e, buf, "store")
        e.w.line(f"on > 1 and rec.wrote({site}, {buf.code}, IndexArrays((), (), None))")

    def private_copies(self, e: Emitter, buf: Buf, copies: Buf) -> None:
        """A local buffer was given one copy for each iteration."""
        source, target = self._site(e, buf, "read"), self._site(e, copies, "copy")
        one, many = _whole(buf), f"Tile.whole({copies.code}.shape)"
        reads = f"(({source}, None, {one}),)"
        e.w.line(f"on > 1 and rec.wrote({target}, {copies.code}, {many}, {reads}, 'spread')")

    def merged_copies(self, e: Emitter, buf: Buf, copies: Buf) -> None:
        """The copies of a local buffer became one again."""
        source, target = self._site(e, copies, "read"), self._site(e, buf, "copy")
        one, many = _whole(buf), f"Tile.whole({copies.code}.shape)"
        value = f"{copies.code}.reshape(-1)[0]" if buf.variable else buf.code
        reads = f"(({source}, None, {many}),)"
        e.w.line(f"on > 1 and rec.wrote({target}, {value}, {one}, {reads}, 'collapse')")

    def viewed(self, e: Emitter, whole: Buf, view: Buf) -> None:
        """A view is the memory of its buffer."""
        if view.dtype != whole.dtype:
            raise e.refuse(f"following {view.name} through a view of another dtype")
        self._base[view.code] = self._base.get(whole.code, whole.code)

    # -- single elements

    def read(self, e: Emitter, access: Access) -> None:
        """Iterations are about to read."""
        buf = access.buf
        e.w.line(
            f"on > 1 and rec.read({self._site(e, buf, 'read')}, "
            f"IndexArrays({buf.code}.shape, {access.index_code}, {e.mask_code}))"
        )

    def read_scalar(self, e: Emitter, access: Access, code: str) -> str:
        """A single element is read in the middle of an expression."""
        buf = access.buf
        site = self._site(e, buf, "read")
        return f"rec.one({site}, {buf.code}.shape, ({access.element},), {code})"

    def access(self, e: Emitter, access: Access, action: str) -> None:
        """A value is about to be stored, or an atomic to be done: noted once it is."""
        del e
        self._pending = access.buf, access.index_code, "store" if action == "write" else action

    def after_write(self, e: Emitter) -> None:
        """The store or atomic was written."""
        assert self._pending is not None
        buf, index, action = self._pending
        self._pending = None
        shape = e.shape_of(e.all_axes) if e.axes else "()"
        e.w.line(
            f"{self._guard(buf)}rec.wrote({self._site(e, buf, action)}, {buf.code}, "
            f"IndexArrays({buf.code}.shape, {index}, {e.mask_code}, {shape}))"
        )

    # -- tile operations

    def after_tile(self, e: Emitter, op: TileOperation) -> None:
        """A tile operation was written.

        Raises:
            Unsupported: no rule says how what it writes depends on what it reads.
        """
        found = op.dependence
        if found is None:
            raise e.refuse(f"following an element through T.{op.name}")
        sources = "".join(
            f"({self._site(e, r.buf, 'read')}, {r.buf.code}, {_tile(r)}), " for r in found.sources
        )
        buf = found.target.buf
        more = "".join(f", {code}" for code in found.arguments)
        e.w.line(
            f"{self._guard(buf)}rec.wrote({self._site(e, buf, found.rule)}, "
            f"{buf.code}, {_tile(found.target)}, ({sources}), {found.rule!r}{more})"
        )


def _tile(region: BufferRegion) -> str:
    """Code of a region."""
    return f"Tile({region.buf.code}.shape, {region.dims_code})"


def _whole(buf: Buf) -> str:
    """Code of all of a buffer, or of a variable."""
    return f"Tile.whole({'()' if buf.variable else f'{buf.code}.shape'})"


def _elements(e: Emitter, axes: frozenset[int]) -> str:
    """Code of a value that varies over axes: the element of each iteration."""
    codes = [e.axis_at(p).iota.code if p in axes else "0" for p in range(e.rank)] if axes else []
    shape = e.shape_of(axes) if axes else "()"
    return f"IndexArrays({shape}, ({''.join(f'{code}, ' for code in codes)}), {e.mask_code})"
