"""Vector-clock epochs of the agents of blocks, and which of them happen before the current access.

In programs with roles an access belongs to an agent (a role, or a queue of asynchronous work) and
to an epoch of it. What another block's agent did is ordered before an access if the clock of the
agent that makes it includes that epoch: through flags in global memory, and through the barriers
that lead to a flag and away from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.sync.clocks import Clock, join

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .codecs import Array

__all__ = ["Epochs"]


class Epochs:
    """The epochs of a launch, numbered with the blocks."""

    def __init__(self) -> None:
        self._clock: Clock = {}
        self._agent = self._time = 0
        self._numbers: dict[tuple[int, int], int] = {}
        # Per number: the block, the agent and its time; a block's own number has the block alone.
        self._rows = _block_rows(0, 64)
        self._flags: dict[Any, Clock] = {}

    def begin(self, clock: Clock, agent: int, time: int) -> None:
        """Accesses from now on are an agent's, with its clock, at a time of it."""
        self._clock, self._agent, self._time = clock, agent, time

    def number(self, blocks: list[tuple[int, ...]], block: int) -> int:
        """The number of the current epoch, of block number `block`."""
        key = self._agent, self._time
        number = self._numbers.get(key)
        if number is None or self._rows[0, number] != block:
            blocks.append(blocks[block])
            number = self._numbers[key] = len(blocks) - 1
            self._reserve(number)
            self._rows[:, number] = block, self._agent, self._time
        return number

    def _reserve(self, number: int) -> None:
        """Make room for a number."""
        while number >= self._rows.shape[1]:
            size = self._rows.shape[1]
            self._rows = np.concatenate([self._rows, _block_rows(size, 2 * size)], 1)

    def blocks(self, numbers: Any) -> Any:
        """The blocks of epochs."""
        self._reserve(int(np.max(numbers, initial=0)))
        return self._rows[0][numbers]

    def ordered(self, numbers: Any) -> Array:
        """Which epochs happen before the current access."""
        values, positions = np.unique(numbers, return_inverse=True)
        before = [self._clock.get(int(a), 0) >= t > 0 for _, a, t in self._rows[:, values].T]
        return np.asarray(before, bool)[positions].reshape(np.shape(numbers))

    def flag(self, elements: Iterable[Any], *, acquires: bool, releases: bool) -> None:
        """The current agent acquires from elements of a flag, releases to them, or both."""
        for element in elements:
            known = self._flags.setdefault(element, {})
            if acquires:
                join(self._clock, known)
            if releases:
                join(known, self._clock)
        if releases:
            # Agents that acquire from here do not know of what this agent does after.
            self._time = self._clock[self._agent] = self._clock.get(self._agent, 0) + 1


def _block_rows(first: int, past: int) -> Array:
    """Rows of numbers that are blocks."""
    rows = np.zeros((3, past - first), np.int64)
    rows[0] = np.arange(first, past)
    return rows
