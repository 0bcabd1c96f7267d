"""The lanes of some blocks of a launch, and what they share and wait for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.errors import DeadlockError, SynchronizationError, Unsupported
from tlmatrix.interpreter.gpu import WARP

from . import findings, races
from .barriers import Barriers, Named
from .clocks import Clocks, Shadow
from .memory import Memory, PackedView, View
from .registers import Registers

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from tlmatrix.interpreter.ir.nodes import Location
    from tlmatrix.interpreter.reports import ReportSet
    from tlmatrix.interpreter.runtime.codecs import Array

    from .program import DeviceProgram


_CHUNK = 16
"""Bytes that a swizzle leaves together."""
_GROUP = 4096
"""Clocks of one group of asynchronous work."""


_ITERATIONS = 20_000
"""More than a loop has that counts work; one that waits has no end."""


@dataclass(frozen=True)
class Watching:
    """What is looked for while lanes run.

    Attributes:
        sanitizers: names of those that are on.
        reports: where findings go.
        kernel: the name that findings call the kernel.
    """

    sanitizers: frozenset[str]
    reports: ReportSet
    kernel: str


class Units:
    """What works asynchronously for warps, in groups that they commit and wait for.

    The clock of what a unit starts is `_GROUP` times the number of its group, and how often an
    mbarrier has tracked copies since the group began.
    """

    def __init__(self, machine: Machine) -> None:
        """Nothing has started."""
        self._machine = machine
        self._now: dict[str, Array] = {}
        self._started: dict[str, Array] = {}
        self._copying = np.zeros(machine.count, bool)  # lanes with copies that nothing tracks

    def now(self, unit: str) -> Array:
        """The clock of what a unit starts now: [blocks, columns]."""
        if unit not in self._now:
            clocks = self._machine.noted
            columns = clocks.groups if unit == "products" else clocks.warps
            self._now[unit] = np.full((clocks.blocks, columns), _GROUP, np.int32)
        return self._now[unit]

    def _columns(self, unit: str, mask: Any) -> Array:
        """Which of a unit are of warps that are switched on: [blocks, columns]."""
        clocks = self._machine.noted
        active: Array = clocks.active(mask)
        if unit != "products":
            return active
        short = clocks.groups * 4 - clocks.warps
        if short:
            active = np.concatenate([active, np.zeros((clocks.blocks, short), bool)], axis=1)
        found: Array = np.any(active.reshape(clocks.blocks, clocks.groups, 4), axis=-1)
        return found

    def running(self, unit: str, lanes: Array) -> tuple[Array, Array]:
        """The agents that work for lanes, and the clocks of what they do now."""
        clocks = self._machine.noted
        column = clocks.warp[lanes] // (4 if unit == "products" else 1)
        clock = self.now(unit)[clocks.block[lanes], column]
        if unit not in self._started:
            self._started[unit] = np.zeros_like(self.now(unit))
        self._started[unit][clocks.block[lanes], column] = clock
        if unit == "copies":
            self._copying[lanes] = True
        return getattr(clocks, unit) + column, clock

    def commit(self, unit: str, mask: Any) -> None:
        """What was started is a group."""
        if self._machine.clocks is not None:
            now = self.now(unit)
            now[...] += (_GROUP - now % _GROUP) * self._columns(unit, mask)

    def cut(self, lanes: Array) -> Array:
        """An mbarrier tracks the copies of lanes so far; their clocks, 0 of other warps.

        Raises:
            Unsupported: lanes of a warp that it does not track copy as well.
        """
        clocks = self._machine.noted
        active: Array = clocks.active(lanes)
        if (active & clocks.active(self._copying & ~lanes)).any():
            raise Unsupported("an mbarrier that tracks cp.async of some lanes of a warp only")
        self._copying &= ~lanes
        now = self.now("copies")
        copied = np.where(active, now, 0)
        now += active
        if (active & (now % _GROUP == 0)).any():
            raise Unsupported(f"mbarriers that track one group of cp.async {_GROUP} times")
        return copied

    def wait(self, unit: str, left: int, mask: Any) -> None:
        """Wait until so many groups at most have not ended."""
        clocks = self._machine.clocks
        if clocks is None:
            return
        ended = np.maximum((self.now(unit) // _GROUP - left) * _GROUP - 1, 0)
        first = getattr(clocks, unit)
        active: Array = clocks.active(mask)
        if unit == "copies":
            # Each lane waits for its own copies.
            np.maximum(clocks.waited, ended, out=clocks.waited, where=active)
            if not left:
                self._copying &= False if mask is None else ~mask
            return
        if unit == "products":
            group = np.arange(clocks.warps) // 4
            ended = ended[:, group]
            agents = first + group
        else:
            agents = first + np.arange(clocks.warps)
        rows, warps = np.nonzero(active)
        at = clocks.known[rows, warps, agents[warps]]
        clocks.known[rows, warps, agents[warps]] = np.maximum(at, ended[rows, warps])

    def unfinished(self, unit: str) -> tuple[Array, Array]:
        """Blocks and warps that did not wait for what a unit of them does."""
        clocks = self._machine.noted
        own = np.arange(clocks.warps)
        ended = clocks.known[:, own, getattr(clocks, unit) + own]
        found = np.nonzero(self._started.get(unit, ended) > ended)
        return found[0], found[1]


class Machine:
    """Lanes that execute a program together: all threads of some blocks.

    Attributes:
        blocks: how many blocks.
        threads: threads of a block.
        count: lanes, blocks times threads.
        lanes: their numbers, [lanes].
        block: the number of each lane's block among these.
        index: the index of each lane's block in the grid, (x, y, z).
        thread: of each lane in its block.
        stride: from the shared memory of a block to that of the next, in bytes.
        watched: the sanitizers for which accesses are noted.
        register_counts: what warps have set by `setmaxnreg` and where, [2, blocks, warps]: the last
            count, 0 before, and the site. None before the first.
    """

    _whole: tuple[Any, Array] = (None, np.zeros(0, np.int64))  # of the last mask

    def __init__(
        self,
        program: DeviceProgram,
        grid: tuple[int, ...],
        chosen: Array,
        shared_bytes: int,
        watching: Watching,
        memories: Sequence[Memory] = (),
    ) -> None:
        """Lanes of the blocks with the numbers `chosen`, x first, and the tensors of a launch."""
        self._memories, self._arrived = memories, 0
        self.register_counts: Array | None = None
        self.program, self.watching = program, watching
        self.threads, self.blocks = math.prod(program.threads), len(chosen)
        self.count = self.threads * self.blocks
        self.lanes = np.arange(self.count)
        self.block = self.lanes // self.threads
        number = np.asarray(chosen)[self.block]
        x, y = (*grid, 1)[:2]
        self.index = (number % x, number // x % y, number // (x * y))
        thread = self.lanes % self.threads
        tx, ty, _ = program.threads
        self.thread = (thread % tx, thread // tx % ty, thread // (tx * ty))
        self.stride = -(-max(shared_bytes, 1) // 1024) * 1024
        self._shared_bytes = shared_bytes
        watched = watching.sanitizers & {"races", "uninitialised"}
        slots = sum(program.barriers.values())
        self.clocks = Clocks(np.asarray(chosen), self.threads, slots) if watched else None
        self.barriers = Barriers(self.blocks, slots, self.clocks)
        self.named = Named(self.blocks, self.clocks)
        self.units = Units(self)
        self.registers = Registers(self)
        self.progress = 0
        self.watched = watched

    @property
    def noted(self) -> Clocks:
        """The clocks, where accesses are noted."""
        assert self.clocks is not None
        return self.clocks

    @cached_property
    def arena(self) -> Memory:
        """The shared memory of all blocks; the dynamic one begins at 0."""
        data = np.full(self.stride * self.blocks, 0xFF, np.uint8)
        shadow = None
        if self.clocks is not None:
            size = self.program.unit
            shadow = Shadow(size, len(data) // size, self.clocks.copies)
        return Memory(
            "shared", data, self._shared_bytes, self.block * self.stride, 0, shadow, "shared"
        )

    def shared(self, name: str, dtype: str, offset: int) -> View:
        """A buffer in shared memory, from a byte on."""
        return self._view(dtype)(self, name, self.arena, dtype, offset)

    def tensor(self, name: str, dtype: str, memory: Memory) -> View:
        """A tensor that the kernel got, as elements of a dtype."""
        return self._view(dtype)(self, name, memory, dtype)

    @staticmethod
    def _view(dtype: str) -> type[View]:
        return View if TILE_DTYPES[dtype].bytes else PackedView

    def local(self, size: int, dtype: str) -> Array:
        """Memory that each lane has for itself, of no defined content: [size, lanes]."""
        kind = TILE_DTYPES[dtype]
        if kind.kind == "float":
            return np.full((size, self.count), np.nan, kind.carrier)
        if kind.kind == "bool":
            return np.zeros((size, self.count), bool)
        return np.full((size, self.count), kind.poison or 0x5B, np.int64)

    # -- groups of lanes

    def warps(self, value: Any) -> Array:
        """A value of each lane by warps: [..., warps, 32]."""
        value = np.asarray(value)
        full = np.broadcast_to(value, (*value.shape[:-1], self.count) if value.ndim else self.count)
        if self.threads % WARP:
            raise SynchronizationError(
                f"an operation of warps in a block of {self.threads} threads"
            )
        return full.reshape(*full.shape[:-1], -1, WARP)

    def whole_warps(self, mask: Any, what: str) -> Array:
        """Numbers of the warps that are switched on.

        Raises:
            SynchronizationError: for a warp of which only some lanes are.
        """
        if mask is None:
            return np.arange(self.count // WARP)
        if mask is not self._whole[0]:
            lanes = self.warps(mask)
            if (lanes.any(-1) != lanes.all(-1)).any():
                raise SynchronizationError(f"{what} by some lanes of a warp only")
            self._whole = mask, np.flatnonzero(lanes[:, 0])
        return self._whole[1]

    # -- synchronization

    def synchronize(self, mask: Any, number: int, count: int) -> Generator[str, None, None]:
        """Wait at a named barrier of the block for `count` threads; 0 is `__syncthreads`."""
        active = self._lanes_of_blocks(mask)
        waits = self.named.arrive(number, count or self.threads, active, self._active(mask))
        while not self.named.passed(waits):
            yield f"barrier {number}"
        self.progress += 1
        if self.clocks is not None:
            self.named.join(waits, self._active(mask))

    def _lanes_of_blocks(self, mask: Any) -> Array:
        if mask is None:
            return np.full(self.blocks, self.threads)
        lanes = np.broadcast_to(mask, (self.count,)).reshape(self.blocks, -1)
        counted: Array = np.count_nonzero(lanes, 1)
        return counted

    def _active(self, mask: Any) -> Array | None:
        return self.clocks.active(mask) if self.clocks is not None else None

    def synchronize_all(self, mask: Any, number: int = 0, count: int = 0) -> None:
        """As `synchronize`, in a program of which no part runs beside another."""
        for _ in self.synchronize(mask, number, count):
            at = self._lanes_of_blocks(mask).max()
            raise DeadlockError(
                f"a barrier of {count or self.threads} threads is reached by {at} of a block"
            )

    def synchronize_grid(self, mask: Any) -> Generator[str, None, None]:
        """Wait for all threads of the launch, which are the lanes of this machine."""
        for _ in self.synchronize(mask, 0, 0):
            yield "T.sync_grid: not all threads of a block reach it"
        arrived, self._arrived = (
            self._arrived,
            self._arrived + int(self._lanes_of_blocks(mask).sum()),
        )
        phase = arrived // self.count
        if self._arrived % self.count == 0:
            for memory in self._memories:  # what blocks did so far is over
                if memory.shadow is not None:
                    memory.shadow = memory.shadow.cleared()
        while self._arrived // self.count == phase:
            yield "T.sync_grid"
        self.progress += 1

    def iterated(self, count: int) -> int:
        """Count an iteration of a loop that loads flags, or uses what atomics return.

        Raises:
            Unsupported: it waits for what does not come: blocks run one after another.
        """
        if count >= _ITERATIONS:
            raise Unsupported(f"a loop of more than {_ITERATIONS} iterations that waits for others")
        return count + 1

    def warp_synchronized(self, mask: Any) -> None:
        """The lanes of each warp have waited for one another."""
        if self.clocks is not None:
            self.clocks.synchronize(self.clocks.active(mask))

    def set_registers(self, count: int, mask: Any, site: int) -> None:
        """`setmaxnreg` to `count` a thread."""
        if self.clocks is None:
            return
        if self.register_counts is None:
            self.register_counts = np.zeros((2, self.blocks, self.clocks.warps), np.int64)
        set_by = self.clocks.active(mask)
        self.register_counts[0, set_by], self.register_counts[1, set_by] = count, site

    def warp_groups_fenced(self, mask: Any) -> None:
        """`wgmma.fence`."""
        self.warp_synchronized(mask)
        self.registers.fence(mask)

    def fence_proxy(self, mask: Any) -> None:
        """Asynchronous units see what the warps have written and seen so far."""
        if self.clocks is not None:
            self.clocks.fence(self.clocks.active(mask))

    # -- mbarriers

    def _at(self, number: Any, mask: Any) -> list[tuple[Array, Array, Array, Array]]:
        """The barriers that lanes name: for each, blocks, its number in them, and lanes."""
        on = self.lanes if mask is None else self.lanes[np.broadcast_to(mask, (self.count,))]
        numbers = np.broadcast_to(np.asarray(number), (self.count,))[on]
        block = self.block[on]
        found = []
        while len(on):
            # In each block the barrier of its first lane.
            blocks, first = np.unique(block, return_index=True)
            chosen = np.zeros(self.blocks, np.int64)
            chosen[blocks] = numbers[first]
            mine = numbers == chosen[block]
            counts = np.bincount(block[mine], minlength=self.blocks)[blocks]
            lanes = np.zeros(self.count, bool)
            lanes[on[mine]] = True
            found.append((blocks, numbers[first], counts, lanes))
            on, numbers, block = on[~mine], numbers[~mine], block[~mine]
        return found

    def initialize(self, number: Any, count: Any, mask: Any) -> None:
        """`mbarrier.init` with a count of arrivals."""
        self.progress += 1
        for blocks, numbers, _, lanes in self._at(number, mask):
            self.barriers.initialize(blocks, numbers, count, lanes)

    def _initialized(self, blocks: Array, numbers: Array, lanes: Array, site: int = 0) -> None:
        """Report a use of barriers that nothing orders after their initialization.

        Raises:
            SynchronizationError: nothing has initialized one.
        """
        where = f" at {self.site(site)}" if site else ""
        if not self.barriers.count[blocks, numbers].all():
            raise SynchronizationError(f"an mbarrier is used before its initialization{where}")
        late = self.barriers.before_initialization(blocks, numbers, lanes)
        if late.any() and "races" in self.watched:
            k = int(np.flatnonzero(late)[0])
            lane = int(np.flatnonzero(lanes & (self.block == blocks[k]))[0])
            name = f"mbarrier {numbers[k]}"
            by = findings.thread_name(self, lane)
            message = f"use of {name} by {by}, which nothing orders with its initialization"
            findings.report(self, "races", name, (), lane, site, message, int(late.sum()))

    def arrive(self, number: Any, mask: Any) -> None:
        """Lanes arrive at barriers."""
        self.progress += 1
        for blocks, numbers, counts, lanes in self._at(number, mask):
            self._initialized(blocks, numbers, lanes)
            self.barriers.arrive(blocks, numbers, counts, lanes)

    def arrive_after_copies(self, number: Any, mask: Any) -> None:
        """Lanes arrive at barriers when their `cp.async` so far are done."""
        self.progress += 1
        for blocks, numbers, counts, lanes in self._at(number, mask):
            self._initialized(blocks, numbers, lanes)
            copied = self.units.cut(lanes) if self.clocks is not None else None
            self.barriers.arrive(blocks, numbers, counts, lanes, copied)

    def expect(self, number: Any, size: Any, mask: Any) -> None:
        """The phase of barriers also waits for bytes, so many for each lane."""
        self.progress += 1
        for blocks, numbers, counts, lanes in self._at(number, mask):
            self._initialized(blocks, numbers, lanes)
            self.barriers.expect(blocks, numbers, np.max(size) * counts)

    def brought(
        self, lanes: Array, number: Array, size: int, view: View, to: Array, site: int
    ) -> None:
        """Copies write to shared memory, one of each lane, and bring bytes to barriers."""
        self.progress += 1
        shadow, clocks = self.arena.shadow, self.clocks
        copied = np.zeros(len(lanes), np.int32)
        for k in range(len(lanes)):
            block = self.block[lanes[k] : lanes[k] + 1]
            copied[k] = self.barriers.brought(block, number[k : k + 1], size)[0]
        if shadow is None or clocks is None:
            return
        units = races.rows_of(view, to)
        lane_of = np.broadcast_to(lanes[:, None], units.shape).ravel()
        flat = units.ravel()
        agent = np.broadcast_to((clocks.barriers + number)[:, None], units.shape).ravel()
        clock = np.broadcast_to(copied[:, None], units.shape).ravel()
        # A copy to bytes that are in use: of what the copying thread does not know.
        late = ~shadow.after_reads(clocks, flat, lane_of)
        findings.late_races(self, view, flat, lane_of, late, "write", site, "read")
        late = ~shadow.after_write(clocks, flat, lane_of) & ~shadow.unwritten(flat)
        late &= (shadow.agent[flat] != agent) | (shadow.clock[flat] != clock)
        findings.late_races(self, view, flat, lane_of, late, "write", site, "write")
        shadow.started(flat, agent, clock, site)

    def wait(self, number: Any, parity: Any, mask: Any, site: int) -> Generator[str, None, None]:
        """Wait until the phase of a parity has ended."""
        groups = self._at(number, mask)
        parities = np.broadcast_to(np.asarray(parity), (self.count,))
        waits = [
            (
                blocks,
                numbers,
                parities[[np.flatnonzero(lanes & (self.block == b))[0] for b in blocks]],
                lanes,
            )
            for blocks, numbers, _, lanes in groups
        ]
        for blocks, numbers, awaited, lanes in waits:
            self._initialized(blocks, numbers, lanes, site)
            self.barriers.begin(blocks, numbers, awaited, lanes, site)
        while not all(self.barriers.passed(*each[:3]) for each in waits):
            yield f"a wait at {self.site(site)}"
        self.progress += 1
        for blocks, numbers, _, lanes in waits:
            self.barriers.join(
                blocks, numbers, self.clocks.active(lanes) if self.clocks is not None else lanes
            )

    # -- asynchronous units

    def arena_elements(
        self, place: Array, block: Array, leaders: Array, dtype: str, site: int
    ) -> Array:
        """Elements of shared memory that `wgmma` of warp groups reads.

        By the first bytes of chunks of 16 bytes, [groups, lines, chunks]; [groups, lines, …].
        """
        end = self._shared_bytes - _CHUNK
        view = View(self, "shared memory of wgmma", self.arena, dtype, 0)
        bad = (place < 0) | (place > end)
        if bad.any():
            group = int(np.flatnonzero(bad.any((1, 2)))[0])
            index = np.zeros(self.count, np.int64)
            index[leaders[group]] = place[bad][0] // view.itemsize
            lanes = np.zeros(self.count, bool)
            lanes[leaders[group]] = True
            findings.outside(self, view, index, lanes, 1, site, "read")
            place = np.clip(place, 0, max(end, 0))
        at = place + (block * self.stride)[:, None, None]
        if self.arena.shadow is not None:
            units = at.reshape(len(at), -1, 1) + np.arange(0, _CHUNK, view.itemsize)
            races.unit_reads(self, "products", leaders, view, units.reshape(len(at), -1), site)
        chunks = self.arena.typed(np.complex128)[at // _CHUNK]
        return view.decoded(chunks.view(view.kind))

    # -- findings

    def site(self, number: int) -> Location | None:
        """The user's line of a site."""
        return self.program.sites[number if number >= 0 else -number - 1]

    def place(self, lane: int) -> tuple[int, ...]:
        """The index in the grid of a lane's block."""
        found = tuple(int(axis[lane]) for axis in self.index)
        return found[: self.program.axes]
