"""Barriers of a block: mbarriers with their phases, and barriers of threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .clocks import Clock, join

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Arrival", "Mbarrier", "Mbarriers", "Meeting", "ThreadBarrier"]


@dataclass(frozen=True)
class Arrival:
    """Who arrived at a barrier, where, and with how many threads."""

    who: str
    line: int
    threads: int


@dataclass
class Mbarrier:
    """One mbarrier of shared memory (PTX ISA, "mbarrier").

    A phase completes when `count` threads arrived and all bytes that were expected came. A wait
    for parity p passes when the phase with that parity has completed: of a fresh barrier, whose
    phase is 0, a wait for parity 1 passes at once and one for parity 0 waits for the first phase.

    Attributes:
        label: the user's name and index.
        count: arrivals a phase needs.
        phase: number of completed phases.
        missing: arrivals the phase in progress still needs.
        pending_bytes: bytes expected in the phase in progress that have not come.
        gathered: what those who arrived know.
        released: what a thread knows that saw the last completed phase.
        arrivals: the arrivals of the phase in progress.
        total: how many arrivals there were in all.
    """

    label: str
    count: int
    phase: int = 0
    missing: int = 0
    pending_bytes: int = 0
    gathered: Clock = field(default_factory=dict)
    released: Clock = field(default_factory=dict)
    arrivals: list[Arrival] = field(default_factory=list)
    total: int = 0

    def __post_init__(self) -> None:
        self.missing = self.count

    def passes(self, parity: int) -> bool:
        """Whether a wait for `parity` passes now."""
        return (self.phase & 1) != (parity & 1)

    def arrive(self, threads: int, clock: Clock, who: str, line: int) -> bool:
        """Arrive; returns False if more threads arrive than a phase takes."""
        join(self.gathered, clock)
        self.total += threads
        self.arrivals.append(Arrival(who, line, threads))
        left = threads
        while left > 0:
            took = min(left, self.missing)
            if took == 0:
                # All threads of the phase came and its bytes did not: one more is too many.
                return False
            self.missing -= took
            left -= took
            self._complete()
        return True

    def expect(self, size: int) -> None:
        """Expect bytes in the phase in progress."""
        self.pending_bytes += size
        self._complete()

    def came(self, size: int, clock: Clock) -> None:
        """Bytes came, moved by someone who knows `clock`."""
        join(self.gathered, clock)
        self.pending_bytes -= size
        self._complete()

    def _complete(self) -> None:
        if self.missing == 0 and self.pending_bytes == 0:
            self.phase += 1
            self.missing = self.count
            self.released = dict(self.gathered)
            self.arrivals = []

    def state(self) -> str:
        """The state in words."""
        arrived = self.count - self.missing
        text = f"{self.label} is in phase {self.phase} (parity {self.phase & 1}) with "
        text += f"{arrived} of {self.count} arrivals"
        if self.pending_bytes > 0:
            text += f" and {self.pending_bytes} bytes outstanding"
        elif self.pending_bytes < 0:
            text += f" and {-self.pending_bytes} bytes more than were expected"
        return text


class Mbarriers:
    """An allocation of mbarriers."""

    def __init__(self, name: str, counts: tuple[int, ...]) -> None:
        self.name = name
        self.bars = [
            Mbarrier(f"{name}[{k}]" if len(counts) > 1 else name, count)
            for k, count in enumerate(counts)
        ]

    def __getitem__(self, index: int) -> Mbarrier:
        if not 0 <= index < len(self.bars):
            raise IndexError(f"barrier {self.name}[{index}], but {self.name} has {len(self.bars)}")
        return self.bars[index]

    def __iter__(self) -> Iterator[Mbarrier]:
        return iter(self.bars)


@dataclass
class ThreadBarrier:
    """`T.sync_threads` and named barriers: threads wait until `count` have come."""

    label: str
    count: int
    come: int = 0
    generation: int = 0
    gathered: Clock = field(default_factory=dict)
    released: Clock = field(default_factory=dict)

    def arrive(self, threads: int, clock: Clock) -> int:
        """Arrive; returns the generation to wait for."""
        mine = self.generation
        join(self.gathered, clock)
        self.come += threads
        if self.come >= self.count:
            self.come -= self.count
            self.generation += 1
            self.released = self.gathered
            # Those who come too many are the first of the next generation.
            self.gathered = dict(clock) if self.come else {}
        return mine


@dataclass
class Meeting:
    """Roles that do one statement together: the last to come does it, then all go on."""

    members: tuple[int, ...]
    come: set[int] = field(default_factory=set)
    done: bool = False
    gathered: Clock = field(default_factory=dict)
