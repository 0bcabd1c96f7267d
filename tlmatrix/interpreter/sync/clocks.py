"""Vector clocks, and the order of accesses that follows from them.

An agent is anything that runs by itself: a warp role, a queue of asynchronous work, a block, a
stream, a rank. A clock holds for every agent how much of its past is ordered before its owner. An
access is ordered before another if the clock of the other includes it. Two accesses to one
element, one of them a write, neither ordered before the other, are a race, whatever values they
happened to see (Lamport 1978; FastTrack, Flanagan and Freund 2009).
"""

from __future__ import annotations

Clock = dict[int, int]


def fenced(agent: int) -> int:
    """The key by which a clock holds how much of an agent's past a proxy fence has covered."""
    return ~agent


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
