"""What a recorded program calls: the writers of an element, and every access of one block.

A `Mapper` runs with every block and finds the writers of an element. A `Follower` looks at one
block alone: first it keeps the geometry of its accesses (which elements each lane reads and
writes), which is small; then, in a second run, the values of the few elements that matter. Blocks
that cannot matter are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.runtime.codecs import CODECS
from tlmatrix.interpreter.runtime.elements import Event, IndexArrays, Tile, element_values

if TYPE_CHECKING:
    from tlmatrix.interpreter.ir.nodes import Location
    from tlmatrix.interpreter.program import Record
    from tlmatrix.interpreter.runtime.codecs import Array
    from tlmatrix.interpreter.runtime.elements import Access, Iteration


@dataclass
class LoopRange:
    """A loop as a block ran it.

    Attributes:
        name: its variable; empty for a while loop.
        location: the user's line.
        depth: how many loops are around it.
        ranged: the range of its first run, if it has one.
        entries: how often it ran.
        iterations: how many iterations ran in all.
        first: smallest value of the variable (the number of the iteration where there is none).
        last: largest value; None, as `first`, where no iteration ran.
    """

    name: str
    location: Location | None
    depth: int
    ranged: range | None
    entries: int = 0
    iterations: int = 0
    first: int | None = None
    last: int | None = None


@dataclass
class BlockRun:
    """What one block did.

    Attributes:
        grid: the number of its grid.
        index: its index in the grid.
        loops: by number of the loop, in the order in which they started.
    """

    grid: int
    index: tuple[int, ...]
    loops: dict[int, LoopRange] = field(default_factory=dict)


@dataclass(frozen=True)
class Write:
    """A write of the element that a map looks out for; `value` is what it then held."""

    block: BlockRun
    site: int
    iteration: Iteration
    value: float


Source = tuple[int, Any, Tile]
"""What a tile operation reads: the site, the array (None if no rule needs it), the region."""


class _Recorder:
    """Keeps the block and the iteration that run.

    What only the block sees is noted where `enter` gives 2: by a `Follower`.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        self._stack: list[list[int]] = []

    def enter(self, grid: int, index: tuple[int, ...]) -> int:
        """A block starts; whether to skip it (0), to note global writes (1) or everything (2)."""
        del grid, index
        self._stack.clear()
        return 1

    def _iteration(self) -> Iteration:
        return tuple((entry[0], entry[1]) for entry in self._stack)

    def loop(self, number: int, ranged: range | None = None) -> None:
        """A loop is about to start."""
        del ranged
        self._stack.append([number, -1])

    def iteration(self, value: int | None = None) -> None:
        """An iteration of the innermost loop starts."""
        top = self._stack[-1]
        top[1] = top[1] + 1 if value is None else int(value)

    def leave(self, number: int) -> None:
        """A loop has ended."""
        while self._stack.pop()[0] != number:
            pass

    def begin(self, line: int) -> None:
        """A statement starts."""

    def one(self, site: int, shape: tuple[int, ...], index: tuple[int, ...], value: Any) -> Any:
        """A single element, or a variable, was read in the middle of an expression: `value`."""
        del site, shape, index
        return value

    def read(self, site: int, access: Access) -> None:
        """Iterations are about to read."""

    def wrote(
        self,
        site: int,
        array: Any,
        access: Access,
        sources: tuple[Source, ...] | None = None,
        rule: str = "lanes",
        *extra: Any,
    ) -> None:
        """An access has written an array, or a value that has a name.

        Args:
            site: the site.
            array: what holds the elements now.
            access: which of them were written.
            sources: what a tile operation read; None of iterations, whose reads came before.
            rule: how elements written depend on elements read (`Event`).
            extra: what else the rule needs.
        """

    def _values(self, site: int, array: Any, flat: Array) -> Array:
        codec = CODECS.get(self.record.sites[site].codec or "")
        return element_values(array, codec, flat)


