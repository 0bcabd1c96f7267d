"""The covered variant of a program: counts of lines, guards and trips beside what it does.

Statements that control always reaches together share one slot. A guard has three slots: true,
false and partly. Comparisons that are linear in the lanes are judged by their ends, as the
generator does for branches; others by counting the mask.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.coverage import GuardSite, LoopSite

from .expressions import op_name
from .statements import JUMPS, StatementMixin
from .stores import root_choice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .bounds import Access
    from .context import Buf
    from .source import Location
    from .tileops import Region
    from .values import Val

__all__ = ["Counted", "CoverageMixin"]

_STATEMENTS = frozenset(
    {"AssertStmt", "Bind", "BufferStore", "Evaluate", "For", "IfThenElse", "While"}
)
_COMPARISONS = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}
_OPERATORS = {"Add": "+", "Sub": "-", "Mul": "*", "FloorDiv": "//", "FloorMod": "%"} | _COMPARISONS
_PARALLEL = (1, 2)
_GRID = 4


@dataclass(frozen=True)
class Counted:
    """What the slots of a covered program stand for.

    Attributes:
        slots: how many there are; slot 0 is nothing's.
        lines: each line that can run, and the slots whose sum says how often.
        guards: each guard with the first of its three slots, and whether it is a mask.
        loops: the loops, by number.
        constant: of each loop whether its trips are fixed in this program.
    """

    slots: int
    lines: tuple[tuple[tuple[str, int], tuple[int, ...]], ...]
    guards: tuple[tuple[GuardSite, int, bool], ...]
    loops: tuple[LoopSite, ...]
    constant: tuple[bool, ...]


class CoverageMixin(StatementMixin):
    """Counts; before every other generator, so that it sees statements first."""

    def start_counting(self, func: Any) -> None:
        """Set up, before anything is generated."""
        self.w.reserve("cover", "hit", "trips")
        self._has_jumps = _jumps(func.body)
        self._slots = 1
        self._lines: dict[Location, list[int]] = {}
        self._guards: dict[GuardSite, tuple[int, bool]] = {}
        self._loop_sites: list[LoopSite] = []
        self._constant: list[bool] = []
        # The slot of the statements that run together with the next one; None to begin another,
        # with a slot that its loop has chosen, if any.
        self._region: int | None = None
        self._promised: int | None = None
        self._opened = False
        self._written: set[int] = set()
        # The statement at hand, its conditions by identity, and those counted before their place.
        self._here: Location | None = None
        self._conditions: dict[str, dict[int, int]] = {}
        self._ahead: set[int] = set()
        self._late: dict[int, int] = {}
        self._quiet = False
        # Inside of an `if` and of a choice between lanes, whose own business bounds are.
        self._branched = self._chosen = False

    def counted(self) -> Counted:
        """What was counted where."""
        # A loop whose body has no line of the user's has no trips to count.
        return Counted(
            self._slots,
            tuple(((p.file, p.line), tuple(slots)) for p, slots in self._lines.items()),
            tuple((site, slot, lanes) for site, (slot, lanes) in self._guards.items()),
            tuple(self._loop_sites),
            tuple(self._constant),
        )

    def _take(self, count: int) -> int:
        slot = self._slots
        self._slots += count
        return slot

    @contextmanager
    def _uncounted(self) -> Iterator[None]:
        """Evaluate expressions ahead of the statement that counts them."""
        outer, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = outer

    # -- lines and loops

    def stmt(self, node: Any) -> None:
        """Write one statement, and before it its count."""
        kind = type(node).__name__
        opens = kind in ("IfThenElse", "While") or (
            kind == "For" and int(node.kind) not in _PARALLEL
        )
        region, opened = self._region, self._opened
        saved = self._here, self._conditions, self._ahead, self._branched
        if opened:
            self._region = None
        if kind in _STATEMENTS:
            self._here, self._conditions, self._ahead = self._span(node), {}, set()
            self._count()
        here = self._region
        self._opened = opens
        try:
            super().stmt(node)
        finally:
            # Also where a role is begun again.
            self._opened = opened
            self._here, self._conditions, self._ahead, self._branched = saved
        if opens or kind == "Evaluate":
            self._region = None if self._has_jumps and _jumps(node) else here
        if opened:
            self._region = region

    def _span(self, node: Any) -> Location | None:
        kind = type(node).__name__
        if kind == "Evaluate" and type(node.value).__name__ != "Call":
            return None
        if kind == "For" and int(node.kind) == _GRID:
            # `T.Kernel` is run once a block: its line is that of what a block begins with.
            return None
        found: Location | None = self.span_of(node)
        return found

    def _count(self) -> None:
        place = self._here
        if place is None:
            return
        if self._region is None:
            promised, self._promised = self._promised, None
            self._region = self._take(1) if promised is None else promised
            self._written.add(self._region)
            once = "1" if self.mask is None else f"bool(np.any({self.mask.code}))"
            self.w.line(f"hit[{self._region}] += {once}")
        slots = self._lines.setdefault(place, [])
        if self._region not in slots:
            slots.append(self._region)

    def _serial(self, node: Any) -> None:
        if int(node.kind) == _GRID:
            super()._serial(node)
            return
        with self._trips(node, str(node.loop_var.name)) as number:
            if number is not None:
                self._constant[number] = type(node.extent).__name__ == "IntImm"
            super()._serial(node)

    def _stmt_While(self, node: Any) -> None:
        with self._trips(node, "while"):
            super()._stmt_While(node)

    @contextmanager
    def _trips(self, node: Any, variable: str) -> Iterator[int | None]:
        """Count the trips of a loop by how often the first statement of its body was run."""
        place = self._span(node)
        if place is None:
            yield None
            return
        slot, before = self._take(1), self.temp("before")
        self._promised = slot
        number = len(self._loop_sites)
        self._loop_sites.append(LoopSite(place.file, place.line, variable))
        self._constant.append(False)
        self.w.line(f"{before} = hit[{slot}]")
        yield number
        self._promised = None
        if slot in self._written:
            self.w.line(f"trips[{number}][hit[{slot}] - {before}] += 1")

    # -- guards

    def _stmt_IfThenElse(self, node: Any) -> None:
        self._promised = None
        super()._stmt_IfThenElse(node)

    def decided(self, symbol: str, a: Val, b: Val) -> bool | None:
        """Nothing: a comparison that is true in this program may differ in another's tiles."""
        del symbol, a, b
        return None

    def on_guard(self, kind: str, condition: Any, test: Val) -> Val:
        """A condition has been evaluated, and is about to decide."""
        if self._quiet or test.lit is not None or self._here is None:
            return test
        if hash(condition) in self._ahead:
            return self._tally_late(condition, test)
        numbers = self._conditions.setdefault(kind, {})
        number = numbers.setdefault(hash(condition), len(numbers) + 1)
        self._branched = self._branched or (kind == "if" and not test.scalar)
        self._tally_parts(kind, number, condition)
        slot = self._slot_of(kind, number, "", lanes=not test.scalar)
        if kind == "select":
            if test.scalar and self.mask is None:
                # It may stand where it is not always evaluated.
                return replace(test, code=f"seen(hit, {slot}, {test.code})", inverse=None)
            return self._tally_mask(slot, test)
        return self._tally(slot, condition, test)

    def _tally_parts(self, kind: str, number: int, condition: Any) -> None:
        """Count the comparisons of a condition one by one, where that is safe ahead of it."""
        parts = _parts(condition)
        if len(parts) == 1 or not all(map(_is_plain, parts)):
            return
        for part in parts:
            with self._uncounted():
                value = self.expr(part)
            if value.lit is None:
                slot = self._slot_of(kind, number, _text(part), lanes=not value.scalar)
                self._tally(slot, part, value)

    def _slot_of(self, kind: str, number: int, text: str, *, lanes: bool) -> int:
        assert self._here is not None
        site = GuardSite(self._here.file, self._here.line, kind, number, text)
        slot, masks = self._guards.get(site, (0, False))
        slot = slot or self._take(3)
        self._guards[site] = (slot, lanes or masks)
        return slot

    def _tally(self, slot: int, condition: Any, test: Val) -> Val:
        """Write the count of a condition; gives the value to go on with."""
        if test.scalar and self.mask is None:
            if not test.code.isidentifier():
                name = self.temp("test")
                self.w.line(f"{name} = {test.code}")
                test = replace(test, code=name, inverse=None)
            self.w.line(f"hit[{slot} if {test.code} else {slot + 1}] += 1")
            return test
        ends = None
        if self.mask is None:
            with self._uncounted():
                ends = self.uniform(condition)
        if ends is None:
            return self._tally_mask(slot, test)
        every, none = ends
        partly = slot + 2
        if type(condition).__name__ not in _COMPARISONS:
            # The ends of several do not tell whether some lane passes them all: its mask will.
            self._late[hash(condition)] = slot
            partly = 0
        self.w.line(f"hit[{slot} if {every} else {slot + 1} if {none} else {partly}] += 1")
        return test

    def _tally_mask(self, slot: int, test: Val) -> Val:
        if not test.scalar and not test.code.isidentifier():
            test = replace(self.keep_mask(test), inverse=None)
        mask = f", {self.mask.code}" if self.mask is not None else ""
        self.w.line(f"hit[outcome({slot}, {test.code}{mask})] += 1")
        return test

    def _tally_late(self, condition: Any, test: Val) -> Val:
        """Count a condition that its ends have not decided, where its mask is at hand."""
        slot = self._late.pop(hash(condition), None)
        return test if slot is None else self._tally_mask(slot, test)

    def _masked(self, node: Any, test: Val, outer: Val | None) -> None:
        super()._masked(node, self._tally_late(node.condition, test), outer)

    def _store(self, buf: Buf, nodes: list[Any], value: Any, ir: Any = None) -> None:
        """A choice of a whole stored value is decided before it is evaluated."""
        choice = root_choice(value)
        if choice is not None and self.mask is None and self.axes and not buf.variable:
            with self._uncounted():
                decided = self.uniform(choice[0]) is not None
                test = self.expr(choice[0]) if decided else None
            if test is not None and not test.scalar:
                self._count_choice(choice[0], test)
                self._ahead.add(hash(choice[0]))
                self._chosen = True
        super()._store(buf, nodes, value, ir)
        self._chosen = False

    def _count_choice(self, condition: Any, test: Val) -> None:
        if self._here is not None and not self._quiet and test.lit is None:
            self._tally_parts("select", 1, condition)
            slot = self._slot_of("select", 1, "", lanes=True)
            self._conditions.setdefault("select", {})[hash(condition)] = 1
            self._tally(slot, condition, test)

    # -- edges

    def _count_edge(self, regions: list[Region] | list[Access]) -> None:
        """Whether a tile or block was inside of global memory, outside, or clipped."""
        cut = [r for r in regions if r.conditions and r.buf.is_global]
        if not cut or self._quiet or self._here is None:
            return
        slot = self._slot_of(
            "edge", 1, ", ".join(dict.fromkeys(r.buf.name for r in cut)), lanes=True
        )
        inside = " and ".join(dict.fromkeys(c for r in cut for c in r.conditions))
        blocks = ", ".join(f"({r.dims_code}, {r.buf.code}.shape)" for r in cut)
        self.w.line(f"hit[{slot} if {inside} else clipped({slot}, {blocks})] += 1")

    def _count_block(self, access: Access) -> None:
        if access.block and self.guarded(access.buf) and self.mask is None and not self._branched:
            self._count_edge([access])

    def on_read(self, access: Access) -> None:
        """Lanes are about to read."""
        if not self._chosen:
            self._count_block(access)
        super().on_read(access)

    def on_write(self, access: Access, result: Val, value: Any) -> None:
        """A value is about to be stored."""
        if access.axes:
            self._count_block(access)
        super().on_write(access, result, value)

    def on_atomic(self, access: Access, result: Val, *, previous: bool) -> None:
        """An atomic is about to be done."""
        if access.axes:
            self._count_block(access)
        super().on_atomic(access, result, previous=previous)

    def tile_copy(self, node: Any) -> None:
        """`T.copy`."""
        with self._uncounted():
            sides = self._matched(self.region(node.args[0]), self.region(node.args[1]))
        self._count_edge([*sides])
        super().tile_copy(node)

    def tile_fill(self, node: Any) -> None:
        """`T.fill` and `T.clear`."""
        with self._uncounted():
            region = self.region(node.args[0])
        if self.guarded(region.buf):
            self._count_edge([region])
        super().tile_fill(node)

    def tile_atomic(self, node: Any, kind: str) -> None:
        """Tile atomics."""
        with self._uncounted():
            dst, value = self.region(node.args[1]), node.args[0]
            if type(value).__name__ == "Call" and op_name(value) in (
                "tl.region",
                "tl.tileop.region",
            ):
                _, dst = self._matched_atomic(self.region(value), dst)
        self._count_edge([dst])
        super().tile_atomic(node, kind)


