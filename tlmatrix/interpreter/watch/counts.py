"""Counts of lines, guards and trips of loops, beside what the program does.

Statements that control always reaches together share one slot. A guard has three slots: true,
false and partly. Comparisons that are linear in the iterations are decided by their ends, as for
branches; others by counting the mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tlmatrix.interpreter.analysis.threads import comparisons
from tlmatrix.interpreter.analysis.usage import has_jumps
from tlmatrix.interpreter.coverage import Counted, GuardSite, LoopSite
from tlmatrix.interpreter.emit.access import is_guarded
from tlmatrix.interpreter.emit.expressions import uniform
from tlmatrix.interpreter.emit.sharing import keep_mask
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import walk

from .observer import Observer

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.tiles import TileOperation
    from tlmatrix.interpreter.emit.values import Val
    from tlmatrix.interpreter.program import Options

    from .observer import SiteTable

_COUNTED = (ir.AssertStmt, ir.Bind, ir.BufferStore, ir.Evaluate, ir.For, ir.IfThenElse, ir.While)
_OPERATORS = {ir.Add: "+", ir.Sub: "-", ir.Mul: "*", ir.FloorDiv: "//", ir.FloorMod: "%"}


@dataclass
class _State:
    """Where emission is.

    Attributes:
        region: the slot of the statements that run together with the next one; None to begin
            another.
        opened: whether the next statement is the body of a branch or loop.
        here: the line of the statement at hand.
        conditions: numbers of its conditions by kind, by identity.
        ahead: conditions counted before their place.
        branched: inside of a branch between iterations, whose conditions are its bounds.
    """

    region: int | None = None
    opened: bool = False
    here: ir.Location | None = None
    conditions: dict[str, dict[Any, int]] | None = None
    ahead: set[Any] | None = None
    branched: bool = False


def seen(hit: list[int], slot: int, test: Any) -> Any:
    """Count a scalar condition where it is evaluated, and give it back."""
    hit[slot if test else slot + 1] += 1
    return test


def outcome(slot: int, test: Any, mask: Any = None) -> int:
    """The slot of a condition that holds in every lane, in none, or partly.

    Only the active lanes of `mask` are asked; where there is none, slot 0, which is not read.
    """
    if mask is None:
        held, lanes = int(np.count_nonzero(test)), np.size(test)
    else:
        active = np.broadcast_to(mask, np.broadcast_shapes(np.shape(mask), np.shape(test)))
        held, lanes = int(np.count_nonzero(test & active)), int(np.count_nonzero(active))
    if lanes == 0:
        return 0
    return slot if held == lanes else slot + 2 if held else slot + 1


def clipped(slot: int, *blocks: tuple[tuple[Any, ...], tuple[int, ...]]) -> int:
    """The slot of blocks that are not inside: false if nothing of one is, else partly.

    A block is its dimensions, each an index or (first, extent, step), and the shape it lies in.
    """
    for dims, shape in blocks:
        for dim, n in zip(dims, shape, strict=True):
            first, extent, step = dim if isinstance(dim, tuple) else (dim, 1, 1)
            last = first + (extent - 1) * step
            if last < 0 or first >= n:
                return slot + 1
    return slot + 2


class CoverageCounts(Observer):
    """Counts into `hit` and `trips`; `coverage.Recorder` is its other half."""

    name = "covered"
    argument = "cover"
    reserved = ("hit", "trips")
    functions: ClassVar = {"seen": seen, "outcome": outcome, "clipped": clipped}
    sees_comparisons = True

    def __init__(self, kernel: ir.Kernel, options: Options, sites: SiteTable) -> None:
        super().__init__(kernel, options, sites)
        self._has_jumps = has_jumps(kernel.body)
        self._slots = 1
        self._lines: dict[ir.Location, list[int]] = {}
        self._guards: dict[GuardSite, tuple[int, bool]] = {}
        self._loop_sites: list[LoopSite] = []
        self._constant: list[bool] = []
        self._now = _State(conditions={}, ahead=set())
        self._stack: list[tuple[Any, _State, int | None]] = []
        # The slot that a loop has chosen for the first statement of its body.
        self._promised: int | None = None
        self._written: set[int] = set()
        self._open_loops: list[tuple[int, int, str] | None] = []
        self._late: dict[Any, int] = {}
        self._quiet = False
        self._chosen = False

    def snapshot(self) -> Any:
        """Where emission is."""
        return replace(self._now), list(self._stack), list(self._open_loops)

    def restore(self, saved: Any) -> None:
        """Go back to where emission was."""
        self._now, self._stack, self._open_loops = replace(saved[0]), list(saved[1]), list(saved[2])
        self._promised, self._quiet, self._chosen = None, False, False

    def parameters(self, e: Emitter) -> None:
        """Take the counts."""
        e.launch_prologue.line("hit, trips = cover")

    def plan(self, e: Emitter) -> Counted:
        """What is counted where."""
        del e
        return Counted(
            self._slots,
            tuple(((p.file, p.line), tuple(slots)) for p, slots in self._lines.items()),
            tuple((site, slot, masks) for site, (slot, masks) in self._guards.items()),
            tuple(self._loop_sites),
            tuple(self._constant),
        )

    def _take(self, count: int) -> int:
        slot = self._slots
        self._slots += count
        return slot

    @contextmanager
    def _uncounted(self) -> Iterator[None]:
        """Inside, expressions are evaluated ahead of the statement that counts them."""
        outer, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = outer

    # -- lines and loops

    def before_statement(self, e: Emitter, node: Any) -> None:
        """Write the count of a statement before it."""
        now = self._now
        opens = isinstance(node, (ir.IfThenElse, ir.While)) or (
            isinstance(node, ir.For) and node.kind not in (ir.PARALLEL, ir.VECTORIZED)
        )
        saved, inner = now, replace(now)
        if now.opened:
            inner.region = None
        self._now = inner
        if isinstance(node, _COUNTED):
            inner.here, inner.conditions, inner.ahead = _counted_line(node), {}, set()
            self._count(e)
        self._stack.append((opens, saved, inner.region))
        inner.opened = opens
        if isinstance(node, ir.IfThenElse):
            self._promised = None

    def after_statement(self, e: Emitter, node: Any) -> None:
        """What follows a statement runs with it, unless it may leave a loop."""
        del e
        opens, saved, here = self._stack.pop()
        region = self._now.region
        self._now = replace(saved)
        self._chosen = self._chosen and not isinstance(node, ir.BufferStore)
        if not saved.opened:
            self._now.region = region
            if opens or isinstance(node, ir.Evaluate):
                jumps = self._has_jumps and has_jumps(node)
                self._now.region = None if jumps else here

    def _count(self, e: Emitter) -> None:
        now = self._now
        if now.here is None:
            return
        if now.region is None:
            promised, self._promised = self._promised, None
            now.region = self._take(1) if promised is None else promised
            self._written.add(now.region)
            once = "1" if e.mask is None else f"bool(np.any({e.mask.code}))"
            e.w.line(f"hit[{now.region}] += {once}")
        slots = self._lines.setdefault(now.here, [])
        if now.region not in slots:
            slots.append(now.region)

    def before_loop(self, e: Emitter, node: Any, ranged: str) -> None:
        """Count the trips of a loop by how often the first statement of its body was run."""
        del ranged
        place = _counted_line(node)
        if place is None:
            self._open_loops.append(None)
            return
        slot, before = self._take(1), e.temp("before")
        number = len(self._loop_sites)
        is_for = isinstance(node, ir.For)
        variable = node.loop_var.name if is_for else "while"
        self._loop_sites.append(LoopSite(place.file, place.line, variable))
        self._constant.append(is_for and isinstance(node.extent, ir.IntImm))
        self._open_loops.append((number, slot, before))
        e.w.line(f"{before} = hit[{slot}]")
        self._promised = slot

    def after_loop(self, e: Emitter, node: Any) -> None:
        """A loop has ended."""
        del node
        opened = self._open_loops.pop()
        if opened is None:
            return
        number, slot, before = opened
        self._promised = None
        if slot in self._written:
            e.w.line(f"trips[{number}][hit[{slot}] - {before}] += 1")

    # -- guards

    def guard(self, e: Emitter, kind: str, condition: Any, test: Val) -> Val:
        """A condition has been evaluated, and is about to decide."""
        now = self._now
        if self._quiet or test.lit is not None or now.here is None:
            return test
        assert now.conditions is not None
        if condition in (now.ahead or ()):
            return self._tally_late(e, condition, test)
        numbers = now.conditions.setdefault(kind, {})
        number = numbers.setdefault(condition, len(numbers) + 1)
        now.branched = now.branched or (kind == "if" and not test.scalar)
        self._tally_parts(e, kind, number, condition)
        slot = self._slot_of(kind, number, "", masks=not test.scalar)
        if kind == "select":
            if test.scalar and e.mask is None:
                # It may stand where it is not always evaluated.
                return replace(test, code=f"seen(hit, {slot}, {test.code})", inverse=None)
            return self._tally_mask(e, slot, test)
        return self._tally(e, slot, condition, test)

    def _tally_parts(self, e: Emitter, kind: str, number: int, condition: Any) -> None:
        """Count the comparisons of a condition one by one, where that is safe ahead of it."""
        parts = comparisons(condition)
        if len(parts) == 1 or not all(map(_is_plain, parts)):
            return
        for part in parts:
            with self._uncounted():
                value = e.expr(part)
            if value.lit is None:
                slot = self._slot_of(kind, number, _text(part), masks=not value.scalar)
                self._tally(e, slot, part, value)

    def _slot_of(self, kind: str, number: int, text: str, *, masks: bool) -> int:
        here = self._now.here
        assert here is not None
        site = GuardSite(here.file, here.line, kind, number, text)
        slot, known = self._guards.get(site, (0, False))
        slot = slot or self._take(3)
        self._guards[site] = (slot, masks or known)
        return slot

    def _tally(self, e: Emitter, slot: int, condition: Any, test: Val) -> Val:
        """Write the count of a condition; returns the value to go on with."""
        if test.scalar and e.mask is None:
            if not test.code.isidentifier():
                name = e.temp("test")
                e.w.line(f"{name} = {test.code}")
                test = replace(test, code=name, inverse=None)
            e.w.line(f"hit[{slot} if {test.code} else {slot + 1}] += 1")
            return test
        ends = None
        if e.mask is None:
            with self._uncounted():
                ends = uniform(e, condition)
        if ends is None:
            return self._tally_mask(e, slot, test)
        every, none = ends
        partly = slot + 2
        if not isinstance(condition, ir.Compare):
            # The ends of several do not tell whether some iteration passes them all: its mask will.
            self._late[condition] = slot
            partly = 0
        e.w.line(f"hit[{slot} if {every} else {slot + 1} if {none} else {partly}] += 1")
        return test

    @staticmethod
    def _tally_mask(e: Emitter, slot: int, test: Val) -> Val:
        if not test.scalar and not test.code.isidentifier():
            test = replace(keep_mask(e, test), inverse=None)
        mask = f", {e.mask.code}" if e.mask is not None else ""
        e.w.line(f"hit[outcome({slot}, {test.code}{mask})] += 1")
        return test

    def _tally_late(self, e: Emitter, condition: Any, test: Val) -> Val:
        """Count a condition that its ends have not decided, where its mask is at hand."""
        slot = self._late.pop(condition, None)
        return test if slot is None else self._tally_mask(e, slot, test)

    def mask(self, e: Emitter, condition: Any, test: Val) -> Val:
        """The condition of a branch is about to become a mask."""
        return self._tally_late(e, condition, test)

    def choice(self, e: Emitter, condition: Any) -> None:
        """A choice of a whole stored value is decided before it is evaluated."""
        now = self._now
        if e.mask is not None or not e.axes or now.here is None or self._quiet:
            return
        with self._uncounted():
            test = e.expr(condition) if uniform(e, condition) is not None else None
        if test is None or test.scalar:
            return
        assert now.conditions is not None
        assert now.ahead is not None
        if test.lit is None:
            self._tally_parts(e, "select", 1, condition)
            slot = self._slot_of("select", 1, "", masks=True)
            now.conditions.setdefault("select", {})[condition] = 1
            self._tally(e, slot, condition, test)
        now.ahead.add(condition)
        self._chosen = True

    # -- edges

    def _count_edge(self, e: Emitter, regions: Sequence[Any]) -> None:
        """Whether a tile or block was inside of global memory, outside, or clipped."""
        cut = [r for r in regions if r.conditions and r.buf.is_global]
        if not cut or self._quiet or self._now.here is None:
            return
        names = ", ".join(dict.fromkeys(r.buf.name for r in cut))
        slot = self._slot_of("edge", 1, names, masks=True)
        inside = " and ".join(dict.fromkeys(c for r in cut for c in r.conditions))
        blocks = ", ".join(f"({r.dims_code}, {r.buf.code}.shape)" for r in cut)
        e.w.line(f"hit[{slot} if {inside} else clipped({slot}, {blocks})] += 1")

    def _count_block(self, e: Emitter, access: Any) -> None:
        plain = e.mask is None and not self._now.branched
        if access.block and plain and is_guarded(e, access.buf):
            self._count_edge(e, [access])

    def access(self, e: Emitter, access: Any, action: str) -> None:
        """Iterations are about to access memory."""
        if access.axes and not (action == "read" and self._chosen):
            self._count_block(e, access)

    def before_tile(self, e: Emitter, op: TileOperation) -> None:
        """A tile operation is about to access its operands."""
        self._count_edge(e, op.predicated)


def _counted_line(node: Any) -> ir.Location | None:
    """The line that a statement counts for; None for what is of no line of the user's."""
    if isinstance(node, ir.Evaluate) and not isinstance(node.value, ir.Call):
        return None
    if isinstance(node, ir.For) and node.kind == ir.THREAD_BINDING:
        # `T.Kernel` is run once a block: its line is that of what a block begins with.
        return None
    location: ir.Location | None = node.location
    return location


