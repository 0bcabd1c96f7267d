"""What all launches have in common: source locations, a monitor, and agents of their blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from .agents import Agent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tlmatrix.interpreter.reports import Report

    from .clocks import Clock

__all__ = ["BlockAgent", "Located", "Watch"]


class Watch(Protocol):
    """What an instrumented program reports to."""

    sanitizers: frozenset[str]
    traced: bool

    def launch(self) -> None:
        """A grid starts."""

    def enter(self, block: tuple[int, ...]) -> Any:
        """A block starts; returns its token."""

    def work_as(self, running: Any, clock: Clock, agent: int, time: int) -> None:
        """What follows is done by an agent of a block."""

    def add(self, reports: Iterable[Report]) -> None:
        """Take reports."""


class Located(Protocol):
    """A launch.

    Attributes:
        kernel: the kernel's name.
        locations: the user's location of each line of the generated source.
        watch: the monitor of an instrumented launch.
    """

    kernel: str
    locations: Sequence[Any]
    watch: Watch | None


def located(launch: Located, line: int) -> tuple[str, int]:
    """The user's file and line of a line of the generated source."""
    known = launch.locations
    location = known[line - 1] if 0 < line <= len(known) else None
    return (location.file, location.line) if location is not None else ("", 0)


class BlockAgent(Agent):
    """An agent of a block: the block itself, or a warp role.

    Attributes:
        running: the monitor's token of the block.
    """

    launch: Located
    index: tuple[int, ...]

    def __init__(
        self, rank: int, name: str, agent: int, launch: Located, index: tuple[int, ...]
    ) -> None:
        super().__init__(rank, name, agent)
        self.launch = launch
        self.kernel = launch.kernel
        self.index = index
        self.running: Any = None

    def place(self) -> tuple[str, int]:
        """The user's line where the agent is."""
        return located(self.launch, self.line)

    def tick(self) -> None:
        """Advance the agent's own time after a release; the monitor goes on with that."""
        super().tick()
        self.resumed()

    def resumed(self) -> None:
        """Let the monitor attribute accesses to this agent."""
        watch = self.launch.watch
        if watch is not None and self.running is not None:
            watch.work_as(self.running, self.clock, self.agent, self.clock[self.agent])
