"""The threads of a block as warp roles: which threads run what, and the functions of a block."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.shared import SharedAccesses, fenced_statements, shared_accesses
from tlmatrix.interpreter.analysis.threads import ThreadIndex
from tlmatrix.interpreter.emit.access import Buf
from tlmatrix.interpreter.emit.loops import bind_grid_index, check_grid, grid_loops
from tlmatrix.interpreter.emit.memory import buffer
from tlmatrix.interpreter.emit.statements import allocate_buffer, private_buffer
from tlmatrix.interpreter.emit.tiles import perform
from tlmatrix.interpreter.emit.values import literal
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.rewrites.threads import launched_threads
from tlmatrix.interpreter.ir.walk import walk

from .axis import (
    DEFAULT_THREADS,
    NeedsThreadAxis,
    ThreadAxis,
    cluster_of,
    has_cluster,
    has_pairs,
    rank_in_cluster,
)

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.source import Writer
    from tlmatrix.interpreter.emit.tiles import BufferRegion, TileOperation

    from .statements import Jumps


LOCAL = frozenset({"local", "local.var"})
_THREAD_SCOPES = ("local.fragment", "local.reducer")


class Threads(ThreadAxis):
    """The roles of a block, and the role that is being emitted.

    Attributes:
        group: the roles that execute the statement at hand; `doing` those of which one does it.
        tail: shared memory accessed before the first and after the last barrier of a sequence.
        case_groups: branches of the condition at hand, and the roles that take them.
        jumps: the loops that threads leave one by one.
        tracked: whether accesses are noted for race detection.
        arrivals: for reports, by mbarrier the roles that arrive at it, and where.
    """

    several = True

    def __init__(self, asynchronous: Collection[str]) -> None:
        super().__init__()
        self.asynchronous = asynchronous
        self.group: tuple[int, ...] = ()
        self.doing: tuple[int, ...] = ()
        self.tail = (SharedAccesses(), SharedAccesses())
        self.case_groups: list[tuple[ir.Stmt, tuple[int, ...]]] = []
        self.arrivals: dict[str, list[tuple[int, str]]] = {}
        self.jumps: Jumps | None = None
        self.tracked = True
        self._common: set[ir.Buffer] = set()
        self._barrier_counts: dict[ir.Var, list[int]] = {}
        self._of_block: set[ir.Buffer] = set()
        self._keys: dict[ir.Stmt, int] = {}
        self._fenced: set[ir.Stmt] = set()
        self.renamed: dict[str, str] = {}
        self.races = False
        self.races_in_fragments = False
        self.written: set[ir.Buffer] = set()
        self._frees_tensor_memory = False
        self.combiner = ""

    # -- preparation

    def _prepare(self, body: ir.Stmt, is_collective: Callable[[ir.Stmt], bool]) -> None:
        """Find the roles of a block, and the fragments that several of them work on together."""
        self.index = ThreadIndex(launched_threads(body) or DEFAULT_THREADS)
        nodes = list(walk(body))
        for node in nodes:
            if isinstance(node, ir.Bind):
                self.index.define(node.var, node.value)
        conditions = [
            node.condition
            for node in nodes
            if isinstance(node, ir.IfThenElse)
            and self.index.mentions(node.condition)
            and any(
                case is not None and is_collective(case)
                for case in (node.then_case, node.else_case)
            )
        ]
        self.intervals = list(pairwise([0, *self.index.cuts(conditions), self.index.count]))
        self.group = tuple(range(len(self.intervals)))
        self._prepare_races(body)
        self._common = set()
        self._find_common(body, self.group)

    def _prepare_races(self, body: ir.Stmt) -> None:
        """Find out whether accesses can race, and of which buffers."""
        asynchronous = set()
        for node in walk(body):
            if isinstance(node, ir.BufferStore) or (isinstance(node, ir.Region) and node.writes):
                self.written.add(node.buffer)
            elif isinstance(node, ir.Call):
                if node.op in self.asynchronous or node.op == "tl.ptx_cp_async":
                    asynchronous.add(node.op)
                elif node.op == "tl.deallocate_tmem":
                    self._frees_tensor_memory = True
                elif node.op == "tl.access_ptr":
                    self.written.add(node.args[0].buffer)
        self.races = len(self.intervals) > 1 or bool(asynchronous)
        self._fenced = fenced_statements(body)
        self.races_in_fragments = "tl.tileop.wgmma_gemm" in asynchronous

    def _find_common(self, node: Any, group: tuple[int, ...]) -> None:
        """Buffers that several roles access in one statement."""
        if isinstance(node, ir.SeqStmt):
            for child in node.seq:
                self._find_common(child, group)
        elif isinstance(node, ir.IfThenElse):
            self._find_common(node.then_case, self.roles_where(node.condition, group, True))
            if node.else_case is not None:
                self._find_common(node.else_case, self.roles_where(node.condition, group, False))
        elif isinstance(node, (ir.AttrStmt, ir.Block, ir.While)) or (
            isinstance(node, ir.For) and node.kind != ir.PARALLEL
        ):
            self._find_common(node.body, group)
        elif len(group) > 1:
            self._common.update(
                child.buffer
                for child in walk(node)
                if isinstance(child, (ir.BufferLoad, ir.BufferStore, ir.Region))
            )

    def roles_where(self, condition: Any, group: tuple[int, ...], holds: bool) -> tuple[int, ...]:
        """The roles of a group in which a condition may be `holds`."""
        return tuple(
            r for r in group if self.index.decide(condition, *self.intervals[r]) is not (not holds)
        )

    # -- the grid

    def emit_grid(self, e: Emitter, node: ir.For, is_collective: Callable[[ir.Stmt], bool]) -> None:
        """The grid: a function of a block with one of each role, and their launch."""
        loops, body = grid_loops(node)
        check_grid(e, loops)
        names, extents = [], []
        for loop in loops:
            extent = e.scalar(loop.extent, "a grid")
            names.append(bind_grid_index(e, loop, extent))
            extents.append(extent.code)
        self._prepare(body, is_collective)
        outer = e.w
        e.prologue = outer.sharing_names()
        e.iotas.clear()
        self.in_block = True
        roles = []
        for k in range(len(self.intervals)):
            self.role = k
            roles.append(self._emit_role(e, body))
        e.w = outer
        block = outer.fresh("block")
        functions = []
        with outer.block(f"def {block}({', '.join(['cta', *names])})"):
            outer.extend(e.prologue)
            for k, writer in enumerate(roles):
                functions.append(outer.fresh(f"role_{k}"))
                with outer.block(f"def {functions[-1]}(me)"):
                    outer.extend(writer)
                    # At least one yield makes it a generator.
                    outer.line("yield")
            outer.line(f"return ({', '.join(functions)},)")
        cuts = (self.intervals[0][0], *(high for _, high in self.intervals))
        watching = "".join(f", {i.argument}" for i in e.instruments if i.argument == "watch")
        outer.line(
            f"launch({block}, ({', '.join(extents)},), {cuts}, {e.kernel.name!r}, "
            f"LOCATIONS, {self.arrivals!r}, {self.renamed!r}{watching}{self._shared_of(e)})"
        )
        e.prologue = e.launch_prologue
        self.in_block = False

    def _shared_of(self, e: Emitter) -> str:
        """An argument of `launch`: the buffers on whose accesses TileLang orders no threads."""
        if e.barriers:
            return ""
        shared = {buf.code for buf in e.buffers.values() if buf.scope.startswith("shared")}
        return f", unordered={sorted(shared)!r}"

    def _emit_role(self, e: Emitter, body: ir.Stmt) -> Writer:
        """The body of one role; with a thread axis if it turns out to need one."""
        saved = e.snapshot()
        arrivals = {name: list(found) for name, found in self.arrivals.items()}
        for with_axis in (False, True):
            self._of_block = set()
            e.w = e.prologue.sharing_names()
            self._start_role()
            try:
                with e.inside(axes=[], rank=int(with_axis), mask=None, dest=None, stored=None):
                    if with_axis:
                        low, high = self.intervals[self.role]
                        self.axis = e.push_axis(literal(high - low, "int32"))
                    e.stmt(body)
                    self._end_role(e)
            except NeedsThreadAxis:
                e.restore(saved)
                self.arrivals = {name: list(found) for name, found in arrivals.items()}
                continue
            break
        self._start_role()
        # What is private to this role is not known to the next.
        known = saved.tables["buffers"]
        e.buffers = {k: b for k, b in e.buffers.items() if k in known or k in self._of_block}
        return e.w

    def _start_role(self) -> None:
        self.axis = self.jumps = self.left = None
        self.tracked, self.case_groups = True, []
        self.group = tuple(range(len(self.intervals)))

    def _end_role(self, e: Emitter) -> None:
        """The first warp of a block frees tensor memory when it is at its end.

        TileLang puts the deallocation there: after a barrier of the cluster if a product takes
        the memory of two blocks, else with no barrier before it.
        """
        if self._frees_tensor_memory:
            return
        buffers = [buf for buf in e.buffers.values() if buf.scope == "shared.tmem"]
        if buffers and has_pairs(e):
            e.w.line(f"me.cluster_arrive({cluster_of(e)})")
            e.w.line("yield me.cluster_wait()")
        if self.intervals[self.role][0] == 0:
            for buf in buffers:
                if self.can_race(e, buf):
                    e.w.line(f"me.frees({buf.code!r}, {buf.code}.shape)")

    # -- memory

    def emit_block(self, e: Emitter, node: ir.Block, base: Callable[..., None]) -> None:
        """A block: buffers of it, or of each role."""
        for data, counts in node.annotations.get("barrier_init", {}).items():
            self._barrier_counts[data] = [int(getattr(n, "value", n)) for n in counts]
        base(e, node, self._allocate if self.in_block else None)

    def _allocate(self, e: Emitter, buffer: ir.Buffer) -> None:
        """Make a buffer: once a block, or for each role what threads keep to themselves."""
        scope = buffer.scope
        if scope in LOCAL and self.axis is not None:
            private_buffer(e, buffer, self.axis.extent.code)
            return
        if scope in LOCAL or (scope in _THREAD_SCOPES and buffer not in self._common):
            allocate_buffer(e, buffer)
            return
        if buffer in e.buffers:
            return
        self._of_block.add(buffer)
        of_role, e.w = e.w, e.prologue
        if scope in ("shared.barrier", "shared.cluster_barrier"):
            self._allocate_barriers(e, buffer)
        else:
            allocate_buffer(e, buffer)
            if scope.startswith("shared") and has_cluster(e):
                code = e.buffers[buffer].code
                e.w.line(f"{cluster_of(e)}.share({code!r}, {rank_in_cluster(e)}, {code})")
        e.w = of_role

    def _allocate_barriers(self, e: Emitter, buffer: ir.Buffer) -> None:
        counts = self._barrier_counts.get(buffer.data)
        if counts is None:
            raise e.refuse(f"the barriers {buffer.name}, which nothing initialises")
        code = e.w.fresh(buffer.name)
        arguments = f"{buffer.name!r}, {', '.join(map(str, counts))}"
        if buffer.scope == "shared.cluster_barrier" or has_cluster(e):
            e.w.line(f"{code} = cta.mbarriers_of({cluster_of(e)}, {arguments})")
            if buffer.scope == "shared.cluster_barrier":
                # TileLang puts a barrier of the cluster behind its initialization.
                e.w.line(f"{cluster_of(e)}.starts_together = True")
        else:
            e.w.line(f"{code} = cta.mbarriers({arguments})")
        shape = (literal(len(counts), "int32"),)
        e.buffers[buffer] = Buf(buffer.name, code, "uint64", shape, "shared.barrier")

    def can_race(self, e: Emitter, buf: Buf) -> bool:
        """Whether accesses to a buffer can race."""
        if not (self.races and self.tracked and self.in_block) or buf.variable:
            return False
        if buf.code != buf.name:
            self.renamed[buf.code] = buf.name
        if buf.is_global:
            return any(e.buffers.get(b) is buf for b in self.written)
        if buf.scope.startswith("shared"):
            return True
        return self.races_in_fragments and buf.scope == "local.fragment"

    @contextmanager
    def untracked(self) -> Iterator[None]:
        """Inside, accesses are not noted: those of atomics, which race with nothing."""
        outer, self.tracked = self.tracked, False
        yield
        self.tracked = outer

    def shared_accesses(self, node: Any) -> SharedAccesses:
        """The shared memory that a statement accesses itself."""
        return shared_accesses(node, self.asynchronous)

    # -- statements

    def statement(self, e: Emitter, node: Any, write: Callable[[Emitter, Any], None]) -> None:
        """Write a statement; one that several roles do together is done by the last to come."""
        for case, group in self.case_groups:
            if node is case:
                with self.in_group(group):
                    self._statement(e, node, write)
                return
        self._statement(e, node, write)

    def _statement(self, e: Emitter, node: Any, write: Callable[[Emitter, Any], None]) -> None:
        if self.races and node in self._fenced:
            e.w.line("me.fence()")
        self.doing = self.group
        if len(self.group) < 2 or not self._is_joint(node):
            if self.jumps is not None and self.jumps.is_body(node):
                self.jumps.emit_body(e, node, write)
            else:
                write(e, node)
            return
        key = self._keys.setdefault(node, len(self._keys))
        if node.location is not None:
            e.w.location = node.location
        mine = e.temp("mine")
        e.w.line(f"{mine} = yield me.meet({key}, {self.group})")
        with e.w.block(f"if {mine}"):
            with self.in_group((self.role,)):
                write(e, node)
            e.w.line(f"me.part({key})")

    def _is_joint(self, node: Any) -> bool:
        """Whether the roles of a group do a statement together."""
        if isinstance(node, ir.For):
            joint = node.kind == ir.PARALLEL
        elif isinstance(node, ir.BufferStore):
            joint = node.buffer.scope not in LOCAL
        else:
            joint = (
                isinstance(node, ir.Evaluate)
                and isinstance(node.value, ir.Call)
                and node.value.op.startswith(("tl.tileop.", "tl.atomic_store"))
            )
        return joint and not self.index.mentions(node)

    @contextmanager
    def in_group(self, group: tuple[int, ...]) -> Iterator[None]:
        """Inside, statements are executed by these roles."""
        outer, self.group = self.group, group
        cases, self.case_groups = self.case_groups, []
        yield
        self.group, self.case_groups = outer, cases

    def jump(self, e: Emitter, call: ir.Call) -> bool:
        """A jump of the active threads; False where all of them jump."""
        if self.jumps is None or e.mask is None or not self.in_threads(e):
            return False
        self.jumps.jump(e, call)
        return True

    def set_registers(self, e: Emitter, count: int) -> None:
        """Write a `setmaxnreg`."""
        e.w.line(f"me.set_registers({count})")


def threads_of(e: Emitter, what: str) -> Threads:
    """The threads of the block.

    Raises:
        Unsupported: outside of a block.
    """
    if not isinstance(e.agents, Threads) or not e.agents.in_block:
        raise e.refuse(what)
    return e.agents


# Asynchronous operations: closures that the scheduler calls when they complete --------------------


_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"^\s*(?:for )?([A-Za-z_]\w*)(?: =| in) ")


def issue(e: Emitter, kind: str, op: TileOperation, more: str = "") -> None:
    """Issue a tile operation whose work is done when the scheduler says; `more` are arguments."""
    t = threads_of(e, f"T.{op.name}")
    regions = list(raced_regions(op))
    accesses = [
        f"({region.buf.code!r}, {written}, {region.dims_code}, {region.buf.code}.shape"
        f"{', ' + blocks if blocks else ''})"
        for region, written, blocks in regions
        if t.can_race(e, region.buf)
    ]
    with writing_to(e, e.w.sharing_names(e.w.location)) as body, t.untracked():
        perform(e, op)
    issue_lines(e, kind, body, accesses, more, {region.buf.code for region, *_ in regions})


def raced_regions(op: TileOperation) -> Iterator[tuple[BufferRegion, bool, str | None]]:
    """The regions that a tile operation accesses, whether it writes each, and in which blocks.

    Atomics race not.
    """
    written = [effect.region for effect in op.effects if effect.action == "write"]
    for effect in op.effects:
        if effect.action == "write":
            yield effect.region, True, effect.blocks
        elif effect.action == "read" and effect.region not in written:
            yield effect.region, False, effect.blocks


@contextmanager
def writing_to(e: Emitter, writer: Writer) -> Iterator[Writer]:
    """Inside, lines are written elsewhere."""
    outer, e.w = e.w, writer
    yield writer
    e.w = outer


def issue_lines(
    e: Emitter,
    kind: str,
    body: Writer,
    accesses: Sequence[str],
    more: str = "",
    operands: Collection[str] | None = None,
) -> None:
    """Issue work given as lines: they become a closure over their values at the time of issue.

    Buffers of the block that the lines name, other than the `operands` (None: all are), are
    indices: their contents are copied when the work is issued.
    """
    used = {name for text in body.lines for name in _NAME.findall(text)}
    bound = {name: name for name in used & _assigned(e.w)}
    if operands is not None:
        bound |= {
            buf.code: f"{buf.code}.copy()"
            for buf in e.buffers.values()
            if buf.code in used - set(operands)
            and not buf.is_global
            and not buf.variable
            and not buf.scope.endswith("barrier")
        }
    captured = ", ".join(f"{name}={value}" for name, value in sorted(bound.items()))
    action = e.temp("action")
    with e.w.block(f"def {action}({captured})"):
        for text in body.lines or ["pass"]:
            e.w.line(text)
    arguments = f"{kind!r}, {action}, ({''.join(a + ', ' for a in accesses)})"
    e.w.line(f"me.issue({arguments}{', ' + more if more else ''})")
    e.w.line("yield")


def _assigned(w: Writer) -> set[str]:
    """Names that the lines of a role assign."""
    scanned, names = w.assigned
    for text in w.lines[scanned:]:
        match = _ASSIGNED.match(text)
        if match is not None:
            names.add(match.group(1))
    w.assigned = (len(w.lines), names)
    return names


# Barriers ---------------------------------------------------------------------------------


def barrier_code(e: Emitter, node: Any) -> str:
    """Code of the mbarrier that an argument names."""
    if isinstance(node, ir.BufferLoad):
        index = e.scalar(node.indices[0], "a barrier")
        return f"{buffer(e, node.buffer).code}[{index.code}]"
    name = node.op if isinstance(node, ir.Call) else type(node).__name__
    if name == "tl.access_ptr":
        return barrier_code(e, node.args[0])
    if name == "tirx.tvm_access_ptr":
        for key, buf in e.buffers.items():
            if key.data is node.args[1]:
                return f"{buf.code}[{e.scalar(node.args[2], 'a barrier').code}]"
    raise e.refuse(f"a barrier given as {name}")


def barriers_of_pair(e: Emitter, node: Any) -> list[str]:
    """Code of an mbarrier of this block and of the same one of its neighbour in the cluster."""
    code, _, index = barrier_code(e, node).partition("[")
    rank = rank_in_cluster(e)
    return [f"{code}.of_block({rank} & ~1)[{index}", f"{code}.of_block({rank} | 1)[{index}"]


def arrives_at(e: Emitter, barrier: str) -> None:
    """Note, for reports, that the role arrives at a barrier here."""
    t = threads_of(e, "an arrival")
    code = barrier.split("[", maxsplit=1)[0]
    name = next(b.name for b in e.buffers.values() if b.code == code)
    found = t.arrivals.setdefault(name, [])
    entry = (t.role, str(e.w.location or "an unknown line"))
    if entry not in found:
        found.append(entry)


def together(rule: Callable[[Emitter, ir.Call], None]) -> Callable[[Emitter, ir.Call], None]:
    """A rule whose lines are written outside of the thread axis."""

    def rule_together(e: Emitter, call: ir.Call) -> None:
        with threads_of(e, call.op).without_threads(e):
            rule(e, call)

    return rule_together


def by_active_threads(
    rule: Callable[[Emitter, ir.Call], None],
) -> Callable[[Emitter, ir.Call], None]:
    """A rule whose lines run only where some thread is active."""

    def masked(e: Emitter, call: ir.Call) -> None:
        if e.mask is None or e.mask.scalar:
            rule(e, call)
            return
        with e.w.block(f"if np.any({e.mask.code})"):
            rule(e, call)

    return masked
