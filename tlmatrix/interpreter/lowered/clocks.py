"""Which accesses of threads to memory are ordered: vector clocks of warps and asynchronous units.

As in FastTrack (Flanagan and Freund, PLDI 2009), each unit of memory keeps its last write and its
last reads as (agent, clock), and an access is ordered after them if its agent knows that clock.
The agents of a block are its warps, and what works asynchronously for them: bulk stores, groups of
wgmma, `cp.async`, and copies that complete on an mbarrier. The lanes of a warp are told apart by
the warp's own clock, which advances wherever they synchronize.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tlmatrix.interpreter.runtime.codecs import Array

WARP = 32
_GROUP = 4
"""Warps of a warp group."""
_NEVER, _KNOWN = 0, -1
"""Clocks of a write that did not happen, and of one that every agent knows."""


class Clocks:
    """The clocks of the agents of some blocks.

    Attributes:
        warps: warps of a block, W.
        groups: its warp groups.
        agents: all agents of a block, A.
        block, number, warp: of each lane, its block among these and in the grid, and its warp.
        known: [blocks, W, A]: the clock of each agent that a warp has seen; its own at its place.
        proxied: [blocks, W, W]: the writes of warps that a proxy fence of the path has covered.
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

    def tick(self, active: Array) -> None:
        """The lanes of these warps have synchronized with one another."""
        self.known[:, self._own, self._own] += active

    def join(self, active: Array, known: Array, proxied: Array) -> None:
        """Warps learn clocks [blocks, A] and proxied writes [blocks, W], and go on."""
        on = active[:, :, None]
        np.maximum(self.known, known[:, None], out=self.known, where=on)
        np.maximum(self.proxied, proxied[:, None], out=self.proxied, where=on)
        self.tick(active)

    def seen(self, active: Array) -> tuple[Array, Array]:
        """What these warps know together: [blocks, A], and of proxied writes [blocks, W]."""
        on = active[:, :, None]
        return (self.known * on).max(1), (self.proxied * on).max(1)

    def meet(self, active: Array) -> None:
        """These warps of each block wait for one another."""
        self.join(active, *self.seen(active))

    def fence(self, active: Array) -> None:
        """A proxy fence: what these warps know of writes, asynchronous units may see."""
        known = self.known[:, :, : self.warps]
        np.maximum(self.proxied, known, out=self.proxied, where=active[:, :, None])
        self.tick(active)


@dataclass
class Shadow:
    """What is known of the accesses to some memory, for each unit of `size` bytes.

    Attributes:
        size: bytes of a unit.
        agent, lane, clock, site: of the last write; lane -1 of an asynchronous unit.
        reads: [units, columns]: the clock of the last read of each reading agent.
        reader, seen: the lane and the site of the last read.
        writers, readers: of memory that blocks share, the number of the block in the grid that
            wrote last, and that read last; None of memory of one block.
    """

    size: int
    count: int
    columns: int
    several_blocks: bool = False
    agent: Array = field(init=False)
    lane: Array = field(init=False)
    clock: Array = field(init=False)
    site: Array = field(init=False)
    reads: Array = field(init=False)
    reader: Array = field(init=False)
    seen: Array = field(init=False)

    def __post_init__(self) -> None:
        """Nothing was accessed yet."""
        self.agent = np.zeros(self.count, np.int16)
        self.lane = np.full(self.count, -1, np.int32)
        self.clock = np.zeros(self.count, np.int32)
        self.site = np.zeros(self.count, np.int32)
        self.reads = np.zeros((self.count, self.columns), np.int32)
        self.reader = np.full(self.count, -1, np.int32)
        self.seen = np.zeros(self.count, np.int32)
        shared = self.several_blocks
        self.writers = np.full(self.count, -1, np.int32) if shared else None
        self.readers = np.full(self.count, -1, np.int32) if shared else None

    # Arguments of these: units and the lanes that access them, arrays of one length.

    def after_write(self, clocks: Clocks, units: Array, lanes: Array) -> Array:
        """Which accesses of lanes are ordered after the last write of their unit."""
        agent = self.agent[units]
        warp = clocks.warp[lanes]
        known = clocks.known[clocks.block[lanes], warp, agent]
        ordered: Array = self.clock[units] <= known - (agent == warp)
        ordered |= self.lane[units] == lanes
        if self.writers is not None:
            # Blocks that ran before this one, or beside it, have no clocks in common.
            writer = self.writers[units]
            ordered = np.where(writer == clocks.number[lanes], ordered, writer < 0)
        return ordered

    def after_reads(self, clocks: Clocks, units: Array, lanes: Array) -> Array:
        """Which accesses of lanes are ordered after all reads of their unit."""
        warp, block = clocks.warp[lanes], clocks.block[lanes]
        found: Array
        if self.readers is not None:
            before, reader = self.readers[units], self.reader[units]
            theirs = clocks.warp[np.maximum(reader, 0)]
            known = clocks.known[block, warp, theirs] - (theirs == warp)
            ordered = (self.reads[units, 0] <= known) | (reader == lanes)
            found = np.where(before == clocks.number[lanes], ordered, before < 0)
            return found
        known = clocks.known[block, warp, : self.columns]
        late = self.reads[units] > known
        own = self.reads[units, warp] == clocks.known[block, warp, warp]
        found = ~late.any(1) & (~own | (self.reader[units] == lanes))
        return found

    def read(self, clocks: Clocks, units: Array, lanes: Array, site: int) -> None:
        """Note a read."""
        warp = clocks.warp[lanes]
        clock = clocks.known[clocks.block[lanes], warp, warp]
        if self.readers is not None:
            self.readers[units] = clocks.number[lanes]
            warp = np.zeros_like(warp)
        self.reads[units, warp] = clock
        self.reader[units] = lanes
        self.seen[units] = site

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

    def known_to_all(self, units: Array) -> None:
        """What lanes wrote there together is one value, which each of them knows."""
        self.clock[units] = _KNOWN

    def unwritten(self, units: Array) -> Array:
        """Which units nothing has written."""
        found: Array = self.clock[units] == _NEVER
        return found

    def started(self, units: Array, agent: Any, clock: Any, site: int) -> None:
        """An asynchronous unit writes; nothing is ordered after it until it is waited for."""
        self.agent[units] = agent
        self.lane[units] = -1
        self.clock[units] = clock
        self.site[units] = site

    def started_reading(self, units: Array, agent: Any, clock: Any, site: int) -> None:
        """An asynchronous unit reads."""
        self.reads[units, agent] = clock
        self.reader[units] = -1
        self.seen[units] = site
