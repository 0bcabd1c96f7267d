"""What the scheduler runs: hosts, streams and blocks, and what they may wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .clocks import Clock, join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Agent", "Request", "Until"]


class Request:
    """Something a task waits for before it goes on."""

    idle = False
    """Whether the task has nothing to do, rather than something to wait for."""

    def ready(self) -> bool:
        """Whether the task may go on."""
        raise NotImplementedError

    def finish(self, task: Agent) -> Any:
        """What the task learns and gets as it goes on."""
        del task

    def describe(self) -> str:
        """The wait in words, after "waits"."""
        raise NotImplementedError

    def why(self) -> list[str]:
        """Lines that say why the wait may never end."""
        return []


@dataclass
class Until(Request):
    """A wait for a condition of a user's model."""

    condition: Callable[[], bool]
    what: str

    def ready(self) -> bool:
        """Whether the condition holds."""
        return self.condition()

    def describe(self) -> str:
        """The wait in words."""
        return f"for {self.what}"


class Agent:
    """What can be scheduled by itself.

    Attributes:
        rank: the rank it belongs to.
        name: what it is, in words: "rank 1, stream pull".
        agent: its number in clocks; 0 for hosts, who access nothing themselves.
        clock: what it knows of all agents.
        generator: its work, yielding requests; None for a host, whose work is its thread.
        request: what it waits for; None if it can go on.
        wakes: the step of the scheduler before which it is not chosen.
        priority: how urgent it is, where the scheduler goes by that.
        launch: of a block its launch.
        kernel: the kernel's name, while it runs one.
        heard: the flags that told it of others, and where they were set, by agent.
        doubts: what flags would have told it that were too weak, by what was wrong with them.
    """

    def __init__(self, rank: int, name: str, agent: int) -> None:
        self.rank = rank
        self.name = name
        self.agent = agent
        self.clock: Clock = {agent: 1} if agent else {}
        self.generator: Iterator[Request | None] | None = None
        self.request: Request | None = None
        self.wakes = 0
        self.priority: float | None = None
        self.launch: object = None
        self.kernel = ""
        self.doubts: dict[str, Clock] = {}
        self.heard: dict[int, tuple[str, tuple[str, int]]] = {}

    @property
    def ready(self) -> bool:
        """Whether it can go on."""
        return self.request is None or self.request.ready()

    def learn(self, clock: Clock) -> None:
        """Know what another knows."""
        join(self.clock, clock)

    def tick(self) -> None:
        """What comes now is not known to those who were told until now."""
        if self.agent:
            self.clock[self.agent] = self.clock.get(self.agent, 0) + 1

    def place(self) -> tuple[str, int]:
        """The user's file and line where it is."""
        return "", 0

    def step(self) -> bool:
        """Run to the next request; False at the end."""
        assert self.generator is not None
        value = None
        if self.request is not None:
            value = self.request.finish(self)
            self.request = None
        try:
            self.request = self.generator.send(value)  # type: ignore[attr-defined]
        except StopIteration:
            return False
        return True
