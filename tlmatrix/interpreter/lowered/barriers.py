"""Barriers of blocks: mbarriers with their phases, and named barriers (`bar.sync`).

Each is an array over blocks. PTX ISA, "Parallel Synchronization and Communication Instructions".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tlmatrix.interpreter.runtime.codecs import Array

    from .clocks import Clocks

_NAMED = 16
"""Named barriers that a block has."""


class Barriers:
    """The mbarriers of blocks, by number.

    Attributes:
        count: arrivals of a phase: [blocks, barriers]; 0 before it is initialized.
        pending: arrivals that the phase still needs.
        bytes: bytes that the phase still expects.
        phase: how many phases have ended.
        overtaken: a wait that the next phase may overtake: its block, barrier, warp, and site.
    """

    def __init__(self, blocks: int, barriers: int, clocks: Clocks | None) -> None:
        """Barriers that nothing has initialized."""
        self.count, self.pending, self.bytes, self.phase = (
            np.zeros((blocks, barriers), np.int64) for _ in range(4)
        )
        self._clocks = clocks
        self._rows = np.arange(blocks)
        self.overtaken: tuple[int, int, int, int] | None = None
        if clocks is not None:
            # The last wait of each warp and the one before: phase, clock of the warp, and site.
            self._waits = np.full((2, 3, blocks, barriers, clocks.warps), -2, np.int32)
            self._gathered, self._ended = (
                [np.zeros((blocks, barriers, n), np.int32) for n in clocks.widths()]
                for _ in range(2)
            )
            self._completed = np.zeros((blocks, barriers), np.int32)
            self._maker, self._made = (np.zeros((blocks, barriers), np.int32) for _ in range(2))

    def initialize(self, blocks: Array, number: Array, count: Any, lanes: Array) -> None:
        """Lanes initialize one barrier of each of these blocks."""
        self.count[blocks, number] = count
        self.pending[blocks, number] = count
        clocks = self._clocks
        if clocks is not None:
            warp = clocks.active(lanes)[blocks].argmax(1)
            self._maker[blocks, number] = warp
            self._made[blocks, number] = clocks.known[blocks, warp, warp]
            clocks.release(clocks.active(lanes))

    def before_initialization(self, blocks: Array, number: Array, lanes: Array) -> Array:
        """Which of these blocks use a barrier that another warp may not have initialized yet."""
        clocks = self._clocks
        if clocks is None:
            return np.zeros(len(blocks), bool)
        maker, made = self._maker[blocks, number], self._made[blocks, number]
        known = clocks.known[blocks[:, None], np.arange(clocks.warps), maker[:, None]]
        late = clocks.active(lanes)[blocks] & (known < made[:, None])
        found: Array = np.any(late, axis=1)
        return found

    def expect(self, blocks: Array, number: Array, size: Any) -> None:
        """The phase also waits for bytes that copies bring, one barrier a block."""
        self.bytes[blocks, number] += size

    def brought(self, blocks: Array, number: Array, size: Any) -> Array:
        """A copy brings bytes to barriers; returns the clocks of these copies."""
        self.bytes[blocks, number] -= size
        clocks = np.zeros(len(blocks), np.int32)
        if self._clocks is not None:
            self._completed[blocks, number] += 1
            clocks = self._completed[blocks, number]
            self._gathered[0][blocks, number, self._clocks.barriers + number] = clocks
        self._end(blocks, number)
        return clocks

    def arrive(
        self,
        blocks: Array,
        number: Array,
        arrivals: Any,
        lanes: Array,
        copied: Array | None = None,
    ) -> None:
        """Lanes of blocks arrive, at one barrier a block.

        `copied` are clocks of the `cp.async` of warps that are done then: [blocks, W].
        """
        self.pending[blocks, number] -= arrivals
        if self._clocks is not None:
            active = self._clocks.active(lanes)
            seen = self._clocks.seen(active, lanes)
            if copied is not None:
                first = self._clocks.copies
                known = seen[0][:, first : first + copied.shape[1]]
                np.maximum(known, copied, out=known)
            for mine, each in zip(self._gathered, seen, strict=True):
                mine[blocks, number] = np.maximum(mine[blocks, number], each[blocks])
            self._clocks.release(active)
        self._end(blocks, number)

    def _end(self, blocks: Array, number: Array) -> None:
        """End the phases that lack nothing."""
        done = (self.pending[blocks, number] <= 0) & (self.bytes[blocks, number] == 0)
        blocks, number = blocks[done], np.broadcast_to(number, done.shape)[done]
        if self._clocks is not None and self.overtaken is None:
            self._overtake(blocks, number)
        self.phase[blocks, number] += 1
        self.pending[blocks, number] += self.count[blocks, number]
        if self._clocks is not None:
            for ended, gathered in zip(self._ended, self._gathered, strict=True):
                ended[blocks, number] = gathered[blocks, number]

    def _overtake(self, blocks: Array, number: Array) -> None:
        """Note a wait for the phase before one that ends, if nothing says that it has passed.

        Such a warp may be so slow that it misses the phase: two phases later the barrier has the
        parity again at which it waits, and may keep it.
        """
        phase, begun, sites = self._waits[:, :, blocks, number].swapaxes(0, 1)
        behind = phase == self.phase[blocks, number][:, None] - 1
        if not behind.any():
            return
        warps, known = behind.shape[-1], self._gathered[0][blocks, number]
        seen = known[:, :warps]
        if alone := self._gathered[2].shape[-1]:
            of_lanes = self._gathered[2][blocks, number].reshape(-1, warps, alone // warps)
            seen = np.maximum(seen, of_lanes.max(-1))
        behind &= seen <= begun
        for wait, k, warp in np.argwhere(behind)[:1].tolist():
            self.overtaken = int(blocks[k]), int(number[k]), warp, int(sites[wait, k, warp])

    def begin(self, blocks: Array, number: Array, parity: Array, lanes: Array, site: int) -> None:
        """Lanes begin to wait for the phase of a parity."""
        clocks = self._clocks
        if clocks is None:
            return
        block, warp = np.nonzero(clocks.active(lanes)[blocks])
        phase = self.phase[blocks, number]
        clock = clocks.known[blocks[block], warp, warp]
        at = blocks[block], np.broadcast_to(number, blocks.shape)[block], warp
        last, before = self._waits
        before[:, *at] = last[:, *at]
        awaited = (phase - (phase % 2 != parity))[block]
        last[:, *at] = awaited, clock, np.full_like(clock, site)

    def passed(self, blocks: Array, number: Array, parity: Array) -> bool:
        """Whether the phase of a parity has ended, in all of these blocks."""
        return bool((self.phase[blocks, number] % 2 != parity).all())

    def join(self, blocks: Array, number: Array, active: Array) -> None:
        """Warps that waited know what was done before the phase ended."""
        if self._clocks is None:
            return
        rows = [np.zeros((len(self._rows), each.shape[-1]), np.int32) for each in self._ended]
        for row, each in zip(rows, self._ended, strict=True):
            row[blocks] = each[blocks, number]
        self._clocks.join(active, *rows)


class Named:
    """The named barriers of blocks."""

    def __init__(self, blocks: int, clocks: Clocks | None) -> None:
        """Barriers at which nothing waits."""
        self._arrived = np.zeros((blocks, _NAMED), np.int64)
        self._passed = np.zeros((blocks, _NAMED), np.int64)
        self._clocks = clocks
        if clocks is not None:
            self._gathered = [np.zeros((_NAMED, blocks, n), np.int32) for n in clocks.widths()]
            self._ended = [each.copy() for each in self._gathered]

    def arrive(
        self, number: int, count: int, lanes: Array, active: Array | None
    ) -> tuple[int, Array, Array]:
        """Lanes of each block arrive; what `passed` asks about."""
        blocks = np.flatnonzero(lanes)
        target = self._passed[blocks, number] + 1
        self._arrived[blocks, number] += lanes[blocks]
        if self._clocks is not None:
            assert active is not None
            for mine, seen in zip(self._gathered, self._clocks.seen(active), strict=True):
                np.maximum(mine[number], seen, out=mine[number])
        done = blocks[self._arrived[blocks, number] >= count]
        self._arrived[done, number] = 0
        self._passed[done, number] += 1
        if self._clocks is not None:
            for ended, gathered in zip(self._ended, self._gathered, strict=True):
                ended[number, done] = gathered[number, done]
                gathered[number, done] = 0
        return number, blocks, target

    def passed(self, waits: tuple[int, Array, Array]) -> bool:
        """Whether the barrier let all of them pass."""
        number, blocks, target = waits
        return bool((self._passed[blocks, number] >= target).all())

    def join(self, waits: tuple[int, Array, Array], active: Array | None) -> None:
        """Warps that waited know what was done before."""
        assert self._clocks is not None
        assert active is not None
        number = waits[0]
        self._clocks.join(active, *(each[number] for each in self._ended))
