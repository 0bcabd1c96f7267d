"""Where ranks meet: each brings something to the next collective of a group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.callsite import caller, rendered
from tlmatrix.interpreter.errors import SynchronizationError

from . import context
from .agents import Agent, Request
from .clocks import Clock, join

if TYPE_CHECKING:
    from collections.abc import Callable

    from .world import Rank

__all__ = ["Meeting", "Met", "arrive", "meet"]


@dataclass
class Meeting:
    """One collective: what each rank brings.

    Attributes:
        what: what the first to come calls: its name and what must agree.
        members: the ranks that must come.
        brought: what has been brought, by rank.
        clocks: what is known together.
        over: whether it is done.
    """

    what: str
    group: str
    members: tuple[int, ...]
    place: tuple[str, int]
    first: int
    brought: dict[int, Any] = field(default_factory=dict)
    clocks: Clock = field(default_factory=dict)
    over: bool = False


@dataclass
class Met(Request):
    """A wait for the others in a collective."""

    meeting: Meeting

    def ready(self) -> bool:
        """Whether all have come."""
        return self.meeting.over

    def finish(self, task: Agent) -> None:
        """Know what all knew."""
        task.learn(self.meeting.clocks)

    def describe(self) -> str:
        """The wait in words."""
        meeting = self.meeting
        absent = [str(m) for m in meeting.members if m not in meeting.brought]
        return (
            f"in {meeting.what} of {meeting.group} for rank{'s' * (len(absent) != 1)} "
            f"{', '.join(absent)} to call it"
        )


def arrive(
    rank: Rank,
    task: Agent,
    key: tuple[Any, ...],
    what: str,
    members: tuple[int, ...],
    data: Any,
    place: tuple[str, int],
    work: Callable[[list[Any]], None] | None,
) -> Meeting:
    """Come to the next collective of a group, and do it if all have come."""
    counts = rank.state.setdefault("collectives", {})
    number = counts[key] = counts.get(key, 0) + 1
    meetings = rank.world.state.setdefault("meetings", {})
    meeting: Meeting | None = meetings.get((key, number))
    if meeting is None:
        meeting = Meeting(what, str(key[0]), members, place, rank.number)
        meetings[key, number] = meeting
    if meeting.members != members:
        raise SynchronizationError(
            f"ranks do not mean the same by {meeting.group}: rank {rank.number} calls {what} at "
            f"{rendered(place)} of {_listed(members)}, where rank {meeting.first} calls "
            f"{meeting.what} at {rendered(meeting.place)} of {_listed(meeting.members)}; every "
            "process must call torch.distributed.new_group for all groups, in the same order"
        )
    if meeting.what != what:
        raise SynchronizationError(
            f"ranks call different collectives: rank {rank.number} calls {what} at "
            f"{rendered(place)}, where rank {meeting.first} calls {meeting.what} at "
            f"{rendered(meeting.place)} (number {number} of {meeting.group}); every rank of a "
            "group must call the same ones in the same order"
        )
    meeting.brought[rank.number] = data
    join(meeting.clocks, task.clock)
    if len(meeting.brought) == len(members):
        if work is not None:
            work([meeting.brought[m] for m in members])
        meeting.over = True
        del meetings[key, number]
    return meeting


def _listed(members: tuple[int, ...]) -> str:
    return ", ".join(map(str, members))


def meet(key: tuple[Any, ...], what: str, members: tuple[int, ...], data: Any) -> list[Any]:
    """The host meets those of other ranks; what each brought, in the order of `members`.

    Raises:
        RuntimeError: its stream is being captured.
    """
    rank = context.rank()
    assert rank is not None
    rank.here = caller()
    if rank.stream.capture is not None:
        rank.stream.capture.refuse(what)
    meeting = arrive(rank, rank, key, what, members, data, rank.here, None)
    rank.world.wait(rank, Met(meeting))
    return [meeting.brought[m] for m in members]
