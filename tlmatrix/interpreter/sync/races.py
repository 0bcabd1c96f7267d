"""Which accesses nothing orders, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.callsite import rendered
from tlmatrix.interpreter.reports import Party, Report

from .findings import Findings
from .seen import FREE, UNZEROED, ZERO

if TYPE_CHECKING:
    from .agents import Agent
    from .clocks import Order
    from .seen import Seen

__all__ = ["Races"]

# What the user calls it, what it is, the index, and whether elements have an axis of their own.
Where = tuple[str, str, Any, bool]


_AGAIN = "memory is used again before all have read it; a barrier in between, or a second buffer"


class Races:
    """Sets of accesses by number, and the races found between them."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._sets: list[tuple[Seen, ...]] = [()]
        self._numbers: dict[tuple[Seen, ...], int] = {(): 0}
        self._found = Findings()
        # What an access makes of a set, and the sets that it does not conflict with: a task's
        # clock only grows, so neither needs another look while the access is the same.
        self._made: dict[tuple[int, int], int] = {}
        self._calm: set[tuple[int, int]] = set()

    def number(self, members: tuple[Seen, ...]) -> int:
        """The number of a set of accesses."""
        found = self._numbers.get(members)
        if found is None:
            found = self._numbers[members] = len(self._sets)
            self._sets.append(members)
        return found

    def joined(self, numbers: Any, seen: Seen, task: Agent) -> Any:
        """The sets with one access more, without those that it comes after."""
        low, high = int(np.min(numbers)), int(np.max(numbers))
        if low == high:
            return self._with(low, seen, task)
        values, places = np.unique(numbers, return_inverse=True)
        new = np.array([self._with(int(v), seen, task) for v in values], np.int32)
        return new[places].reshape(np.shape(numbers))

    def _with(self, number: int, seen: Seen, task: Agent) -> int:
        key = number, self.number((seen,))
        made = self._made.get(key)
        if made is not None:
            return made
        members = []
        retired = self._order.retired
        for old in self._sets[number]:
            if self._order.knows(task.clock, old.agent, old.time):
                continue
            after = retired.get(old.agent)
            # Of a kernel that is over one block stands for all.
            members.append(old if after is None else replace(old, agent=after[0], time=after[1]))
        self._made[key] = made = self.number((*dict.fromkeys(members), seen))
        return made

    def check(self, numbers: Any, mask: Any, seen: Seen, task: Agent, where: Where) -> None:
        """Look for accesses that nothing orders before `seen`."""
        numbers = np.asarray(numbers)
        if numbers.size == 0:
            return
        high = int(numbers.max())
        if high == 0:
            return
        values = [high] if int(numbers.min()) == high else np.unique(numbers).tolist()
        own = self.number((seen,))
        for value in values:
            if (value, own) in self._calm:
                continue
            old = self._conflict(value, seen, task)
            if old is None:
                self._calm.add((value, own))
                continue
            bad = numbers == value
            if mask is not None:
                bad = bad & mask
            if bad.any():
                self._note(old, seen, task, bad, where)
                return

    def _conflict(self, number: int, seen: Seen, task: Agent) -> Seen | None:
        for old in self._sets[number]:
            if old.action == "read" and seen.action == "read":
                continue
            # Blocks of one launch are the monitor's.
            if seen.launch and old.launch == seen.launch and not (old.scope or seen.scope):
                continue
            if old.what == FREE:
                return old
            if old.compatible(seen) or self._order.knows(task.clock, old.agent, old.time):
                continue
            return old
        return None

    def _note(self, old: Seen, seen: Seen, task: Agent, bad: Any, where: Where) -> None:
        name, storage, memory, wide = where
        key = (seen.file, seen.line, seen.action, old.file, old.line, old.action, storage == "")
        if self._found.again(key):
            return
        if wide:
            bad = bad.any(-1)
        first, box = _region(memory, bad)
        of = f"{name} ({storage})" if storage and name != "a tensor" else storage or name
        spelled = f"elements [{box}] of {of}" if box else of
        text = f"{spelled} {'are' if box else 'is'} {old}, then {seen}"
        if old.what == FREE:
            text += ": who uses it must be done before, or keep the tensor"
        elif ZERO in (old.what, seen.what):
            text += f", and nothing orders the two: {UNZEROED}"
        elif seen.what == FREE:
            text += ", and nothing orders the two: let all ranks meet in between, and the host wait"
        else:
            text += f", and nothing orders the two{self._advice(old, seen, task)}"
        party = Party(old.block, old.file, old.line, old.action, old.who)
        kernel = seen.what.removeprefix("kernel ") if seen.what.startswith("kernel ") else ""
        kernel = task.kernel or kernel
        report = Report(
            "races",
            kernel,
            seen.file,
            seen.line,
            name if name != "a tensor" else storage or name,
            first,
            seen.block,
            text,
            party,
            rank=seen.rank,
        )
        self._found.add(report, key)

    def _advice(self, old: Seen, seen: Seen, task: Agent) -> str:
        """What would order the two."""
        for reason, clock in task.doubts.items():
            if self._order.knows(clock, old.agent, old.time):
                return f": {reason}"
        heard = task.heard.get(old.agent)
        if heard is not None and old.action != "read":
            name, place = heard
            where = rendered(place)
            return (
                f": {name} is set at {where} before that; set it behind what it stands for, unless "
                f"{_AGAIN}"
            )
        if old.scope and seen.scope:
            return ": both are flags, but ranks need the scope of the system (_sys) on both sides"
        if old.rank == seen.rank:
            return (
                f": {seen.who} must wait for {old.who} (wait_stream, an event, or a flag that is "
                "set behind the first and waited for before the second)"
            )
        if old.action == "read":
            return f": {_AGAIN}"
        if old.scope or seen.scope:
            return ": a flag is set by flag functions alone, or with a barrier in between"
        return (
            ": a barrier in between, or a flag that is released after the first and acquired "
            "before the second"
        )

    def reports(self) -> list[Report]:
        """What was found, in order."""
        return self._found.reports()


def _region(memory: Any, bad: Any) -> tuple[tuple[int, ...], str]:
    """The first element that is bad, and the box of all, in the buffer's own dimensions."""
    if not isinstance(memory, tuple) or not memory:
        return (), ""
    where = np.argwhere(bad)
    if isinstance(memory[0], np.ndarray):
        lanes = where[:, 0]
        columns = [np.asarray(i)[lanes] for i in memory]
    else:
        ranges = iter(range(where.shape[1]))
        columns = [
            m.start + (m.step or 1) * where[:, next(ranges)]
            if isinstance(m, slice)
            else np.full(len(where), int(m))
            for m in memory
        ]
    first = tuple(int(c[0]) for c in columns)
    spans = [(int(c.min()), int(c.max()) + 1) for c in columns]
    return first, ", ".join(str(a) if b == a + 1 else f"{a}:{b}" for a, b in spans)
