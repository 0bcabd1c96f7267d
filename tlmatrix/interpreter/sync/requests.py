"""What a role asks of the scheduler when it yields: to be resumed once something has happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .clocks import join

if TYPE_CHECKING:
    from .barriers import Mbarrier, Meeting, ThreadBarrier
    from .roles import Operation, Role

__all__ = ["Finish", "Meet", "Phase", "Request", "Spin", "Together"]


class Request:
    """Something a role waits for."""

    def ready(self) -> bool:
        """Whether the role may go on."""
        raise NotImplementedError

    def finish(self, role: Role) -> Any:
        """What the role learns and gets as it goes on."""
        raise NotImplementedError

    def describe(self) -> str:
        """The wait in words."""
        raise NotImplementedError


@dataclass
class Phase(Request):
    """A wait for a phase of an mbarrier."""

    bar: Mbarrier
    parity: int

    def ready(self) -> bool:
        """Whether the phase has completed."""
        return self.bar.passes(self.parity)

    def finish(self, role: Role) -> None:
        """Learn what those knew who arrived."""
        join(role.clock, self.bar.released)

    def describe(self) -> str:
        """The wait in words."""
        return f"wait for parity {self.parity & 1} of {self.bar.label}"


@dataclass
class Together(Request):
    """A wait for all threads of a barrier of threads."""

    bar: ThreadBarrier
    generation: int

    def ready(self) -> bool:
        """Whether all threads have come."""
        return self.bar.generation > self.generation

    def finish(self, role: Role) -> None:
        """Learn what all of them knew."""
        join(role.clock, self.bar.released)

    def describe(self) -> str:
        """The wait in words."""
        return f"wait at {self.bar.label}, where {self.bar.come} of {self.bar.count} threads came"


@dataclass
class Meet(Request):
    """A statement that several roles do together: the last one to come gets True and does it."""

    meeting: Meeting
    names: dict[int, str]
    leader: bool

    def ready(self) -> bool:
        """Whether it is this role's turn to do the statement, or it is done."""
        return self.leader or self.meeting.done

    def finish(self, role: Role) -> bool:
        """Learn what all of them knew; True for the one that does the statement."""
        join(role.clock, self.meeting.gathered)
        return self.leader

    def describe(self) -> str:
        """The wait in words."""
        absent = [self.names[m] for m in self.meeting.members if m not in self.meeting.come]
        return f"wait for {' and '.join(absent)} to do a statement that they do together"


@dataclass
class Finish(Request):
    """A wait for asynchronous operations of the role itself."""

    operations: tuple[Operation, ...]
    what: str
    # Whether only what the operations read is waited for, not what they write.
    reads: bool = False

    def ready(self) -> bool:
        """Whether all have completed."""
        return all(op.done for op in self.operations)

    def finish(self, role: Role) -> None:
        """Learn what they did."""
        for op in self.operations:
            join(role.clock, op.read_clock if self.reads else op.clock)

    def describe(self) -> str:
        """The wait in words."""
        return f"wait for {self.what}"


@dataclass
class Spin(Request):
    """One turn of a loop that reads what others write: a flag in global memory."""

    def ready(self) -> bool:
        """A spinning role may always look again."""
        return True

    def finish(self, role: Role) -> None:
        """Nothing is learnt from a turn."""

    def describe(self) -> str:
        """The wait in words."""
        return "spin in a loop on memory that nobody changes any more"
