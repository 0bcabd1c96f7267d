"""What a recorded program calls: the writers of an element, and every access of one block.

A `Mapper` runs with every block and finds the writers of an element. A `Follower` looks at one
block alone: first it keeps the geometry of its accesses (which elements each lane reads and
writes), which is small; then, in a second run, the values of the few elements that matter. Blocks
that cannot matter are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .codecs import CODECS
from .elements import Access, IndexArrays, Tile, element_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.interpreter.program import Record

    from .codecs import Array

__all__ = ["BlockRun", "Event", "Follower", "Iteration", "Keeper", "LoopRun", "Mapper", "Write"]

Iteration = tuple[tuple[int, int], ...]
"""Which iteration of each loop is running, outermost first: (number of the loop, its variable)."""


@dataclass
class LoopRun:
    """How a block ran a loop: its variable from `first` to `last`, `iterations` in `entries`."""

    loop: int
    depth: int
    entries: int = 0
    iterations: int = 0
    first: int | None = None
    last: int | None = None
    ranged: range | None = None


@dataclass
class BlockRun:
    """What one block did.

    Attributes:
        number: its running number, from 1.
        grid: the number of its grid.
        index: its index in the grid.
        loops: by number of the loop, in the order in which they started.
    """

    number: int
    grid: int
    index: tuple[int, ...]
    loops: dict[int, LoopRun] = field(default_factory=dict)


@dataclass(frozen=True)
class Write:
    """A write of the element that a map looks out for; `value` is what it then held."""

    block: int
    site: int
    iteration: Iteration
    value: float


@dataclass(frozen=True)
class Event:
    """A write in the block that is followed, and what it read.

    `rule` says how elements written depend on elements read: "lanes" (each lane on what it
    read), or the name of a tile operation, with its own `extra`.
    """

    number: int
    site: int
    iteration: Iteration
    write: Access
    reads: tuple[tuple[int, Access], ...]
    rule: str
    extra: tuple[Any, ...] = ()


class _Recorder:
    """Keeps the block and the iteration that run."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self._stack: list[list[int]] = []

    def enter(self, grid: int, index: tuple[int, ...]) -> int:
        """A block starts."""
        raise NotImplementedError

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

    def one(self, site: int, array: Array | None, index: tuple[int, ...], value: Any) -> Any:
        """A single element, or a variable, was read in the middle of an expression: `value`."""
        del site, array, index
        return value

    def read(self, site: int, array: Array, index: tuple[Any, ...], mask: Any) -> None:
        """Iterations are about to read."""

    def wrote(
        self, site: int, array: Array, index: tuple[Any, ...], mask: Any, lanes: tuple[int, ...]
    ) -> None:
        """Iterations have written."""

    def tile(
        self,
        site: int,
        sources: tuple[tuple[int, Array, tuple[Any, ...]], ...],
        array: Array,
        dims: tuple[Any, ...],
        *extra: Any,
    ) -> None:
        """A tile operation is done."""

    def named(
        self, site: int, value: Any, shape: tuple[int, ...], index: tuple[Any, ...], mask: Any
    ) -> None:
        """A float has got a name."""

    def recalled(
        self, site: int, shape: tuple[int, ...], index: tuple[Any, ...], mask: Any
    ) -> None:
        """A named float is read."""

    def assigned(self, site: int, value: Any) -> None:
        """A variable has been set."""

    def spread(
        self, one: int, array: Array | None, many: int, copies: Array, outward: bool
    ) -> None:
        """A local buffer has got one copy a lane, or is one again."""


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
        self._block = BlockRun(0, 0, ())

    def enter(self, grid: int, index: tuple[int, ...]) -> int:
        """A block starts; its global writes are noted."""
        self._stack.clear()
        self._block = BlockRun(len(self.blocks) + 1, grid, index)
        self.blocks.append(self._block)
        return 1

    def loop(self, number: int, ranged: range | None = None) -> None:
        """A loop is about to start."""
        depth = len(self._stack)
        super().loop(number)
        run = self._block.loops.setdefault(number, LoopRun(number, depth))
        run.entries += 1
        if run.entries == 1:
            run.ranged = ranged

    def iteration(self, value: int | None = None) -> None:
        """An iteration of the innermost loop starts."""
        super().iteration(value)
        number, at = self._stack[-1]
        run = self._block.loops[number]
        run.iterations += 1
        run.first = at if run.first is None else min(run.first, at)
        run.last = at if run.last is None else max(run.last, at)

    def wrote(
        self, site: int, array: Array, index: tuple[Any, ...], mask: Any, lanes: tuple[int, ...]
    ) -> None:
        """Iterations have written global memory."""
        if self.record.sites[site].memory == self._memory:
            flat = IndexArrays(array.shape, index, mask, lanes).elements()
            self._note(site, array, inside=bool((flat == self._element).any()))

    def tile(
        self,
        site: int,
        sources: tuple[tuple[int, Array, tuple[Any, ...]], ...],
        array: Array,
        dims: tuple[Any, ...],
        *extra: Any,
    ) -> None:
        """A tile operation is done."""
        del sources, extra
        if self.record.sites[site].memory == self._memory:
            self._note(site, array, inside=Tile(array.shape, dims).holds(self._element))

    def _note(self, site: int, array: Array, *, inside: bool) -> None:
        if not inside:
            return
        codec = CODECS.get(self.record.sites[site].codec or "")
        value = element_values(array, codec, np.array([self._element]))[0]
        self.writes.append(Write(self._block.number, site, self._iteration(), float(value)))


