"""Which accesses of threads to memory are ordered: vector clocks of warps and asynchronous units.

As in FastTrack (Flanagan and Freund, PLDI 2009), each unit of memory keeps its last write and its
last reads as (agent, clock), and an access is ordered after them if its agent knows that clock.
The agents of a block are its warps, and what works asynchronously for them: bulk stores, groups of
wgmma, `cp.async`, and copies that complete on an mbarrier. The lanes of a warp share its clock:
what one of them did before the clock at which they last synchronized, the others know.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.gpu import WARP

if TYPE_CHECKING:
    from tlmatrix.interpreter.runtime.codecs import Array

_GROUP = 4
"""Warps of a warp group."""
_NEVER = 0
"""The clock of a write that did not happen."""
_UNIT, _ALL, _SEVERAL = -1, -2, -3
"""In place of a lane: an asynchronous unit, lanes of all warps, and less the number of its warp,
several lanes of a warp."""
_NO_BLOCK, _BLOCKS = -1, -2
"""In place of the number of a block: none, and several."""


class Clocks:
    """The clocks of the agents of some blocks.

    Attributes:
        warps: warps of a block, W.
        groups: its warp groups.
        agents: all agents of a block, A.
        block, number, warp: of each lane, its block among these and in the grid, and its warp.
        known: [blocks, W, A]: the clock of each agent that a warp has seen; its own at its place.
        synced: [blocks, W]: the warp's own clock when its lanes last waited for one another.
        waited: [blocks, W]: the groups of `cp.async` that each lane knows to have ended, of those
            that it started itself.
        proxied: [blocks, W, W]: the writes of warps that a proxy fence of the path has covered.
        alone: [blocks, W, W * 32]: up to which clock a warp knows what a lane did, of lanes that
            arrived at an mbarrier without the others of their warp; no columns if there is none.
    """

    def __init__(self, numbers: Array, threads: int, barriers: int) -> None:
        """Clocks of blocks by their numbers in the grid, with `barriers` mbarriers each."""
        blocks = len(numbers)
        self.blocks, self.threads = blocks, threads
        self.warps = -(-threads // WARP)
        self.groups = -(-self.warps // _GROUP)
        self.stores = self.warps
        self.products = 2 * self.warps
        self.copies = self.products + self.groups
        self.barriers = self.copies + self.warps
        self.agents = self.barriers + barriers
        self.known = np.zeros((blocks, self.warps, self.agents), np.int32)
        own = np.arange(self.warps)
        self.known[:, own, own] = 1
        self.proxied = np.zeros((blocks, self.warps, self.warps), np.int32)
        self.synced = np.ones((blocks, self.warps), np.int32)
        self.waited = np.zeros((blocks, self.warps), np.int32)
        columns = self.warps * WARP if barriers else 0
        self.alone = np.zeros((blocks, self.warps, columns), np.int32)
        self._own = own
        lane = np.arange(blocks * threads)
        self.block = lane // threads
        self.number = np.asarray(numbers)[self.block]
        self.warp = lane % threads // WARP

    def active(self, mask: Any) -> Array:
        """Which warps have a lane that is switched on: [blocks, W]."""
        if mask is None:
            return np.ones((self.blocks, self.warps), bool)
        lanes: Array = np.broadcast_to(mask, (self.blocks * self.threads,))
        lanes = lanes.reshape(self.blocks, self.threads)
        short = self.warps * WARP - self.threads
        if short:
            lanes = np.concatenate([lanes, np.zeros((self.blocks, short), bool)], axis=1)
        found: Array = np.any(lanes.reshape(self.blocks, self.warps, WARP), axis=-1)
        return found

    def release(self, active: Array) -> None:
        """What these warps do from now on is not known to those that learned their clocks."""
        self.known[:, self._own, self._own] += active

    def synchronize(self, active: Array) -> None:
        """The lanes of these warps have waited for one another."""
        self._publish(active)
        self.release(active)
        own = self.known[:, self._own, self._own]
        np.copyto(self.synced, own, where=active)

    def _publish(self, active: Array) -> None:
        """What lanes know of their own copies is for all lanes of these warps to know."""
        copies = self.known[:, self._own, self.copies + self._own]
        self.known[:, self._own, self.copies + self._own] = np.where(
            active, np.maximum(copies, self.waited), copies
        )

    def widths(self) -> tuple[int, int, int]:
        """The columns of `known`, `proxied` and `alone`, which `seen` and `join` exchange."""
        return self.agents, self.warps, self.alone.shape[-1]

    def join(self, active: Array, known: Array, proxied: Array, alone: Array) -> None:
        """Warps learn what `seen` gave, and go on."""
        on = active[:, :, None]
        np.maximum(self.known, known[:, None], out=self.known, where=on)
        np.maximum(self.proxied, proxied[:, None], out=self.proxied, where=on)
        np.maximum(self.alone, alone[:, None], out=self.alone, where=on)
        # Of their own lanes they know what had arrived.
        np.maximum(self.synced, known[:, : self.warps] + 1, out=self.synced, where=active)
        self.release(active)

    def seen(self, active: Array, lanes: Any = None) -> tuple[Array, Array, Array]:
        """What these warps know together: rows of `known`, `proxied` and `alone` for each block.

        `lanes` are those that publish it, of a warp that may leave others behind: what these did
        since they last synchronized stays unknown.
        """
        self._publish(active)
        on = active[:, :, None]
        known, alone = self.known, (self.alone * on).max(1)
        part = active & self.active(~lanes) if lanes is not None else active & False
        if part.any():
            own = known[:, self._own, self._own]
            known = known.copy()
            known[:, self._own, self._own] = np.where(part, self.synced - 1, own)
            mine = np.where((lanes & part[self.block, self.warp]), own[self.block, self.warp], 0)
            mine = mine.reshape(self.blocks, -1)
            np.maximum(alone[:, : self.threads], mine, out=alone[:, : self.threads])
        return (known * on).max(1), (self.proxied * on).max(1), alone

    def arrived(self, block: Array, warp: Array) -> Array:
        """Up to which clocks warps know what lanes did that arrived alone: [..., W, 32]."""
        found: Array = self.alone.reshape(self.blocks, self.warps, -1, WARP)[block, warp]
        return found

    def fence(self, active: Array) -> None:
        """A proxy fence: what these warps know of writes, asynchronous units may see."""
        known = self.known[:, :, : self.warps]
        if self.alone.size:
            known = np.maximum(known, self.arrived(*np.indices(active.shape)).max(-1))
        np.maximum(self.proxied, known, out=self.proxied, where=active[:, :, None])
        self.release(active)


class Shadow:
    """What is known of the accesses to some memory, for each unit of `size` bytes.

    Attributes:
        size: bytes of a unit.
        agent, lane, clock, site: of the last write; lane -1 of an asynchronous unit.
        reads: [units, columns]: the clock of the last read of each reading agent.
        reader, seen: the lane and the site of the last read.
        writers, readers: of memory that blocks share, the number of the block in the grid that
            wrote last, and of the one that read; None of memory of one block.
        blocks: "one" has the memory, "several", or those that flags order: "ordered" have no races.
    """

    def __init__(self, size: int, count: int, columns: int, blocks: str = "one") -> None:
        """Nothing was accessed yet."""
        self.size, self.count, self.columns, self.blocks = size, count, columns, blocks
        self.agent = np.zeros(count, np.int16)
        self.lane = np.full(count, -1, np.int32)
        self.clock = np.zeros(count, np.int32)
        self.site = np.zeros(count, np.int32)
        self.reader = np.full(count, -1, np.int32)
        self.seen = np.zeros(count, np.int32)
        self.writers = None if blocks == "one" else np.full(count, _NO_BLOCK, np.int32)
        self.readers = None if blocks == "one" else np.full(count, _NO_BLOCK, np.int32)

    @cached_property
    def reads(self) -> Array:
        """Large; a tensor that nothing reads does without."""
        return np.zeros((self.count, self.columns), np.int32)

    def cleared(self) -> Shadow:
        """One of the same memory where nothing was accessed."""
        return Shadow(self.size, self.count, self.columns, self.blocks)

    # Arguments of these: units and the lanes that access them, arrays of one length.

    def after_write(
        self, clocks: Clocks, units: Array, lanes: Array, changed: Any = False
    ) -> Array:
        """Which accesses of lanes are ordered after the last write of their unit.

        `changed` are accesses of a lane to what several wrote, which one of these may write late.
        """
        agent, writer, clock = self.agent[units], self.lane[units], self.clock[units]
        block, warp = clocks.block[lanes], clocks.warp[lanes]
        own = agent == warp
        known = np.where(own, clocks.synced[block, warp] - 1, clocks.known[block, warp, agent])
        ordered: Array = clock <= known
        mine = writer == lanes
        ordered |= mine & ((agent < clocks.warps) | (clock <= clocks.waited[block, warp]))
        # They wrote one value together, each before it goes on.
        ordered |= ((writer == _ALL) | (own & (writer == _SEVERAL - warp))) & ~np.asarray(changed)
        late = np.flatnonzero(~ordered & (agent < clocks.warps)) if clocks.alone.size else ()
        if len(late):
            arrived = clocks.arrived(block[late], warp[late])
            alone = _of_lane(clocks, arrived, writer[late])[np.arange(len(late)), agent[late]]
            ordered[late] = clock[late] <= alone
        if self.writers is not None:
            # Blocks that ran before this one, or beside it, have no clocks in common.
            theirs = self.writers[units]
            other = (theirs == _NO_BLOCK) | (self.blocks == "ordered")
            ordered = np.where(theirs == clocks.number[lanes], ordered, other)
        return ordered

    def after_reads(self, clocks: Clocks, units: Array, lanes: Array) -> Array:
        """Which accesses of lanes are ordered after all reads of their unit."""
        if "reads" not in vars(self):
            return np.ones(len(units), bool)
        warp, block = clocks.warp[lanes], clocks.block[lanes]
        known = clocks.known[block, warp, : self.columns]
        late = self.reads[units] > known
        own = self.reads[units, warp] >= clocks.synced[block, warp]
        # The last reader may be of another warp, which `late` is about.
        reader = self.reader[units]
        own &= (reader != lanes) & (
            (reader == _SEVERAL - warp) | (self._warp(clocks, reader) == warp)
        )
        rows = np.flatnonzero(late.any(1) | own) if clocks.alone.size else ()
        if len(rows):
            alone = _of_lane(clocks, clocks.arrived(block[rows], warp[rows]), reader[rows])
            before = self.reads[units[rows]]
            late[rows, : clocks.warps] &= before[:, : clocks.warps] > alone
            each = np.arange(len(rows))
            own[rows] &= before[each, warp[rows]] > alone[each, warp[rows]]
        found: Array = ~late.any(1) & ~own
        if self.readers is not None:
            before = self.readers[units]
            other = (before == _NO_BLOCK) | (self.blocks == "ordered")
            found = np.where(before == clocks.number[lanes], found, other)
        return found

    @staticmethod
    def _warp(clocks: Clocks, lanes: Array) -> Array:
        """The warps of lanes, also of blocks that ran before these; -1 of several lanes."""
        found: Array = np.where(lanes < 0, -1, lanes % clocks.threads // WARP)
        return found

    def read(self, clocks: Clocks, units: Array, lanes: Array, site: int) -> None:
        """Note a read."""
        warp, block = clocks.warp[lanes], clocks.block[lanes]
        if self.readers is not None:
            self._read_by(self.readers, clocks.number[lanes], units)
        before = self.reader[units]
        others = (before != lanes) & (
            (before == _SEVERAL - warp) | (self._warp(clocks, before) == warp)
        )
        others &= self.reads[units, warp] >= clocks.synced[block, warp]
        self.reads[units, warp] = clocks.known[block, warp, warp]
        self.reader[units] = lanes
        others |= (self.reader[units] != lanes) & (self._warp(clocks, self.reader[units]) == warp)
        self.reader[units[others]] = _SEVERAL - warp[others]
        self.seen[units] = site

    def _read_by(self, readers: Array, numbers: Array, units: Array) -> None:
        """Note which blocks read: a block has no clocks in common with those before it."""
        before = readers[units]
        new = before != numbers
        if new.any():
            self.reads[units[new]] = 0
            readers[units] = np.where(new & (before != _NO_BLOCK), _BLOCKS, numbers)
            at_once = (readers[units] != numbers) & (readers[units] != _BLOCKS)
            readers[units[at_once]] = _BLOCKS

    def wrote(self, clocks: Clocks, units: Array, lanes: Array, site: int) -> Array:
        """Note a write; returns which units several lanes wrote at once."""
        warp = clocks.warp[lanes]
        self.agent[units] = warp
        self.lane[units] = lanes
        self.clock[units] = clocks.known[clocks.block[lanes], warp, warp]
        self.site[units] = site
        if self.writers is not None:
            self.writers[units] = clocks.number[lanes]
        several: Array = self.lane[units] != lanes
        return several

    def wrote_together(self, clocks: Clocks, units: Array, lanes: Array) -> None:
        """Note that lanes have written one value to their unit in one statement."""
        warp = clocks.warp[lanes]
        alone = np.ones(self.count, bool)
        alone[units[self.agent[units] != warp]] = False
        self.lane[units] = np.where(alone[units], _SEVERAL - warp, _ALL)

    def by_one_lane(self, units: Array) -> Any:
        """Which of the units that one statement writes one lane alone does, after several."""
        if not (self.lane[units] <= _ALL).any():
            return False
        _, place, count = np.unique(units, return_inverse=True, return_counts=True)
        return count[place] == 1

    def unwritten(self, units: Array) -> Array:
        """Which units nothing has written."""
        found: Array = self.clock[units] == _NEVER
        return found

    def started(self, units: Array, agent: Any, clock: Any, site: int, lanes: Any = _UNIT) -> None:
        """An asynchronous unit writes; nothing is ordered after it until it is waited for.

        `lanes` are those that wait for what they themselves started.
        """
        self.agent[units] = agent
        self.lane[units] = lanes
        self.clock[units] = clock
        self.site[units] = site

    def started_reading(self, units: Array, agent: Any, clock: Any, site: int) -> None:
        """An asynchronous unit reads."""
        self.reads[units, agent] = clock
        self.reader[units] = _UNIT
        self.seen[units] = site


def _of_lane(clocks: Clocks, arrived: Array, lanes: Array) -> Array:
    """Of clocks [n, W, 32] those of the lanes in their warps, and the latest of other warps.

    Lanes are negative where several accessed memory; of these the latest is taken as well.
    """
    found: Array = arrived.max(-1)
    one = np.flatnonzero(lanes >= 0)
    warp, lane = np.divmod(lanes[one] % clocks.threads, WARP)
    found[one, warp] = arrived[one, warp, lane]
    return found
