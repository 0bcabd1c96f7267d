"""Accesses of memory that streams and ranks share, and the races between them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.reports import Party, Report, ReportSet, rendered

if TYPE_CHECKING:
    from .agents import Agent, Order

FREE = "free"
"""The operation of a host that releases symmetric memory."""
ZERO = "zero"
"""The operation of a stream that initializes new symmetric memory."""
UNZEROED = (
    "a stream zeroes new symmetric memory, and ranks that meet in rendezvous do not wait for that "
    "(PyTorch up to 2.13); call torch.cuda.synchronize() between empty and rendezvous, or let the "
    "hosts meet once more behind it"
)
"""Why symmetric memory may be used before it is ready, and what to do."""
_AGAIN = "memory is used again before all have read it; a barrier in between, or a second buffer"

_highest, _lowest = np.maximum.reduce, np.minimum.reduce

Where = tuple[str, str, Any, bool]
"""The kernel's name of a buffer, its storage, the index, and whether elements have an own axis."""


@dataclass(slots=True, unsafe_hash=True)
class Access:
    """One access of memory; it never changes, but a frozen class takes three times as long to make.

    Attributes:
        agent: the agent that made it.
        time: that agent's time; a clock that includes it is ordered after the access.
        action: "read", "write" or "atomic".
        file: the user's file.
        line: its line.
        what: the operation: "copy", "kernel gemm", "flag".
        scope: of a flag "gpu" or "sys"; empty for an access that is no flag's.
        rank: the rank.
        by: the stream, as text.
        block: the block's index, of a block.
        launch: the number of its launch; 0 of a stream's own work.
        alone: the number of the set of it alone (`Races.own`); -1 until it is known.
    """

    agent: int
    time: int
    action: str
    file: str
    line: int
    what: str
    scope: str = ""
    rank: int = field(default=0, compare=False)
    by: str = field(default="", compare=False)
    block: tuple[int, ...] | None = field(default=None, compare=False)
    launch: int = field(default=0, compare=False)
    alone: int = field(default=-1, compare=False)

    @classmethod
    def of(
        cls, agent: Agent, action: str, file: str, line: int, what: str, scope: str = ""
    ) -> Access:
        """An access that an agent makes now."""
        launch = agent.launch.number if agent.launch is not None else 0
        number, clock = agent.agent, agent.clock
        of_agent = agent.rank, agent.name, agent.index, launch
        return cls(number, clock.get(number, 0), action, file, line, what, scope, *of_agent)

    def conflicts(self, new: Access) -> bool:
        """Whether a later access must be ordered after this one."""
        if self.action == new.action == "read":
            return False
        # The monitor of a launch checks accesses of its blocks.
        if new.launch and self.launch == new.launch and not (self.scope or new.scope):
            return False
        if self.what == FREE or not self.scope or not new.scope:
            return True
        # Both are atomic: their scopes must include each other.
        return self.rank != new.rank and not self.scope == new.scope == "sys"

    def __str__(self) -> str:
        if self.what == FREE:
            return f"freed by {self.by}, which dropped it"
        if self.what == ZERO:
            return f"zeroed by {self.by}, as symmetric_memory.empty asked"
        if self.what == "flag":
            return f"{'read' if self.action == 'read' else 'set'} as a flag by {self.by}"
        actions = {"read": "read", "write": "written", "atomic": "updated atomically"}
        block = f", block {self.block}" if self.block is not None else ""
        return f"{actions[self.action]} by {self.by} ({self.what}{block})"


