"""The report of a deadlock: which agents wait, for what, and why it cannot come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.callsite import rendered
from tlmatrix.interpreter.errors import DeadlockError
from tlmatrix.interpreter.reports import Party, Report, ReportSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .agents import Agent, Request

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