def _is_plain(node: Any) -> bool:
    """Whether an expression reads no memory but variables: then it has a value everywhere."""
    for child in walk(node):
        if isinstance(child, ir.BufferLoad):
            if child.buffer.scope != "local.var":
                return False
        elif isinstance(child, (ir.FloorDiv, ir.FloorMod)):
            if not isinstance(child.b, ir.IntImm):
                return False
        elif isinstance(child, (ir.Call, ir.Select, ir.Div, ir.Mod)):
            return False
    return True


def _text(node: Any) -> str:
    """A plain comparison in short, the same for every variant of a kernel: # for numbers."""
    if isinstance(node, (ir.IntImm, ir.FloatImm)):
        return "#"
    if isinstance(node, ir.Var):
        return node.name
    if isinstance(node, ir.Compare):
        return f"{_operand(node.a)} {node.symbol} {_operand(node.b)}"
    if type(node) in _OPERATORS:
        return f"{_operand(node.a)} {_OPERATORS[type(node)]} {_operand(node.b)}"
    if isinstance(node, (ir.Min, ir.Max)):
        return f"{type(node).__name__.lower()}({_text(node.a)}, {_text(node.b)})"
    if isinstance(node, ir.Cast):
        return _text(node.value)
    return node.buffer.name if isinstance(node, ir.BufferLoad) else type(node).__name__


def _operand(node: Any) -> str:
    text = _text(node)
    compound = isinstance(node, (ir.Sub, ir.Mul, ir.FloorDiv, ir.FloorMod))
    return f"({text})" if compound else text
