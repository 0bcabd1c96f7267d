"""Finds iterations of a parallel loop that read what other iterations of it write.

The interpreter reads for all iterations before it writes, as lanes of a warp do. Warps of a block
run in any order, and a statement has no barrier inside: of `S[i] = S[i] + S[i - d]` a warp may read
what another one has written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.analysis.repeats import is_common
from tlmatrix.interpreter.analysis.usage import is_parallel
from tlmatrix.interpreter.gpu import WARP
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import inner_statements, walk
from tlmatrix.interpreter.runtime.elements import lanes_inside

from .observer import Observer

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.access import Access
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.program import Options
    from tlmatrix.interpreter.runtime.codecs import Array

    from .monitor import Findings
    from .observer import SiteTable


_NOTED = 64
"""The most reads of a memory, and writes, that one run of a loop keeps."""


class CrossingSanitizer(Observer):
    """Notes accesses in parallel loops that read and write the same memory of several threads."""

    def __init__(self, kernel: ir.Kernel, options: Options, sites: SiteTable) -> None:
        super().__init__(kernel, options, sites)
        self._loops = dict(_loops(kernel.body))
        self._data: frozenset[str] = frozenset()
        """Names of the memory that the current loop reads and writes."""
        self._name = ""

    @classmethod
    def wanted(cls, options: Options) -> bool:
        """Beside the memory sanitizer, whose `watch` it calls."""
        return "lanes" in options.sanitizers and "traced" not in options.observers

    def snapshot(self) -> Any:
        """The current loop."""
        return self._data, self._name

    def restore(self, saved: Any) -> None:
        """Return to the loop."""
        self._data, self._name = saved

    def before_rule(self, e: Emitter, node: Any) -> None:
        """Begin a loop."""
        if node in self._loops and not e.axes and not e.agents.in_threads(e):
            self._data = self._loops[node]
            self._name = e.temp("crossing")
            e.w.line(f"{self._name} = watch.crossing()")

    def after_rule(self, e: Emitter, node: Any) -> None:
        """End a loop."""
        if node in self._loops and self._data:
            e.w.line(f"watch.crossed({self._name})")
            self._data = frozenset()

    def read(self, e: Emitter, access: Access) -> None:
        """Iterations are about to read."""
        self._note(e, access, "read", access.index_code)

    def read_scalar(self, e: Emitter, access: Access, code: str) -> str:
        """All active iterations read one element."""
        self._note(e, access, "read", f"({access.element},)")
        return code

    def before_write(self, e: Emitter, access: Access, result: Any, value: Any) -> None:
        """Iterations are about to write."""
        del result, value
        if not e.atomic.is_access:
            self._note(e, access, "write", access.index_code)

    def _note(self, e: Emitter, access: Access, action: str, index: str) -> None:
        buf = access.buf
        if buf.name in self._data and is_common(buf.scope) and e.axes:
            site = self.sites.access(e, buf, action)
            lanes = e.shape_of(e.all_axes)
            e.w.line(f"{self._name}.{action}({site}, {buf.code}, {index}, {e.mask_code}, {lanes})")


def _loops(node: ir.Stmt) -> list[tuple[ir.For, frozenset[str]]]:
    """The outermost parallel loops that load from memory which they store to, and its names."""
    if isinstance(node, ir.For) and is_parallel(node):
        stored, loaded = (
            {n.buffer.data: n.buffer.name for n in walk(node) if isinstance(n, kind)}
            for kind in (ir.BufferStore, ir.BufferLoad)
        )
        both = frozenset(name for data, name in stored.items() if data in loaded)
        return [(node, both)] if both else []
    return [found for child in inner_statements(node) for found in _loops(child)]


# The other half ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Touched:
    """An access of active iterations: its site, the elements, the iterations, what was there."""

    site: int
    elements: Array
    iterations: Array
    values: Array


class Crossing:
    """The accesses of one run of a parallel loop."""

    def __init__(self) -> None:
        self._reads: dict[tuple[int, tuple[int, ...]], list[_Touched]] = {}
        """By memory."""
        self._writes: list[tuple[Array, _Touched, list[_Touched]]] = []
        """The memory, the write and the reads before it."""

    def read(self, site: int, array: Array, index: tuple[Any, ...], mask: Any, lanes: Any) -> None:
        """Iterations are about to read."""
        before = self._before(array)
        if len(before) < _NOTED:
            before.append(_touched(site, array, index, mask, lanes))

    def write(self, site: int, array: Array, index: tuple[Any, ...], mask: Any, lanes: Any) -> None:
        """Iterations are about to write, or have written."""
        before = self._before(array)
        if before and len(self._writes) < _NOTED:
            self._writes.append((array, _touched(site, array, index, mask, lanes), before[:]))

    def _before(self, array: Array) -> list[_Touched]:
        return self._reads.setdefault((id(array), array.shape), [])

    def conflict(self) -> tuple[int, int, tuple[int, ...]] | None:
        """The sites of a write and of a read before it in another warp, and their element."""
        for array, write, before in self._writes:
            for read in before:
                bad = _in_other_warps(write, read)
                if bad.any():
                    now = array[np.unravel_index(read.elements, array.shape)]
                    bad &= (read.values != now) & ((read.values == read.values) | (now == now))  # noqa: PLR0124  # NaN
                if bad.any():
                    found = np.unravel_index(int(read.elements[bad][0]), array.shape)
                    return write.site, read.site, tuple(int(i) for i in found)
        return None


def _in_other_warps(write: _Touched, read: _Touched) -> Array:
    """Which elements that are read an iteration in another warp writes."""
    own = np.array_equal(write.elements, read.elements) and np.array_equal(
        write.iterations, read.iterations
    )
    if own or not write.elements.size:
        return np.zeros(read.elements.shape, bool)
    order = np.argsort(write.elements, kind="stable")
    written = write.elements[order]
    at = np.searchsorted(written, read.elements).clip(max=written.size - 1)
    writers = write.iterations[order][at]
    found: Array = (written[at] == read.elements) & (writers // WARP != read.iterations // WARP)
    return found


def _touched(
    site: int, array: Array, index: tuple[Any, ...], mask: Any, lanes: tuple[int, ...]
) -> _Touched:
    keep = lanes_inside(index, mask, array.shape, lanes)
    place = tuple(np.broadcast_to(i, keep.shape)[keep] for i in index)
    elements = np.ravel_multi_index(place, array.shape)
    return _Touched(site, elements, np.flatnonzero(keep), array[place])


class Crossings:
    """The part of the monitor that reports what other iterations read."""

    findings: Findings
    confirmed: Callable[[str, int, bool], bool]
    crossing = Crossing
    """Begin a parallel loop."""

    def crossed(self, crossing: Crossing) -> None:
        """End a parallel loop."""
        found = crossing.conflict()
        if found is None:
            return
        site, read, where = found
        sites = self.findings.sites
        at, other = sites[site].location, sites[read].location
        if at is None or not self.confirmed(sites[site].buffer, at.line, True):
            return
        line = f", line {other.line}," if other is not None and other.line != at.line else ""
        self.findings.report(
            "lanes",
            site,
            where,
            f"an iteration of a parallel loop reads{line} {{buffer}}, which another iteration "
            "writes: it may read what is there before or after",
            hint="write to another tensor"
            if sites[site].scope == "global"
            else "write to another buffer, or read into a fragment in a loop before: TileLang puts "
            "a barrier between two loops",
        )
