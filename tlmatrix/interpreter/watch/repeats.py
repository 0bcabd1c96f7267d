"""Runs what every thread of a block executes a second time, as a later warp would.

Where memory, or what later statements use, then differs, the warps of the block get in each
other's way: a finding of `lanes`. The second run leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.analysis.repeats import Repeat, is_common, is_plain, repeats
from tlmatrix.interpreter.emit.emitter import write_statement
from tlmatrix.interpreter.emit.instrument import Instrument
from tlmatrix.interpreter.emit.threads import Threads
from tlmatrix.interpreter.emit.values import Val
from tlmatrix.interpreter.gpu import WARP
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.rewrites.threads import launched_threads
from tlmatrix.interpreter.ir.walk import walk
from tlmatrix.interpreter.runtime.elements import lanes_of

from .observer import Observer

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.access import Access
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.program import Options
    from tlmatrix.interpreter.runtime.codecs import Array

    from .monitor import Findings
    from .observer import SiteTable

_DEFAULT_THREADS = 128
"""What TileLang launches where a kernel does not say."""


class RepeatSanitizer(Observer):
    """Writes the second run after the statements that may not be repeated."""

    def __init__(self, kernel: ir.Kernel, options: Options, sites: SiteTable) -> None:
        super().__init__(kernel, options, sites)
        self._ends = repeats(kernel)
        self._starts: dict[ir.Stmt, list[Repeat]] = {}
        for found in self._ends.values():
            for each in found:
                self._starts.setdefault(each.statements[0], []).append(each)
        x, y, z = launched_threads(kernel.body) or (_DEFAULT_THREADS, 1, 1)
        self._threads = x * y * z
        self._before: dict[Repeat, str] = {}

    @classmethod
    def wanted(cls, options: Options) -> bool:
        """Beside the memory sanitizer, whose `watch` it calls."""
        return "lanes" in options.sanitizers and "traced" not in options.observers

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
            if threads > WARP and not _varies(e, repeat):
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
        e.instruments, e.invariants = [_Undo(again, self.sites, repeat.data, e.mask)], None
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
            site = self._sites.access(e, access.buf, "write")
            # An element that one thread alone stores to, it does not share.
            own = bool(access.axes) or (e.mask is not self._mask and bool(e.mask_axes))
            codes = {b.code for node, b in e.buffers.items() if node.data is self._data}
            e.w.line(
                f"{self._again}.keep({site}, {access.buf.code}, {access.index_code}, "
                f"own={own}, read={access.buf.code in codes})"
            )


# The second run ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """An element that a second run stores to.

    Attributes:
        site: of the store.
        array: the memory.
        place: the index, as arrays.
        before: what was there.
        own: whether one thread alone stores there.
        read: whether it is the memory that the statements read.
    """

    site: int
    array: Array
    place: tuple[Array, ...]
    before: Array
    own: bool
    read: bool


class Again:
    """A second run of some statements: what it overwrites, in order."""

    def __init__(self) -> None:
        self.stores: list[Stored] = []

    def keep(
        self, site: int, array: Array, index: tuple[Any, ...], *, own: bool, read: bool
    ) -> None:
        """An element is about to be stored to."""
        place = lanes_of(tuple(map(np.atleast_1d, index)), None, array.shape)
        if place is not None:
            self.stores.append(Stored(site, array, place[0], array[place[0]], own, read))

    def undo(self) -> list[Stored]:
        """Put back what was there; the stores to elements that the run has changed."""
        changed = []
        seen: set[tuple[int, bytes]] = set()
        for stored in self.stores:
            key = id(stored.array), np.stack(stored.place).tobytes()
            checked = not stored.own and key not in seen
            if checked and not same(stored.before, stored.array[stored.place]):
                changed.append(stored)
            seen.add(key)
        for stored in reversed(self.stores):
            stored.array[stored.place] = stored.before
        return changed


def same(a: Any, b: Any) -> bool:
    """Whether values are equal, NaN to itself."""
    one, other = np.asarray(a), np.asarray(b)
    return bool(((one == other) | ((one != one) & (other != other))).all())  # noqa: PLR0124


class Repeats:
    """The part of the monitor that reports statements whose repetition gives something else.

    Attributes:
        confirmed: whether the lowered code has a store to memory, by its name, at a line that
            several warps do with nothing to order them; true: that several do is known.
    """

    findings: Findings
    confirmed: Callable[[str, int, bool], bool]
    repeat = Again
    """Begin a second run."""

    def repeated(
        self, again: Again, data: str, line: int, threads: int, pairs: Sequence[tuple[Any, Any]]
    ) -> None:
        """End a second run.

        Args:
            again: the run.
            data: the name of the memory that the statements read and write.
            line: where they read it.
            threads: how many threads execute them.
            pairs: what later statements use, after the first run and after the second.
        """
        changed = again.undo()
        stores = [s for s in again.stores if s.read]
        if not changed and all(same(a, b) for a, b in pairs):
            return
        sites = self.findings.sites
        lines = {at.line for s in stores if (at := sites[s.site].location) is not None}
        if not any(self.confirmed(data, number, False) for number in sorted(lines)):
            return
        shown = next((s for s in changed if s.read), stores[0])
        reads = f", which line {line} reads," if line not in lines else ""
        what = "written" if reads else "read and written"
        self.findings.report(
            "lanes",
            shown.site,
            tuple(int(i[0]) for i in shown.place),
            f"{{buffer}}{reads} is {what} by all {threads} threads that execute this statement: "
            "a warp that comes later reads what an earlier one wrote",
            hint="let one of them do it: `if T.get_thread_binding() == 0`",
        )
