"""Collectives: a rendezvous of the ranks of a group, to which each brings data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.errors import SynchronizationError
from tlmatrix.interpreter.reports import caller, rendered

from .agents import Agent, Wait
from .barriers import Rendezvous
from .context import current_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .world import Rank


@dataclass
class Collective(Rendezvous):
    """One collective.

    Attributes:
        what: what the first rank calls: its name and what must agree.
        group: the group, as text.
        place: where the first rank calls it.
        first: the first rank.
    """

    what: str = ""
    group: str = ""
    place: tuple[str, int] = ("", 0)
    first: int = 0

    def wait(self) -> Wait:
        """A wait for the other ranks."""
        return Wait(lambda: self.done, self._describe, lambda: self.clock)

    def _describe(self) -> str:
        absent = self.absent
        return (
            f"in {self.what} of {self.group} for rank{'s' * (len(absent) != 1)} "
            f"{_listed(absent)} to call it"
        )


def arrive(
    rank: Rank,
    agent: Agent,
    key: tuple[Any, ...],
    what: str,
    members: tuple[int, ...],
    data: Any,
    place: tuple[str, int],
    work: Callable[[list[Any]], None] | None,
) -> Collective:
    """Come to the next collective of a group, and execute it if all have come.

    Raises:
        SynchronizationError: if ranks call different collectives.
    """
    counts = rank.state.setdefault("collectives", {})
    number = counts[key] = counts.get(key, 0) + 1
    collectives = rank.world.state.setdefault("collectives", {})
    found: Collective | None = collectives.get((key, number))
    if found is None:
        found = Collective(members, what=what, group=str(key[0]), place=place, first=rank.number)
        collectives[key, number] = found
    if found.members != members:
        raise SynchronizationError(
            f"ranks do not mean the same by {found.group}: rank {rank.number} calls {what} at "
            f"{rendered(place)} of {_listed(members)}, where rank {found.first} calls "
            f"{found.what} at {rendered(found.place)} of {_listed(found.members)}; every "
            "process must call torch.distributed.new_group for all groups, in the same order"
        )
    if found.what != what:
        raise SynchronizationError(
            f"ranks call different collectives: rank {rank.number} calls {what} at "
            f"{rendered(place)}, where rank {found.first} calls {found.what} at "
            f"{rendered(found.place)} (number {number} of {found.group}); every rank of a "
            "group must call the same ones in the same order"
        )
    if found.arrive(rank.number, agent.clock, data):
        if work is not None:
            work([found.brought[m] for m in members])
        found.done = True
        del collectives[key, number]
    return found


def _listed(members: Sequence[int]) -> str:
    return ", ".join(map(str, members))


def meet(key: tuple[Any, ...], what: str, members: tuple[int, ...], data: Any) -> list[Any]:
    """A host meets those of other ranks; returns what each brought, in the order of `members`.

    Raises:
        RuntimeError: its stream is being captured.
    """
    rank = current_rank()
    rank.call_site = caller()
    if rank.stream.capture is not None:
        rank.stream.capture.refuse(what)
    found = arrive(rank, rank, key, what, members, data, rank.call_site, None)
    rank.world.wait(rank, found.wait())
    return [found.brought[m] for m in members]