def _jumps(node: Any) -> bool:
    """Whether a statement may leave a loop, so that what follows need not run with it."""
    from tilelang import tvm

    found = False

    def visit(child: Any) -> None:
        nonlocal found
        if isinstance(child, tvm.tirx.Call):
            found = found or op_name(child) in JUMPS

    tvm.tirx.stmt_functor.post_order_visit(node, visit)
    return found


def _parts(condition: Any) -> list[Any]:
    """The comparisons that a condition is made of."""
    kind = type(condition).__name__
    if kind in ("And", "Or"):
        return [*_parts(condition.a), *_parts(condition.b)]
    return _parts(condition.a) if kind == "Not" else [condition]


def _is_plain(node: Any) -> bool:
    """Whether an expression reads no memory but variables: then it has a value everywhere."""
    from tilelang import tvm

    plain = True

    def visit(child: Any) -> None:
        nonlocal plain
        if isinstance(child, tvm.tirx.BufferLoad):
            plain = plain and str(child.buffer.scope()) == "local.var"
        elif isinstance(child, (tvm.tirx.FloorDiv, tvm.tirx.FloorMod)):
            plain = plain and isinstance(child.b, tvm.tirx.IntImm)
        elif isinstance(child, (tvm.tirx.Call, tvm.tirx.Select, tvm.tirx.Div, tvm.tirx.Mod)):
            plain = False

    tvm.tirx.stmt_functor.post_order_visit(node, visit)
    return plain


def _text(node: Any) -> str:
    """A plain comparison in short, the same for every variant of a kernel: # for numbers."""
    kind = type(node).__name__
    if kind in ("IntImm", "FloatImm"):
        return "#"
    if kind in ("Var", "SizeVar"):
        return str(node.name)
    if kind in _OPERATORS:
        return f"{_operand(node.a)} {_OPERATORS[kind]} {_operand(node.b)}"
    if kind in ("Min", "Max"):
        return f"{kind.lower()}({_text(node.a)}, {_text(node.b)})"
    if kind == "Cast":
        return _text(node.value)
    return str(node.buffer.name) if kind == "BufferLoad" else kind


def _operand(node: Any) -> str:
    text = _text(node)
    return f"({text})" if type(node).__name__ in ("Sub", "Mul", "FloorDiv", "FloorMod") else text
