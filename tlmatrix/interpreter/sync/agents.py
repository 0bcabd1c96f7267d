"""Agents: what a scheduler resumes, and what they wait for.

An agent runs until it yields a request, and is resumed once the request is ready: warp roles,
asynchronous work, blocks, streams, and the hosts of ranks.

A vector clock holds for every agent how much of its past is ordered before its owner. An access is
ordered before another if the clock of the other includes it. Two accesses to one element, one of
them a write, neither ordered before the other, are a race, whatever values they happened to see
(Lamport 1978; FastTrack, Flanagan and Freund 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tlmatrix.interpreter.reports import Party


Clock = dict[int, int]
_BY_ALL = 1 << 40


def fenced(agent: int) -> int:
    """The key by which a clock holds how much of an agent's past a proxy fence has covered."""
    return ~agent


def by_all(agent: int) -> int:
    """The key by which a clock holds how much of their past all threads of an agent have shared."""
    return agent | _BY_ALL


def join(into: Clock, other: Clock) -> None:
    """Raise a clock to the maximum of itself and another."""
    for agent, time in other.items():
        if into.get(agent, 0) < time:
            into[agent] = time


class Order:
    """The happens-before order of a world or a launch.

    Attributes:
        retired: agents that have ended, with the agent and the time that stand for them.
    """

    def __init__(self) -> None:
        self.retired: dict[int, tuple[int, int]] = {}

    def knows(self, clock: Clock, agent: int, time: int) -> bool:
        """Whether a clock includes an agent's time."""
        if clock.get(agent, 0) >= time:
            return True
        after = self.retired.get(agent)
        return after is not None and self.knows(clock, *after)

    def forget(self, clock: Clock) -> None:
        """Drop retired agents from a clock that includes what stands for them."""
        for agent in [a for a in clock if a in self.retired]:
            if self.knows(clock, *self.retired[agent]):
                del clock[agent]


class Request:
    """What an agent waits for before it goes on."""

    idle = False
    """Whether the agent has nothing to do, rather than something to wait for."""
    polls = False
    """Whether the agent has to run to see if it may go on: a loop that reads a flag."""
    outside = False
    """Whether other blocks may end the wait."""

    def ready(self) -> bool:
        """Whether the agent may go on."""
        raise NotImplementedError

    def finish(self, agent: Agent) -> Any:
        """Let the agent learn what it waited for; returns the value of its `yield`."""
        del agent

    def describe(self) -> str:
        """The wait as text, after "waits"."""
        raise NotImplementedError

    def why(self) -> list[str]:
        """Lines that explain why the wait may never end."""
        return []

    def weight(self) -> int:
        """Order among the waits of a deadlock: the lowest are its cause, and are reported."""
        return 2

    def subject(self) -> tuple[str, tuple[int, ...]]:
        """The buffer, and the element of it, that is waited for."""
        return "", ()

    def other(self) -> Party | None:
        """The other party of a report on this wait."""
        return None


@dataclass
class Wait(Request):
    """A wait for a condition.

    Attributes:
        condition: whether the agent may go on.
        what: the wait as text, after "waits".
        clock: what the agent acquires.
        value: the value of its `yield`.
        barrier: the barrier that reports name.
        outside: whether other blocks may end the wait.
    """

    condition: Callable[[], bool]
    what: Callable[[], str]
    clock: Callable[[], Clock] = dict
    value: Any = None
    barrier: str = ""
    outside: bool = False

    def ready(self) -> bool:
        """Whether the condition holds."""
        return self.condition()

    def finish(self, agent: Agent) -> Any:
        """Acquire the clock."""
        agent.learn(self.clock())
        return self.value

    def describe(self) -> str:
        """The wait, as text."""
        return self.what()

    def subject(self) -> tuple[str, tuple[int, ...]]:
        """The barrier."""
        return self.barrier, ()


class Agent:
    """What a scheduler resumes.

    Attributes:
        rank: the rank it belongs to.
        name: what it is, as text: "rank 1, stream pull", "threads 0..127".
        agent: its number in clocks; 0 for hosts, which access nothing themselves.
        clock: what is ordered before it.
        generator: its work, yielding requests; None for a host, whose work is its thread.
        request: what it waits for; None if it can go on.
        done: whether it has ended.
        wakes: the step of the scheduler before which it is not chosen.
        priority: its priority, under policies that use one.
        launch: of a block or a role its launch.
        index: of a block or a role the block's index in the grid.
        kernel: the kernel's name, while it runs one.
        acquired_through: for each agent the flag that ordered it before, and where that was set.
        spins: the flag that it reads again and again, its version, and how often it was read.
        missed_acquires: the clocks of flags whose order or scope was too weak, by what was wrong.
    """

    waits = "waits"
    """The verb that goes with its name."""
    generator: Iterator[Request | None] | None = None
    request: Request | None = None
    done = False
    wakes = 0
    priority: float | None = None
    launch: Any = None
    index: tuple[int, ...] | None = None
    kernel = ""
    spins: tuple[tuple[int, int] | None, int] = (None, 0)

    def __init__(self, rank: int, name: str, agent: int) -> None:
        self.rank = rank
        self.name = name
        self.agent = agent
        self.clock: Clock = {agent: 1} if agent else {}
        self.missed_acquires: dict[str, Clock] = {}
        self.acquired_through: dict[int, tuple[str, tuple[str, int]]] = {}

    @property
    def ready(self) -> bool:
        """Whether it can go on."""
        return self.request is None or self.request.ready()

    @property
    def polls(self) -> bool:
        """Whether it can only look again at what other agents write."""
        return self.request is not None and self.request.polls

    @property
    def waits_outside(self) -> bool:
        """Whether it waits for what other blocks may do."""
        return self.request is not None and (self.request.outside or self.request.polls)

    @property
    def line(self) -> int:
        """The line of its generator that it is at; 0 if there is none."""
        frame = getattr(self.generator, "gi_frame", None)
        return frame.f_lineno if frame is not None else 0

    def learn(self, clock: Clock) -> None:
        """Order what another clock includes before this agent."""
        join(self.clock, clock)

    def tick(self) -> None:
        """Advance the agent's own time after a release."""
        if self.agent:
            self.clock[self.agent] = self.clock.get(self.agent, 0) + 1

    def place(self) -> tuple[str, int]:
        """The user's file and line where it is."""
        return "", 0

    def resumed(self) -> None:
        """Called before the agent runs: what follows is its own."""

    def step(self) -> bool:
        """Run to the next request; False at the end."""
        assert self.generator is not None
        value = None
        if self.request is not None:
            value = self.request.finish(self)
            self.request = None
        self.resumed()
        try:
            self.request = self.generator.send(value)  # type: ignore[attr-defined]
        except StopIteration:
            self.done = True
            return False
        return True


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
        if self.launch.watch is not None:
            self.resumed()

    def resumed(self) -> None:
        """Let the monitor attribute accesses to this agent."""
        watch = self.launch.watch
        if watch is not None and self.running is not None:
            watch.work_as(self.running, self.clock, self.agent, self.clock[self.agent])
