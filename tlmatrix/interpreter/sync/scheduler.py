"""The scheduler, and the policies by which it chooses.

A policy is a choice among all that hardware may do. Programs without races compute the same
under every one; the policies differ in which faults they provoke.

The report of a deadlock says which agents wait, for what, and why it cannot come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from tlmatrix.interpreter.errors import DeadlockError
from tlmatrix.interpreter.reports import Party, Report, ReportSet, rendered

if TYPE_CHECKING:
    from .agents import Agent, Request


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


_SHOWN = 16
"""How many different waits the error shows."""


def deadlock(where: str, agents: Sequence[Agent], rank: bool = False) -> DeadlockError:
    """The error for agents none of which can go on; it has reports for sanitizers.

    Args:
        where: what is in deadlock: "block (0, 0)", "4 simulated ranks".
        agents: its agents.
        rank: whether reports name the rank.
    """
    lines = [f"deadlock in {where}: every agent waits, and nothing is in flight"]
    lines += [f"  {agent.name} are at their end" for agent in agents if agent.done]
    groups: dict[tuple[Any, ...], list[Agent]] = {}
    for agent in sorted((a for a in agents if _waits(a)), key=_weight):
        name = agent.name, (agent.kernel if rank else ""), _request(agent).describe()
        groups.setdefault(name, []).append(agent)
    waiting = list(groups.values())
    for group in waiting[:_SHOWN]:
        lines.append(f"  {_sentence(group, rank)}, at {rendered(group[0].place())}")
        lines += [f"    {text}" for text in _request(group[0]).why()]
    if len(waiting) > _SHOWN:
        lines.append(f"  and {len(waiting) - _SHOWN} more wait")
    error = DeadlockError("\n".join(lines))
    found = ReportSet()
    for group in waiting:
        if _request(group[0]).weight() == _request(waiting[0][0]).weight():
            report = _report(group, waiting, lines, rank)
            found.add(report, (report.file, report.line, report.buffer))
    error.reports = found.reports()
    return error


def _waits(agent: Agent) -> bool:
    return not agent.done and agent.request is not None and not agent.request.idle


def _request(agent: Agent) -> Request:
    assert agent.request is not None
    return agent.request


def _weight(agent: Agent) -> tuple[int, int, str]:
    return _request(agent).weight(), agent.rank, agent.name


def _sentence(group: Sequence[Agent], rank: bool) -> str:
    """A wait of some agents as text, with their blocks if they are of several ranks."""
    first = group[0]
    of = ""
    indices = [str(agent.index) for agent in group if agent.index is not None]
    if rank and indices:
        shown = ", ".join(indices[:4])
        shown += f" and {len(indices) - 4} more" if len(indices) > 4 else ""
        of = f", kernel {first.kernel}, block{'s' * (len(indices) > 1)} {shown}"
    return f"{first.name}{of} {first.waits} {_request(first).describe()}"


def _report(
    group: Sequence[Agent], waiting: Sequence[Sequence[Agent]], lines: list[str], rank: bool
) -> Report:
    agent, request = group[0], _request(group[0])
    other = request.other()
    if other is None and not rank:
        partner = next((g[0] for g in waiting if g is not group), None)
        if partner is not None:
            other = Party(agent.index, *partner.place(), "wait")
    text = "".join(f"; {line}" for line in request.why())
    first = f"{_sentence(group[:1], rank)}{text}; nothing can end this wait"
    return Report(
        "barriers",
        agent.kernel,
        *agent.place(),
        *request.subject(),
        agent.index,
        "\n".join([first, *lines[1:]]) if rank else first,
        other,
        rank=agent.rank if rank else None,
    )