class Races:
    """Sets of accesses by number, and the races found between them.

    Of each element the last writes and the reads since are such a set. An access that is not
    ordered after one that it conflicts with is a race (FastTrack, with sets of readers).
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._sets: list[tuple[Access, ...]] = [()]
        self._numbers: dict[tuple[Access, ...], int] = {(): 0}
        self._found = ReportSet()
        # The union of a set and an access, and sets that an access does not race with: a clock
        # only grows, so both hold for all accesses that are equal.
        self._unions: dict[tuple[int, int], int] = {}
        self._ordered: set[tuple[int, int]] = set()

    def number(self, members: tuple[Access, ...]) -> int:
        """The number of a set of accesses."""
        found = self._numbers.get(members)
        if found is None:
            found = self._numbers[members] = len(self._sets)
            self._sets.append(members)
        return found

    def own(self, new: Access) -> int:
        """The number of the set of one access."""
        if new.alone < 0:
            new.alone = self.number((new,))
        return new.alone

    def joined(self, numbers: Any, new: Access, agent: Agent) -> Any:
        """The sets with one access more, without those ordered before it."""
        own = self.own(new)
        values = _distinct(numbers)
        if len(values) == 1:
            return self._with(values[0], own, new, agent)
        unions = np.zeros(values[-1] + 1, np.int32)
        unions[values] = [self._with(v, own, new, agent) for v in values]
        return unions[numbers]

    def _with(self, number: int, own: int, new: Access, agent: Agent) -> int:
        key = number, own
        union = self._unions.get(key)
        if union is not None:
            return union
        members = []
        for old in self._sets[number]:
            if self._order.knows(agent.clock, old.agent, old.time):
                continue
            after = self._order.retired.get(old.agent)
            # Of a kernel that has ended one block stands for all.
            members.append(
                old if after is None else replace(old, agent=after[0], time=after[1], alone=-1)
            )
        self._unions[key] = union = self.number((*dict.fromkeys(members), new))
        return union

    def check(self, numbers: Any, mask: Any, new: Access, agent: Agent, where: Where) -> None:
        """Report accesses of these sets that race with a new one."""
        values = _distinct(numbers)
        if values[-1] == 0:
            return
        own = self.own(new)
        for value in values:
            if self._is_ordered(value, own, new, agent):
                continue
            old = self._conflict(value, new, agent)
            assert old is not None
            bad = np.equal(numbers, value)
            if mask is not None:
                bad = bad & mask
            if bad.any():
                self._note(old, new, agent, bad, where)
                return

    def ordered(self, numbers: Any, new: Access, agent: Agent) -> bool:
        """Whether a new access races with none of these sets."""
        own = self.own(new)
        return all(self._is_ordered(value, own, new, agent) for value in _distinct(numbers))

    def _is_ordered(self, number: int, own: int, new: Access, agent: Agent) -> bool:
        if number == 0 or (number, own) in self._ordered:
            return True
        if self._conflict(number, new, agent) is not None:
            return False
        self._ordered.add((number, own))
        return True

    def _conflict(self, number: int, new: Access, agent: Agent) -> Access | None:
        for old in self._sets[number]:
            if old.conflicts(new) and (
                old.what == FREE or not self._order.knows(agent.clock, old.agent, old.time)
            ):
                return old
        return None

    def _note(self, old: Access, new: Access, agent: Agent, bad: Any, where: Where) -> None:
        name, storage, memory, wide = where
        key = (new.file, new.line, new.action, old.file, old.line, old.action, storage == "")
        if self._found.again(key):
            return
        if wide:
            bad = bad.any(-1)
        first, box = _region(memory, bad)
        of = f"{name} ({storage})" if storage and name != "a tensor" else storage or name
        subject = f"elements [{box}] of {of}" if box else of
        text = f"{subject} {'are' if box else 'is'} {old}, then {new}"
        if old.what == FREE:
            text += ": all uses must end before, or the tensor be kept"
        elif ZERO in (old.what, new.what):
            text += f", and nothing orders the two: {UNZEROED}"
        elif new.what == FREE:
            text += ", and nothing orders the two: let all ranks meet in between, and the host wait"
        else:
            text += f", and nothing orders the two{self._advice(old, new, agent)}"
        party = Party(old.block, old.file, old.line, old.action, old.by)
        kernel = new.what.removeprefix("kernel ") if new.what.startswith("kernel ") else ""
        kernel = agent.kernel or kernel
        report = Report(
            "races",
            kernel,
            new.file,
            new.line,
            name if name != "a tensor" else storage or name,
            first,
            new.block,
            text,
            party,
            rank=new.rank,
        )
        self._found.add(report, key)

    def _advice(self, old: Access, new: Access, agent: Agent) -> str:
        """What would order the two."""
        for reason, clock in agent.missed_acquires.items():
            if self._order.knows(clock, old.agent, old.time):
                return f": {reason}"
        flag = agent.acquired_through.get(old.agent)
        if flag is not None and old.action != "read":
            name, place = flag
            where = rendered(place)
            return (
                f": {name} is set at {where} before that; set it behind what it stands for, unless "
                f"{_AGAIN}"
            )
        if old.scope and new.scope:
            return ": both are flags, but ranks need the scope of the system (_sys) on both sides"
        if old.rank == new.rank:
            return (
                f": {new.by} must wait for {old.by} (wait_stream, an event, or a flag that is "
                "set behind the first and waited for before the second)"
            )
        if old.action == "read":
            return f": {_AGAIN}"
        if old.scope or new.scope:
            return ": a flag is set by flag functions alone, or with a barrier in between"
        return (
            ": a barrier in between, or a flag that is released after the first and acquired "
            "before the second"
        )

    def reports(self) -> list[Report]:
        """What was found, in order."""
        return self._found.reports()


def _distinct(numbers: Any) -> list[int]:
    """The numbers that occur, in order; [0] of none."""
    if not isinstance(numbers, np.ndarray):
        return [int(numbers)]
    if numbers.size <= 1:
        return numbers.ravel().tolist() or [0]
    high = int(_highest(numbers, None))
    if high == 0 or int(_lowest(numbers, None)) == high:
        return [high]
    # Sets are few, and numbered from 0: counting them is faster than to sort.
    present = np.zeros(high + 1, bool)
    present[numbers] = True
    found: list[int] = np.flatnonzero(present).tolist()
    return found


def _region(memory: Any, bad: Any) -> tuple[tuple[int, ...], str]:
    """The first bad element and the box of all, in the buffer's own dimensions."""
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