class Keeper(_Recorder):
    """The global memory that a run writes: `arrays` by memory, as they are at the end."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self.arrays: dict[str, Array] = {}

    def enter(self, grid: int, index: tuple[int, ...]) -> int:
        """A block starts; none is skipped."""
        del grid, index
        self._stack.clear()
        return 1

    def wrote(
        self, site: int, array: Array, index: tuple[Any, ...], mask: Any, lanes: tuple[int, ...]
    ) -> None:
        """Iterations have written global memory."""
        del index, mask, lanes
        self.arrays[self.record.sites[site].memory] = array

    def tile(
        self,
        site: int,
        sources: tuple[tuple[int, Array, tuple[Any, ...]], ...],
        array: Array,
        dims: tuple[Any, ...],
        *extra: Any,
    ) -> None:
        """A tile operation is done."""
        del sources, dims, extra
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

    def _note(self, site: int, access: Access) -> None:
        if self._on and self._wanted is None:
            self._reads.append((site, access))

    def _event(
        self,
        site: int,
        write: Access,
        array: Array | None,
        value: Any,
        rule: str = "lanes",
        extra: tuple[Any, ...] = (),
        reads: tuple[tuple[int, Access], ...] | None = None,
    ) -> None:
        number = self._count
        self._count += 1
        if self._wanted is not None:
            flat = self._wanted.get(number)
            if flat is None:
                return
            codec = CODECS.get(self.record.sites[site].codec or "")
            source = array if array is not None else np.broadcast_to(value, write.shape)
            self.values[number] = element_values(source, codec, flat)
            return
        found = tuple(self._reads) if reads is None else reads
        self.events.append(Event(number, site, self._iteration(), write, found, rule, extra))

    def one(self, site: int, array: Array | None, index: tuple[int, ...], value: Any) -> Any:
        """A single element, or a variable, was read."""
        self._note(site, IndexArrays(() if array is None else array.shape, index, None))
        return value

    def read(self, site: int, array: Array, index: tuple[Any, ...], mask: Any) -> None:
        """Iterations are about to read."""
        self._note(site, IndexArrays(array.shape, index, mask).kept())

    def recalled(
        self, site: int, shape: tuple[int, ...], index: tuple[Any, ...], mask: Any
    ) -> None:
        """A named float is read."""
        self._note(site, IndexArrays(shape, index, mask).kept())

    def wrote(
        self, site: int, array: Array, index: tuple[Any, ...], mask: Any, lanes: tuple[int, ...]
    ) -> None:
        """Iterations have written."""
        if self._on:
            self._event(site, IndexArrays(array.shape, index, mask, lanes).kept(), array, None)

    def named(
        self, site: int, value: Any, shape: tuple[int, ...], index: tuple[Any, ...], mask: Any
    ) -> None:
        """A float has got a name."""
        if self._on:
            self._event(site, IndexArrays(shape, index, mask).kept(), None, value)

    def assigned(self, site: int, value: Any) -> None:
        """A variable has been set."""
        if self._on:
            self._event(site, IndexArrays((), (), None), None, value)

    def tile(
        self,
        site: int,
        sources: tuple[tuple[int, Array, tuple[Any, ...]], ...],
        array: Array,
        dims: tuple[Any, ...],
        *extra: Any,
    ) -> None:
        """A tile operation is done."""
        if not self._on:
            return
        rule = self.record.sites[site].action
        if rule == "gemm" and self._wanted is None:
            # A factor that is zero adds nothing: what it multiplies did not make the sum, unless
            # that is not finite.
            left, right = (self._matrix(source) for source in sources[:2])
            extra = (*extra, np.packbits(left == 0), np.packbits(~np.isfinite(right)))
        reads: tuple[tuple[int, Access], ...] = tuple((n, Tile(a.shape, d)) for n, a, d in sources)
        if rule in ("fill", "atomic"):
            reads = (*self._reads, *reads)
        self._event(site, Tile(array.shape, dims), array, None, rule, extra, reads)

    def _matrix(self, source: tuple[int, Array, tuple[Any, ...]]) -> Array:
        site, array, region = source
        codec = CODECS.get(self.record.sites[site].codec or "")
        return Tile(array.shape, region).matrix(array, codec)

    def spread(
        self, one: int, array: Array | None, many: int, copies: Array, outward: bool
    ) -> None:
        """A local buffer has got one copy a lane, or is one again."""
        if not self._on:
            return
        shape = () if array is None else array.shape
        single, lanes = Tile.whole(shape), Tile.whole(copies.shape)
        if outward:
            self._event(many, lanes, copies, None, "spread", (), ((one, single),))
        elif array is None:
            value = copies.reshape(-1)[0]
            self._event(one, single, None, value, "collapse", (), ((many, lanes),))
        else:
            self._event(one, single, array, None, "collapse", (), ((many, lanes),))
