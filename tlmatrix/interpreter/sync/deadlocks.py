"""What is said of a simulation in which nobody can go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.callsite import rendered
from tlmatrix.interpreter.errors import DeadlockError
from tlmatrix.interpreter.reports import Party, Report

from .flags import FlagWait, last_write
from .residency import Slot

if TYPE_CHECKING:
    from .agents import Agent
    from .world import World

__all__ = ["deadlock"]


_SHOWN = 16
"""How many different waits are told."""


def _weight(task: Agent) -> tuple[int, int, str]:
    """Flags come first: the rest waits for them."""
    request = task.request
    kinds = (FlagWait, Slot)
    kind = next((k for k, one in enumerate(kinds) if isinstance(request, one)), len(kinds))
    return kind, task.rank, task.name


def deadlock(world: World) -> DeadlockError:
    """The error: who waits for what, and why it cannot come. It has a report for sanitizers."""
    waiting = [t for t in world.tasks if t.request is not None and not t.request.idle]
    count = f"{world.size} simulated rank{'s' * (world.size != 1)}"
    lines = [f"deadlock: every task of {count} waits, and nothing is in flight"]
    groups: dict[tuple[Any, ...], list[Agent]] = {}
    for task in sorted(waiting, key=_weight):
        assert task.request is not None
        groups.setdefault((task.name, task.kernel, task.request.describe()), []).append(task)
    for (name, kernel, what), tasks in list(groups.items())[:_SHOWN]:
        place = rendered(tasks[0].place())
        lines.append(f"  {name}{_blocks(kernel, tasks)} waits {what}, at {place}")
        request = tasks[0].request
        assert request is not None
        lines += [f"    {text}" for text in request.why()]
    if len(groups) > _SHOWN:
        lines.append(f"  and {len(groups) - _SHOWN} more wait")
    error = DeadlockError("\n".join(lines))
    first = min(waiting, key=_weight, default=None)
    if first is not None:
        error.report = _report(world, first, lines)  # type: ignore[attr-defined]
    return error


def _blocks(kernel: str, tasks: list[Agent]) -> str:
    indices = [str(getattr(t, "index", "")) for t in tasks]
    if not any(indices):
        return ""
    shown = ", ".join(indices[:4]) + (f" and {len(indices) - 4} more" if len(indices) > 4 else "")
    return f", kernel {kernel}, block{'s' * (len(indices) > 1)} {shown}"


def _report(world: World, task: Agent, lines: list[str]) -> Report:
    file, line = task.place()
    request = task.request
    name, index, last = "", tuple[int, ...](), None
    if isinstance(request, FlagWait):
        name, index = request.pointer.name, request.pointer.index
        last = last_write(world, request.pointer)
    other = None
    if last is not None:
        other = Party(None, *last.place, "write", who=last.who)
    assert request is not None
    why = "".join(f"; {text}" for text in request.why())
    first = f"{task.name}{_blocks(task.kernel, [task])} waits {request.describe()}{why}"
    return Report(
        "barriers",
        task.kernel,
        file,
        line,
        name,
        index,
        getattr(task, "index", None),
        "\n".join([f"{first}; nobody can go on", *lines[1:]]),
        other,
        rank=task.rank,
    )
