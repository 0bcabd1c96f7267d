"""Runs what every thread of a block executes a second time, as a later warp would.

Where memory, or what later statements use, then differs, the warps of the block get in each
other's way: a finding of `lanes`. The second run leaves no trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.repeats import Repeat, is_common, is_plain, repeats
from tlmatrix.interpreter.emit.emitter import write_statement
from tlmatrix.interpreter.emit.instrument import Instrument
from tlmatrix.interpreter.emit.threads import Threads
from tlmatrix.interpreter.emit.values import Val
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.rewrites.threads import launched_threads
from tlmatrix.interpreter.ir.walk import walk

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.access import Access
    from tlmatrix.interpreter.emit.emitter import Emitter

    from .sites import SiteTable

_WARP = 32
_DEFAULT_THREADS = 128
"""What TileLang launches where a kernel does not say."""


class RepeatSanitizer(Instrument):
    """Writes the second run after the statements that may not be repeated."""

    def __init__(self, kernel: ir.Kernel, sites: SiteTable) -> None:
        self._ends = repeats(kernel)
        self._starts: dict[ir.Stmt, list[Repeat]] = {}
        for found in self._ends.values():
            for each in found:
                self._starts.setdefault(each.statements[0], []).append(each)
        x, y, z = launched_threads(kernel.body) or (_DEFAULT_THREADS, 1, 1)
        self._threads = x * y * z
        self._sites = sites
        self._before: dict[Repeat, str] = {}

    def before_rule(self, e: Emitter, node: Any) -> None:
        """Keep what single threads have before the statements."""
        for repeat in self._starts.get(node, ()):
            own = [b for b in repeat.own if b in e.buffers]
            if own:
                self._before[repeat] = name = e.temp("before")
                e.w.line(f"{name} = {_kept(e, own)}")

    def after_rule(self, e: Emitter, node: Any) -> None:
        """Run the statements again."""
        for repeat in self._ends.get(node, ()):
            threads = self._threads_at(e, node)
            if threads > _WARP and not _varies(e, repeat):
                mask = e.mask
                if mask is None:
                    self._run_again(e, repeat, threads)
                    continue
                if mask.scalar:
                    test, some = mask.code, str(threads)
                else:
                    test, some = f"several_warps({mask.code})", f"int({mask.code}.sum())"
                with e.w.block(f"if {test}"):
                    self._run_again(e, repeat, some)

    def _threads_at(self, e: Emitter, node: ir.Stmt) -> int:
        """How many threads execute a statement; 0 where it is not known to be done at once."""
        if not isinstance(e.agents, Threads):
            return self._threads
        group = e.agents.doing if isinstance(node, ir.BufferStore) else e.agents.group
        if len(group) > 1 and not isinstance(node, ir.BufferStore):
            return 0
        return sum(high - low for low, high in (e.agents.intervals[role] for role in group))

    def _run_again(self, e: Emitter, repeat: Repeat, threads: int | str) -> None:
        own = [b for b in repeat.own if b in e.buffers]
        again, after = e.temp("again"), e.temp("after")
        e.w.line(f"{again} = watch.repeat()")
        if own:
            e.w.line(f"{after} = {_kept(e, own)}")
            _put_back(e, own, self._before[repeat])
        known = dict(e.vars), dict(e.deferred)
        outer = e.instruments, e.invariants, e.w.location
        e.instruments, e.invariants = [_Undo(again, self._sites, repeat.data, e.mask)], None
        for statement in repeat.statements:
            if is_plain(statement):
                write_statement(e, statement)
        e.instruments, e.invariants, e.w.location = outer
        pairs = [
            f"({known[0][v].code}, {e.vars[v].code})"
            for v in repeat.live
            if isinstance(known[0].get(v), Val) and isinstance(e.vars.get(v), Val)
        ]
        pairs += [
            f"({after}[{k}], {e.buffers[buffer].code})"
            for k, buffer in enumerate(own)
            if buffer.data in repeat.live
        ]
        e.vars, e.deferred = known
        reads = repeat.statements[0].location
        line = reads.line if reads is not None else 0
        e.w.line(
            f"watch.repeated({again}, {repeat.data.name!r}, {line}, {threads}, "
            f"({''.join(p + ', ' for p in pairs)}))"
        )
        if own:
            _put_back(e, own, after)


def _varies(e: Emitter, repeat: Repeat) -> bool:
    """Whether threads have elements of their own in the memory, or other conditions."""
    agents = e.agents
    if not isinstance(agents, Threads):
        return False
    parts = [
        part
        for node in walk(*filter(is_plain, repeat.statements))
        for part in (
            node.indices
            if isinstance(node, ir.BufferStore) and is_common(node.buffer.scope)
            else (node.condition,)
            if isinstance(node, ir.IfThenElse)
            else ()
        )
    ]
    if any(map(agents.index.mentions, parts)):
        return True
    return any(node in agents.thread_vars for node in walk(*parts))


def _kept(e: Emitter, own: list[ir.Buffer]) -> str:
    parts = [e.buffers[b] for b in own]
    codes = [b.code if b.variable else f"{b.code}.copy()" for b in parts]
    return f"({', '.join(codes)},)"


def _put_back(e: Emitter, own: list[ir.Buffer], name: str) -> None:
    for k, buffer in enumerate(own):
        buf = e.buffers[buffer]
        target = buf.code if buf.variable else f"{buf.code}[...]"
        e.w.line(f"{target} = {name}[{k}]")


class _Undo(Instrument):
    """Keeps what the second run overwrites."""

    def __init__(self, again: str, sites: SiteTable, data: ir.Var, mask: Val | None) -> None:
        self._again = again
        self._sites = sites
        self._data = data
        self._mask = mask

    def before_write(self, e: Emitter, access: Access, result: Any, value: Any) -> None:
        """A value is about to be stored."""
        del result, value
        if is_common(access.buf.scope):
            site = self._sites.number(e, access.buf, "write")
            # An element that one thread alone stores to, it does not share.
            own = bool(access.axes) or (e.mask is not self._mask and bool(e.mask_axes))
            codes = {b.code for node, b in e.buffers.items() if node.data is self._data}
            e.w.line(
                f"{self._again}.keep({site}, {access.buf.code}, {access.index_code}, "
                f"own={own}, read={access.buf.code in codes})"
            )
