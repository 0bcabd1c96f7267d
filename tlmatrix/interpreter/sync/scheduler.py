"""The scheduler, and the policies by which it chooses.

A policy is a choice among all that hardware may do. Programs without races compute the same
under every one; the policies differ in which faults they provoke.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from .agents import Agent

_DEMOTED = 0.05
"""How often the agent of the highest priority gets the lowest."""
_STRAGGLE = 0.02
"""How often an agent falls behind for a while, if stragglers are asked for."""
_BEHIND = 400
"""The most steps that it falls behind."""
_ROUNDS = 8
"""How often polling agents look again, with no other progress, before it is a deadlock."""


class Policy(Protocol):
    """Chooses the agent that goes on."""

    def pick(self, agents: Sequence[Agent], step: int) -> Agent | None:
        """An agent that is ready; None if there is none."""


class InOrder:
    """The first agent that is ready; it runs until it waits."""

    def __init__(self) -> None:
        self._last: Agent | None = None

    def pick(self, agents: Sequence[Agent], _step: int) -> Agent | None:
        """The last agent again, or else the first that is ready."""
        last = self._last
        if last is None or last.done or not last.ready:
            last = self._last = next((a for a in agents if a.ready), None)
        return last


class _Straggling:
    """A policy under which agents may fall behind for a while."""

    def __init__(self, random: Random, *, stragglers: bool = False) -> None:
        self.random = random
        self.stragglers = stragglers

    def _falls_behind(self, agent: Agent, step: int) -> bool:
        if not self.stragglers or self.random.random() >= _STRAGGLE:
            return False
        agent.wakes = step + self.random.randrange(_BEHIND)
        return True


class Uniform(_Straggling):
    """Any agent that is ready."""

    def pick(self, agents: Sequence[Agent], step: int) -> Agent | None:
        """The next agent that is ready after a random one."""
        count = len(agents)
        start = self.random.randrange(count) if count else 0
        asleep: Agent | None = None
        for offset in range(count):
            agent = agents[(start + offset) % count]
            if not agent.ready:
                continue
            if agent.wakes <= step and not self._falls_behind(agent, step):
                return agent
            if asleep is None or agent.wakes < asleep.wakes:
                asleep = agent
        return asleep


class Prioritized(_Straggling):
    """The agent of the highest random priority; priorities change at random points.

    So some agents lag far behind (probabilistic concurrency testing, Burckhardt et al. 2010).
    """

    def pick(self, agents: Sequence[Agent], step: int) -> Agent | None:
        """The ready agent of the highest priority."""
        best: Agent | None = None
        asleep: Agent | None = None
        highest = -math.inf
        for agent in agents:
            # Whether an agent is ready takes longest to find out.
            if (agent.priority is not None and agent.priority <= highest) or not agent.ready:
                continue
            if agent.priority is None:
                agent.priority = self.random.random()
            if agent.wakes > step:
                if asleep is None or agent.wakes < asleep.wakes:
                    asleep = agent
            elif agent.priority > highest:
                best, highest = agent, agent.priority
        if best is None:
            return asleep
        if self.random.random() < _DEMOTED:
            best.priority = -self.random.random()
        self._falls_behind(best, step)
        return best


class Scheduler:
    """Resumes agents, one at a time.

    Attributes:
        agents: all agents that have not ended.
        policy: chooses among those that are ready.
        steps: how often one was chosen.
        progress: grows whenever an agent does more than to poll.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.agents: list[Agent] = []
        self.steps = 0
        self.progress = 0
        self._quiet = self._polled = self._progress = 0

    def pick(self) -> Agent | None:
        """The agent that goes on; None if nothing can change any more."""
        self.steps += 1
        return self.policy.pick(self.agents, self.steps) or self.poll()

    def poll(self) -> Agent | None:
        """An agent that polls; None if all have looked often enough without progress."""
        polling = [agent for agent in self.agents if agent.polls]
        if self._progress != self.progress:
            self._progress, self._quiet = self.progress, 0
        self._quiet += 1
        if self._quiet > _ROUNDS * len(polling):
            return None
        self._polled += 1
        return polling[self._polled % len(polling)]

    def step(self, agent: Agent) -> None:
        """Run an agent to its next request."""
        request = agent.request
        polls = request is not None and request.polls
        polled = (agent.line, agent.clock.get(agent.agent)) if polls else None
        if not agent.step():
            self.agents.remove(agent)
        elif polls and agent.polls and polled == (agent.line, agent.clock.get(agent.agent)):
            return
        self.progress += 1
