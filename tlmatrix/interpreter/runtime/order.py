"""The order of the blocks of a launch: which earlier accesses happen before the current one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.errors import InterpreterError

from .epochs import Epochs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tlmatrix.interpreter.program import Site
    from tlmatrix.interpreter.sync.clocks import Clock


__all__ = ["BlockOrder", "Running"]

_MOST_CODE = 2**31 - 1
"""Shadows keep codes of accesses as int32."""


@dataclass(slots=True, eq=False)
class Running:
    """A block that has started and may wait while others run.

    Attributes:
        number: its number, from 1.
        block: its index in the grid.
        acquired: the numbers of blocks that flags order before it.
        read: per parameter the sequence boundaries that it has read.
    """

    number: int
    block: tuple[int, ...]
    acquired: set[int]
    read: dict[str, set[int]]


class BlockOrder:
    """Numbers the blocks of launches, and their accesses.

    An access is remembered as a code: `number * sites + site`, where the number is the block's, or
    of an agent of it that of its epoch.

    Attributes:
        block: the index in the grid of the block that runs.
        current: its number.
        indices: by number the index in the grid.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self.block: tuple[int, ...] = ()
        self.current = 0
        self.indices: list[tuple[int, ...]] = [()]
        self._first = 1
        self._sites = len(sites)
        # By element of a flag the blocks that released it, and all that is ordered before them.
        self._released: dict[Any, set[int]] = {}
        self._acquired: set[int] = set()
        self._epochs: Epochs | None = None

    def launch(self) -> None:
        """A grid starts, after all accesses of the grids before it."""
        self._first = len(self.indices)
        self._epochs = None
        self._released.clear()

    def enter(self, block: tuple[int, ...], read: dict[str, set[int]]) -> Running:
        """A block starts."""
        self.indices.append(block)
        running = Running(len(self.indices) - 1, block, set(), read)
        self.resume(running)
        return running

    def resume(self, running: Running) -> None:
        """A block that has started before goes on."""
        self.current, self.block = running.number, running.block
        self._acquired = running.acquired

    def work_as(self, clock: Clock, agent: int, time: int) -> None:
        """Accesses from now on are an agent's, with its clock, at a time of it."""
        if self._epochs is None:
            self._epochs = Epochs()
        self._epochs.begin(clock, agent, time)

    # -- codes of accesses

    def code(self, site: int) -> int:
        """The code of an access made now."""
        number = self.current
        if self._epochs is not None:
            number = self._epochs.number(self.indices, number)
        code = number * self._sites + site
        if code > _MOST_CODE:
            raise InterpreterError(
                f"the launch has more blocks than sanitizers of this kernel can tell apart, "
                f"{_MOST_CODE // self._sites}; launch fewer, or run without sanitizers"
            )
        return code

    def party(self, code: int) -> tuple[tuple[int, ...], int]:
        """The index of the block of an access, and its site."""
        return self.indices[code // self._sites], code % self._sites

    def site(self, code: int) -> int:
        """The site of an access."""
        return code % self._sites

    def _numbers(self, codes: Any) -> Any:
        """The numbers of the blocks of accesses."""
        numbers = codes // self._sites
        return numbers if self._epochs is None else self._epochs.blocks(numbers)

    def elsewhere(self, codes: Any) -> Any:
        """Which accesses are another block's of the same grid."""
        numbers = self._numbers(codes)
        return (numbers >= self._first) & (numbers != self.current)

    def concurrent(self, codes: Any) -> Any:
        """Which accesses are another block's of the same grid, and not ordered before this one."""
        found = self.elsewhere(codes)
        if self._epochs is not None and found.any():
            found = found & ~self._epochs.ordered(codes // self._sites)
        elif self._acquired and found.any():
            found = found & ~np.isin(codes // self._sites, list(self._acquired))
        return found

    # -- flags

    def flag(self, elements: Iterable[Any], *, acquires: bool, releases: bool) -> None:
        """The current block acquires from elements of a flag, releases to them, or both."""
        if self._epochs is not None:
            self._epochs.flag(elements, acquires=acquires, releases=releases)
            return
        for element in elements:
            released = self._released.setdefault(element, set())
            if acquires:
                self._acquired |= released
            if releases:
                released.add(self.current)
                released |= self._acquired
