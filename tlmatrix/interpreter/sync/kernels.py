"""Agents of blocks of kernels: their source locations, and the monitor that follows them."""

from __future__ import annotations

from typing import Any

from .agents import Agent


def located(launch: Any, line: int) -> tuple[str, int]:
    """The user's file and line of a line of a launch's generated source."""
    known = launch.locations
    location = known[line - 1] if 0 < line <= len(known) else None
    return (location.file, location.line) if location is not None else ("", 0)


class BlockAgent(Agent):
    """An agent of a block: the block itself, or a warp role.

    Attributes:
        launch: the launch, with `kernel`, `locations` and `watch`, a monitor or None.
        running: the monitor's token of the block.
    """

    index: tuple[int, ...]

    def __init__(
        self, rank: int, name: str, agent: int, launch: Any, index: tuple[int, ...]
    ) -> None:
        super().__init__(rank, name, agent)
        self.launch: Any = launch
        self.kernel = launch.kernel
        self.index = index
        self.running: Any = None

    def place(self) -> tuple[str, int]:
        """The user's line where the agent is."""
        return located(self.launch, self.line)

    def tick(self) -> None:
        """Advance the agent's own time after a release; the monitor goes on with that."""
        super().tick()
        if self.launch.watch is not None:
            self.resumed()

    def resumed(self) -> None:
        """Let the monitor attribute accesses to this agent."""
        watch = self.launch.watch
        if watch is not None and self.running is not None:
            watch.work_as(self.running, self.clock, self.agent, self.clock[self.agent])
