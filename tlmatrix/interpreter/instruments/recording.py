"""Records every access, for explanations.

A recorder (`runtime.tracks`) notes which block runs and which iteration of which loop, which
elements a statement reads and which it writes. It answers when a block starts whether to skip it
(0), to note what it writes to global memory (1), or everything (2); so the variant serves to find
the writers of an element as well as to follow it backwards.

Followed are data: what is stored, and what it was computed from. Reads of conditions, loop bounds
and addresses are no data; integers read on the way to a float are noted as addresses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.loops import is_grid
from tlmatrix.interpreter.emit.instrument import Instrument
from tlmatrix.interpreter.emit.values import is_float
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import walk
from tlmatrix.interpreter.program import AccessSite, Loop, Record

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.access import Access, Buf
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.tiles import TileOperation
    from tlmatrix.interpreter.emit.values import Val

_STATEMENTS = (ir.BufferStore, ir.Evaluate, ir.Bind)


class RecordInstrument(Instrument):
    """Writes calls of a recorder."""

    argument = "rec"
    reserved = ("rec", "on")
    sees_every_read = True
    sees_writes = True

    def __init__(self) -> None:
        self._sites: dict[AccessSite, int] = {}
        self._loops: list[Loop] = []
        self._loop_numbers: list[int] = []
        self._grids: list[tuple[str, ...]] = []
        self._base: dict[str, str] = {}
        self._bound: dict[Any, tuple[str, frozenset[int]]] = {}
        self._pending: tuple[Buf, str, str] | None = None

    def record(self, e: Emitter) -> Record:
        """What the program's recorder needs to know."""
        buffers = [(node, buf) for node, buf in e.buffers.items() if buf.is_global]
        usage = {buf.name: e.facts.usage.get(node.data, frozenset()) for node, buf in buffers}
        memories = {buf.name: buf.code for _, buf in buffers}
        return Record(tuple(self._sites), tuple(self._loops), tuple(self._grids), usage, memories)

    def _number(self, site: AccessSite) -> int:
        return self._sites.setdefault(site, len(self._sites))

    def _site(self, e: Emitter, buf: Buf, action: str) -> int:
        return self._number(
            AccessSite(
                e.w.location,
                buf.name,
                self._base.get(buf.code, buf.code),
                "variable" if buf.variable else buf.scope,
                buf.dtype,
                buf.codec,
                action,
            )
        )

    def _variable(self, e: Emitter, name: str, value: Val, memory: str, action: str) -> int:
        return self._number(
            AccessSite(e.w.location, name, memory, "variable", value.dtype, None, action)
        )

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
            site = AccessSite(e.w.location, "", "", "", "", None, "statement")
            e.w.line(f"rec.begin({self._number(site)})")

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
        e.w.line(
            f"on > 1 and rec.named({number}, {value.code}, {_elements(e, value.axes)}, "
            f"{e.mask_code})"
        )

    def recalled(self, e: Emitter, var: Any, value: Val) -> None:
        """A bound variable is used."""
        known = self._bound.get(var)
        if known is not None and value.code == known[0]:
            number = self._variable(e, var.name, value, known[0], "read")
            e.w.line(f"on > 1 and rec.recalled({number}, {_elements(e, known[1])}, {e.mask_code})")

    def read_variable(self, e: Emitter, buf: Buf, code: str) -> str:
        """A variable is read in the middle of an expression."""
        return f"rec.one({self._site(e, buf, 'read')}, None, (), {code})"

    def after_assignment(self, e: Emitter, buf: Buf) -> None:
        """A variable was assigned."""
        e.w.line(f"on > 1 and rec.assigned({self._site(e, buf, 'store')}, {buf.code})")

    def private_copies(self, e: Emitter, buf: Buf, copies: Buf) -> None:
        """A local buffer was given one copy for each iteration."""
        source, target = self._site(e, buf, "read"), self._site(e, copies, "copy")
        array = "None" if buf.variable else buf.code
        e.w.line(f"on > 1 and rec.spread({source}, {array}, {target}, {copies.code}, True)")

    def merged_copies(self, e: Emitter, buf: Buf, copies: Buf) -> None:
        """The copies of a local buffer became one again."""
        source, target = self._site(e, copies, "read"), self._site(e, buf, "copy")
        array = "None" if buf.variable else buf.code
        e.w.line(f"on > 1 and rec.spread({target}, {array}, {source}, {copies.code}, False)")

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
            f"on > 1 and rec.read({self._site(e, buf, 'read')}, {buf.code}, "
            f"{access.index_code}, {e.mask_code})"
        )

    def read_scalar(self, e: Emitter, access: Access, code: str) -> str:
        """A single element is read in the middle of an expression."""
        buf = access.buf
        return f"rec.one({self._site(e, buf, 'read')}, {buf.code}, ({access.element},), {code})"

    def before_write(self, e: Emitter, access: Access, result: Val, value: Any) -> None:
        """A value is about to be stored: noted once it is."""
        del e, result, value
        self._pending = (access.buf, access.index_code, "store")

    def before_atomic(self, e: Emitter, access: Access, result: Val, *, previous: bool) -> None:
        """An atomic is about to be done: noted once it is."""
        del e, result, previous
        self._pending = (access.buf, access.index_code, "atomic")

    def after_write(self, e: Emitter) -> None:
        """The store or atomic was written."""
        assert self._pending is not None
        buf, index, action = self._pending
        self._pending = None
        shape = e.shape_of(e.all_axes) if e.axes else "()"
        e.w.line(
            f"{self._guard(buf)}rec.wrote({self._site(e, buf, action)}, {buf.code}, {index}, "
            f"{e.mask_code}, {shape})"
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
        sites = "".join(
            f"({self._site(e, r.buf, 'read')}, {r.buf.code}, {r.dims_code}), "
            for r in found.sources
        )
        buf = found.target.buf
        more = "".join(f", {code}" for code in found.arguments)
        e.w.line(
            f"{self._guard(buf)}rec.tile({self._site(e, buf, found.rule)}, "
            f"({sites}), {buf.code}, {found.target.dims_code}{more})"
        )


def _elements(e: Emitter, axes: frozenset[int]) -> str:
    """The shape of a value that varies over axes, and the index of each iteration into it."""
    if not axes:
        return "(), ()"
    codes = [e.axis_at(p).iota.code if p in axes else "0" for p in range(e.rank)]
    return f"{e.shape_of(axes)}, ({''.join(f'{code}, ' for code in codes)})"
