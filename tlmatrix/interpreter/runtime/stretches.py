"""Stretches of time of the agents of blocks, and which of them are over for whoever runs now.

In programs with roles an access belongs to an agent (a role, or a queue of asynchronous work) and
to a time of its own. What another block's agent did is ordered before an access if the clock of
who makes it knows of that time: through flags in global memory, and through the barriers that
lead to a flag and away from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.roles.clocks import Clock, join

if TYPE_CHECKING:
    from .codecs import Array

__all__ = ["Stretches"]


class Stretches:
    """The stretches of a launch, numbered with the blocks."""

    def __init__(self) -> None:
        self._clock: Clock = {}
        self._agent = self._time = 0
        self._numbers: dict[tuple[int, int], int] = {}
        # Per number: the block, the agent and the time; of blocks themselves the block alone.
        self._rows = np.zeros((3, 64), np.int64)
        self._count = 0
        self._flags: dict[Any, Clock] = {}

    def begin(
        self, blocks: list[tuple[int, ...]], here: int, clock: Clock, agent: int, time: int
    ) -> int:
        """An agent of block number `here` works, who knows `clock`; the number of its stretch."""
        self._clock, self._agent, self._time = clock, agent, time
        number = self._numbers.get((agent, time))
        if number is None or self._rows[0, number] != here:
            blocks.append(blocks[here])
            number = self._numbers[agent, time] = len(blocks) - 1
            self._grow(number + 1)
            self._rows[:, number] = here, agent, time
        return number

    def _grow(self, count: int) -> None:
        """Make place for `count` numbers; those not begun here are blocks."""
        while self._rows.shape[1] < count:
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)], 1)
        fresh = np.arange(self._count, count)
        self._rows[0, fresh] = fresh
        self._count = max(self._count, count)

    def go_on(self, blocks: list[tuple[int, ...]], here: int) -> int:
        """The agent has released: what it does from now on is not known with that."""
        self._clock[self._agent] = self._clock.get(self._agent, 0) + 1
        return self.begin(blocks, here, self._clock, self._agent, self._clock[self._agent])

    def blocks(self, numbers: Any) -> Any:
        """The blocks of stretches."""
        self._grow(int(np.max(numbers, initial=0)) + 1)
        return self._rows[0][numbers]

    def known(self, numbers: Any) -> Array:
        """Which stretches are over for who runs now."""
        values, places = np.unique(numbers, return_inverse=True)
        over = [self._clock.get(int(a), 0) >= t > 0 for _, a, t in self._rows[:, values].T]
        return np.asarray(over, bool)[places].reshape(np.shape(numbers))

    def flag(self, key: Any, acquires: bool, releases: bool) -> None:
        """A flag is seen or set by who runs now."""
        known = self._flags.setdefault(key, {})
        if acquires:
            join(self._clock, known)
        if releases:
            join(known, self._clock)