class Mapper(_Recorder):
    """A whole launch: the writers of one element, and the loops that each block ran.

    Attributes:
        blocks: in the order in which they ran.
        writes: all writes of the element `target`: (memory, flat index).
    """

    def __init__(self, record: Record, target: tuple[str, int]) -> None:
        super().__init__(record)
        self.blocks: list[BlockRun] = []
        self.writes: list[Write] = []
        self._memory, self._element = target
        self._block = BlockRun(0, ())

    def enter(self, grid: int, index: tuple[int, ...]) -> int:
        """A block starts."""
        self._block = BlockRun(grid, index)
        self.blocks.append(self._block)
        return super().enter(grid, index)

    def loop(self, number: int, ranged: range | None = None) -> None:
        """A loop is about to start."""
        depth = len(self._stack)
        super().loop(number)
        loop = self.record.loops[number]
        run = LoopRange(loop.name, loop.location, depth, ranged)
        self._block.loops.setdefault(number, run).entries += 1

    def iteration(self, value: int | None = None) -> None:
        """An iteration of the innermost loop starts."""
        super().iteration(value)
        number, at = self._stack[-1]
        run = self._block.loops[number]
        run.iterations += 1
        run.first = at if run.first is None else min(run.first, at)
        run.last = at if run.last is None else max(run.last, at)

    def wrote(self, site: int, array: Any, access: Access, *_data: Any) -> None:
        """Global memory was written."""
        if self.record.sites[site].memory == self._memory and access.holds(self._element):
            value = float(self._values(site, array, np.array([self._element]))[0])
            self.writes.append(Write(self._block, site, self._iteration(), value))


class Keeper(_Recorder):
    """The global memory that a run writes: `arrays` by memory, as they are at the end."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self.arrays: dict[str, Array] = {}

    def wrote(self, site: int, array: Any, *_access: Any) -> None:
        """Global memory was written."""
        self.arrays[self.record.sites[site].memory] = array


class Follower(_Recorder):
    """One block: the geometry of all it does, or the values of what is wanted.

    Attributes:
        events: what the block wrote, in order; empty where values are wanted.
        values: by number of the event the values of the elements asked for, in float64.
    """

    def __init__(
        self,
        record: Record,
        block: tuple[int, tuple[int, ...]],
        *,
        alone: bool,
        wanted: Mapping[int, Array] | None = None,
    ) -> None:
        super().__init__(record)
        self.events: list[Event] = []
        self.values: dict[int, Array] = {}
        self._chosen = block
        self._others = 0 if alone else 1
        self._wanted = wanted
        self._on = False
        self._count = 0
        self._reads: list[tuple[int, Access]] = []

    def enter(self, grid: int, index: tuple[int, ...]) -> int:
        """A block starts."""
        self._stack.clear()
        self._on = (grid, index) == self._chosen
        return 2 if self._on else self._others

    def begin(self, line: int) -> None:
        """A statement starts: what conditions and loop bounds read is not its data."""
        del line
        self._reads.clear()

    def one(self, site: int, shape: tuple[int, ...], index: tuple[int, ...], value: Any) -> Any:
        """A single element, or a variable, was read."""
        self.read(site, IndexArrays(shape, index, None))
        return value

    def read(self, site: int, access: Access) -> None:
        """Iterations are about to read."""
        if self._on and self._wanted is None:
            self._reads.append((site, access.kept()))

    def wrote(
        self,
        site: int,
        array: Any,
        access: Access,
        sources: tuple[Source, ...] | None = None,
        rule: str = "lanes",
        *extra: Any,
    ) -> None:
        """Something was written: an event, or values that are wanted."""
        if not self._on:
            return
        number = self._count
        self._count += 1
        if self._wanted is not None:
            flat = self._wanted.get(number)
            if flat is not None:
                value = np.broadcast_to(array, access.shape)
                self.values[number] = self._values(site, value, flat)
            return
        reads: tuple[tuple[int, Access], ...]
        reads = tuple((source, region) for source, _, region in sources or ())
        if sources is None or rule in ("fill", "atomic"):
            reads = (*self._reads, *reads)
        if rule == "gemm" and sources is not None:
            # A factor that is zero adds nothing: what it multiplies did not make the sum, unless
            # that is not finite.
            left, right = (self._matrix(source) for source in sources[:2])
            extra = (*extra, np.packbits(left == 0), np.packbits(~np.isfinite(right)))
        event = Event(number, site, self._iteration(), access.kept(), reads, rule, extra)
        self.events.append(event)

    def _matrix(self, source: Source) -> Array:
        site, array, region = source
        return region.matrix(array, CODECS.get(self.record.sites[site].codec or ""))
