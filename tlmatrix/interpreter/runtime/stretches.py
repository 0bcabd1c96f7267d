"""Stretches of time of the agents of blocks, and which of them are over for whoever runs now.

In programs with roles an access belongs to an agent (a role, or a queue of asynchronous work) and
to a time of its own. What another block's agent did is ordered before an access if the clock of
who makes it knows of that time: through flags in global memory, and through the barriers that
lead to a flag and away from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.sync.clocks import Clock, join

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
        self._rows = _blank(0, 64)
        self._flags: dict[Any, Clock] = {}

    def begin(self, clock: Clock, agent: int, time: int) -> None:
        """An agent works from now on, who knows `clock`."""
        self._clock, self._agent, self._time = clock, agent, time

    def number(self, blocks: list[tuple[int, ...]], here: int) -> int:
        """The number of the stretch in progress, of block number `here`."""
        key = self._agent, self._time
        number = self._numbers.get(key)
        if number is None or self._rows[0, number] != here:
            blocks.append(blocks[here])
            number = self._numbers[key] = len(blocks) - 1
            self._reach(number)
            self._rows[:, number] = here, self._agent, self._time
        return number

    def _reach(self, number: int) -> None:
        """Make place for a number."""
        while number >= self._rows.shape[1]:
            size = self._rows.shape[1]
            self._rows = np.concatenate([self._rows, _blank(size, 2 * size)], 1)

    def go_on(self) -> None:
        """The agent has released: what it does from now on is not known with that."""
        self._time = self._clock[self._agent] = self._clock.get(self._agent, 0) + 1

    def blocks(self, numbers: Any) -> Any:
        """The blocks of stretches."""
        self._reach(int(np.max(numbers, initial=0)))
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


def _blank(first: int, past: int) -> Array:
    """Rows of numbers that are blocks."""
    rows = np.zeros((3, past - first), np.int64)
    rows[0] = np.arange(first, past)
    return rows
