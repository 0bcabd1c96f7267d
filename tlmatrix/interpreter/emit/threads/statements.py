"""The rules of statements and expressions in a block of several roles."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.shared import SharedAccesses, conflict
from tlmatrix.interpreter.analysis.threads import reads_flags
from tlmatrix.interpreter.analysis.usage import is_grid, is_parallel
from tlmatrix.interpreter.emit import expressions, loops, memory, statements
from tlmatrix.interpreter.emit.emitter import Rules
from tlmatrix.interpreter.emit.expressions import both
from tlmatrix.interpreter.emit.loops import emit_parallel
from tlmatrix.interpreter.emit.sharing import keep_mask
from tlmatrix.interpreter.emit.values import Val
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import walk

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Axis, Emitter

    from .roles import Threads


# `break` and `continue` that only some threads take: masks of the threads that go on --------------

_BREAKS = frozenset({"tl.loop_break", "tirx.break_loop"})
_JUMPS = frozenset({*_BREAKS, "tirx.continue_loop"})


class Jumps:
    """A loop that threads leave one by one: those that stay in it, and in its iteration."""

    def __init__(self, e: Emitter, body: ir.Stmt, axis: Axis, outer: Jumps | None) -> None:
        self.outer = outer
        self._axis = axis
        self._body: ir.Stmt | None = body
        self._stay, self._iteration = e.temp("stay"), e.temp("turn")
        e.w.line(f"{self._stay} = np.ones({axis.extent.code}, bool)")

    def is_body(self, node: Any) -> bool:
        """Whether a statement is the body of the loop."""
        return node is self._body

    def emit_body(self, e: Emitter, node: ir.Stmt, write: Callable[[Emitter, Any], None]) -> None:
        """The body, for the threads that stay in the loop."""
        body, self._body = self._body, None
        e.w.line(f"{self._iteration} = {self._stay}")
        with e.inside(mask=self.mask(e, e.mask)):
            with e.w.block(f"if not {e.mask_code}.any()"):
                e.w.line("break")
            write(e, node)
        self._body = body

    def mask(self, e: Emitter, outer: Val | None) -> Val:
        """The mask of the threads that are still in the iteration."""
        staying = Val(self._iteration, "bool", self._axis.iota.axes)
        return keep_mask(e, both(e, outer, staying))

    def jump(self, e: Emitter, call: ir.Call) -> None:
        """A jump of the active threads."""
        assert e.mask is not None
        if call.op in _BREAKS:
            e.w.line(f"{self._stay} = {self._stay} & ~{e.mask.code}")
        e.w.line(f"{self._iteration} = {self._iteration} & ~{e.mask.code}")


def leaves_iteration(node: Any) -> bool:
    """Whether a statement leaves an iteration of the loop around it."""
    if isinstance(node, ir.SeqStmt):
        return any(map(leaves_iteration, node.seq))
    if isinstance(node, ir.IfThenElse):
        other = node.else_case is not None and leaves_iteration(node.else_case)
        return other or leaves_iteration(node.then_case)
    if isinstance(node, (ir.AttrStmt, ir.Block)):
        return leaves_iteration(node.body)
    return (
        isinstance(node, ir.Evaluate)
        and isinstance(node.value, ir.Call)
        and node.value.op in _JUMPS
    )


# The rules of statements and expressions in a block of several roles ------------------------------


def rules_of_threads(t: Threads, rules: Rules, synchronizing: Collection[str]) -> Rules:
    """Rules for a kernel whose blocks have threads `t`.

    Args:
        t: the threads.
        rules: the rules of other kernels; theirs binds a variable.
        synchronizing: operations that threads wait at, or arrive at.
    """
    bind = rules.statements[ir.Bind]

    def is_collective(node: ir.Stmt) -> bool:
        """Whether a statement has anything that threads do together."""
        return any(
            child.op.startswith("tl.tileop.")
            or child.op in synchronizing
            or child.op == "tl.set_max_nreg"
            if isinstance(child, ir.Call)
            else isinstance(child, ir.For) and child.kind == ir.PARALLEL
            for child in walk(node)
        )

    def emit_for(e: Emitter, node: ir.For) -> None:
        if is_grid(node):
            if t.in_block:
                raise e.refuse(f"a loop over {node.thread_tag}")
            t.emit_grid(e, node, is_collective)
        elif not is_parallel(node):
            _emit_serial(e, t, node)
        elif not t.in_threads(e):
            emit_parallel(e, node)
        elif node.kind == ir.VECTORIZED:
            # A vectorized loop of a thread: its iterations follow each other.
            _emit_serial(e, t, node)
        else:
            with t.without_threads(e):
                emit_parallel(e, node)

    def emit_load(e: Emitter, node: ir.BufferLoad) -> Val:
        buf = memory.buffer(e, node.buffer)
        if buf.scope == "shared.barrier":
            raise e.refuse(f"reading the barrier {buf.name}")
        if buf.per_thread and t.axis is not None and not t.in_threads(e):
            return t.uniform_of_threads(e, lambda: memory.emit_load(e, node), buf.name)
        return memory.emit_load(e, node)

    def emit_variable(e: Emitter, node: ir.Var) -> Val:
        if t.index.is_axis(node):
            return t.thread_index(e, t.index.axis_of(node))
        value = expressions.variable(e, node)
        if node in t.thread_vars and t.axis is not None and not t.in_threads(e):
            # What threads do together may only use what is the same for all of them.
            return t.uniform_of_threads(e, lambda: value, node.name)
        return value

    return Rules(
        {
            ir.For: emit_for,
            ir.While: lambda e, node: _emit_while(e, t, node),
            ir.SeqStmt: lambda e, node: _emit_sequence(e, t, node),
            ir.Bind: lambda e, node: _emit_bind(e, t, node, bind),
            ir.IfThenElse: lambda e, node: _emit_branch(e, t, node),
            ir.AttrStmt: emit_attribute,
            ir.Block: lambda e, node: t.emit_block(e, node, statements.emit_block),
        },
        {ir.BufferLoad: emit_load, ir.Var: emit_variable},
        {},
        {},
    )


def _emit_sequence(e: Emitter, t: Threads, node: ir.SeqStmt) -> None:
    """Statements, with the barriers that TileLang puts between those that share memory."""
    jumps = t.jumps if t.in_threads(e) and t.jumps is not None and leaves_iteration(node) else None
    if t.in_block and len(t.group) > 1:
        if t.in_threads(e) and leaves_iteration(node):
            raise e.refuse("a jump of some threads in code that several roles share")
        _emit_shared_sequence(e, t, node)
    elif jumps is None:
        statements.emit_sequence(e, node)
    else:
        outer = e.mask
        with e.inside(mask=outer):
            for child in node.seq:
                e.stmt(child)
                if leaves_iteration(child):
                    e.mask = jumps.mask(e, outer)


def _emit_shared_sequence(e: Emitter, t: Threads, node: ir.SeqStmt) -> None:
    head: SharedAccesses | None = None
    since = SharedAccesses()
    for child in node.seq:
        accesses = t.shared_accesses(child)
        if e.barriers and conflict(since, accesses):
            head = since if head is None else head
            since = SharedAccesses()
            e.w.line(f"yield me.sync_group({t.group})")
        since.include(accesses)
        e.stmt(child)
    t.tail = (since if head is None else head, since)


def _enter_jumps(e: Emitter, t: Threads, node: ir.For | ir.While) -> bool:
    """Enter a loop that threads may leave one by one."""
    if not t.in_threads(e) or not leaves_iteration(node.body):
        return False
    assert t.axis is not None
    t.jumps = Jumps(e, node.body, t.axis, t.jumps)
    return True


def _emit_serial(e: Emitter, t: Threads, node: ir.For) -> None:
    shares = t.in_block and len(t.group) > 1
    accesses = t.shared_accesses(node.body) if shares else SharedAccesses()
    if shares:
        t.tail = (accesses, accesses)

    def end() -> None:
        head, tail = t.tail
        if shares and e.barriers and conflict(tail, head):
            # What one iteration leaves unordered with the next.
            e.w.line(f"yield me.sync_group({t.group})")

    entered = _enter_jumps(e, t, node)
    loops.emit_serial(e, node, end)
    if entered:
        assert t.jumps is not None
        t.jumps = t.jumps.outer
    if shares:
        t.tail = (accesses, accesses)


def _emit_while(e: Emitter, t: Threads, node: ir.While) -> None:
    if not reads_flags(node):
        entered = _enter_jumps(e, t, node)
        loops.emit_while(e, node)
        if entered:
            assert t.jumps is not None
            t.jumps = t.jumps.outer
        return
    with loops.loop(e, node, "while True"):
        if e.mask is not None:
            with e.w.block(f"if not {e.mask.code}.any()"):
                e.w.line("break")
        loops.break_unless(e, node.condition)
        e.stmt(node.body)
        e.w.line("yield me.spin()")


def _emit_bind(e: Emitter, t: Threads, node: ir.Bind, bind: Callable[[Emitter, Any], None]) -> None:
    if t.in_block and t.index.define(node.var, node.value):
        if t.index.is_axis(node.var):
            e.vars[node.var] = Val("the thread index", "int32")
        else:
            e.deferred[node.var] = node.value
        return
    bind(e, node)
    bound = e.vars.get(node.var)
    if t.in_threads(e) and isinstance(bound, Val) and bound.axes:
        t.thread_vars.add(node.var)


def _emit_branch(e: Emitter, t: Threads, node: ir.IfThenElse) -> None:
    if not t.in_block:
        statements.emit_branch(e, node)
        return
    then = t.roles_where(node.condition, t.group, True)
    other = t.roles_where(node.condition, t.group, False)
    decided = t.index.decide(node.condition, *t.intervals[t.role])
    if decided is not None:
        case = node.then_case if decided else node.else_case
        if case is not None:
            with t.in_group(then if decided else other):
                e.stmt(case)
        return
    outer = t.case_groups
    t.case_groups = [(node.then_case, then)]
    if node.else_case is not None:
        t.case_groups.append((node.else_case, other))
    statements.emit_branch(e, node)
    t.case_groups = outer


def emit_attribute(e: Emitter, node: ir.AttrStmt) -> None:
    """An `AttrStmt`; the condition around a `T.ws` says which threads."""
    if node.attr_key == "warp_specialize":
        e.stmt(node.body)
        return
    statements.emit_attribute(e, node)
