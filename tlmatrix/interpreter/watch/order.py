"""The order of the blocks of a launch: which earlier accesses happen before the current one.

A block is one agent, or has several: roles, and queues of asynchronous work. What another block's
agent did is ordered before an access if the clock of the agent that makes it includes that epoch:
through flags in global memory, and through the barriers that lead to a flag and away from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.errors import InterpreterError
from tlmatrix.interpreter.sync.agents import Clock, join

if TYPE_CHECKING:
    from tlmatrix.interpreter.program import Site
    from tlmatrix.interpreter.runtime.codecs import Array


__all__ = ["BlockOrder", "Running"]

_MOST_CODE = 2**31 - 1
"""Shadows keep codes of accesses as int32."""


@dataclass(slots=True, eq=False)
class Running:
    """A block that has started and may wait while others run.

    Attributes:
        number: its number, from 1.
        block: its index in the grid.
        clock: the blocks that flags order before it, where blocks are agents.
        read: per parameter the sequence boundaries that it has read.
    """

    number: int
    block: tuple[int, ...]
    read: dict[str, set[int]]
    clock: Clock = field(default_factory=dict)


class BlockOrder:
    """Numbers the blocks of launches, and their accesses.

    An access is remembered as a code: `number * sites + site`, where the number is the block's, or
    that of an epoch of an agent of it.

    Attributes:
        block: the index in the grid of the block that runs.
        current: its number.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self.block: tuple[int, ...] = ()
        self.current = 0
        self._sites = len(sites)
        self._first = 1
        # By number the index of the block; of an epoch in rows the block's number, the agent and
        # its time.
        self._indices: list[tuple[int, ...]] = [()]
        self._rows = np.zeros((3, 64), np.int64)
        self._clock: Clock = {}
        # The agent and its time; None where blocks are agents.
        self._agent: tuple[int, int] | None = None
        self._epochs: dict[tuple[int, int], int] = {}
        self._flags: dict[Any, Clock] = {}

    def launch(self) -> None:
        """A grid starts, after all accesses of the grids before it."""
        self._first = len(self._indices)
        self._agent = None
        self._epochs.clear()
        self._flags.clear()

    def enter(self, block: tuple[int, ...], read: dict[str, set[int]]) -> Running:
        """A block starts."""
        running = Running(len(self._indices), block, read)
        self._indices.append(block)
        self.resume(running)
        return running

    def resume(self, running: Running) -> None:
        """A block that has started before goes on."""
        self.current, self.block, self._clock = running.number, running.block, running.clock

    def work_as(self, clock: Clock, agent: int, time: int) -> None:
        """Accesses from now on are an agent's, with its clock, at a time of it."""
        self._clock, self._agent = clock, (agent, time)

    def _epoch(self, agent: tuple[int, int]) -> int:
        """The number of an epoch of the current block."""
        number = self._epochs.get(agent)
        if number is None or self._rows[0, number] != self.current:
            number = self._epochs[agent] = len(self._indices)
            self._indices.append(self.block)
            self._reserve()
            self._rows[:, number] = self.current, *agent
        return number

    def _reserve(self) -> None:
        """Make room for all numbers."""
        while len(self._indices) > self._rows.shape[1]:
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)], 1)

    # -- codes of accesses

    def code(self, site: int) -> int:
        """The code of an access made now."""
        number = self.current if self._agent is None else self._epoch(self._agent)
        code = number * self._sites + site
        if code > _MOST_CODE:
            raise InterpreterError(
                f"the launch has more blocks than sanitizers of this kernel can tell apart, "
                f"{_MOST_CODE // self._sites}; launch fewer, or run without sanitizers"
            )
        return code

    def party(self, code: int) -> tuple[tuple[int, ...], int]:
        """The index of the block of an access, and its site."""
        return self._indices[code // self._sites], code % self._sites

    def elsewhere(self, codes: Any) -> Any:
        """Which accesses are another block's of the same grid."""
        numbers = codes // self._sites
        if self._agent is not None:
            self._reserve()
            numbers = self._rows[0][numbers]
        return (numbers >= self._first) & (numbers != self.current)

    def concurrent(self, codes: Any) -> Any:
        """Which accesses are another block's of the same grid, and not ordered before this one."""
        found = self.elsewhere(codes)
        if self._clock and found.any():
            found = found & ~self._ordered(codes // self._sites)
        return found

    def _ordered(self, numbers: Any) -> Array:
        """Which epochs or blocks the current clock includes."""
        values, positions = np.unique(numbers, return_inverse=True)
        clock = self._clock
        if self._agent is None:
            before = [int(number) in clock for number in values]
        else:
            before = [clock.get(int(a), 0) >= t > 0 for _, a, t in self._rows[:, values].T]
        return np.asarray(before, bool)[positions].reshape(np.shape(numbers))

    # -- flags

    def flag(self, elements: Iterable[Any], *, acquires: bool, releases: bool) -> None:
        """The current agent acquires from elements of a flag, releases to them, or both.

        An agent's epoch ends where it releases: those that acquire do not know of what it does
        after. A block that is one agent has one epoch.
        """
        clock = self._clock
        for element in elements:
            known = self._flags.setdefault(element, {})
            if acquires:
                join(clock, known)
            if releases:
                join(known, clock)
                if self._agent is None:
                    known[self.current] = 1
        if releases and self._agent is not None:
            agent = self._agent[0]
            clock[agent] = clock.get(agent, 0) + 1
            self._agent = agent, clock[agent]
