"""Barriers, and the requests of agents that wait at them.

Mbarriers with their phases, barriers of threads (a block, a named barrier, the grid), and
rendezvous, which roles of a block and ranks use alike.

A cluster of blocks has a barrier of all their threads, and the mbarriers of each block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .agents import Agent, Clock, Request, Wait, join

if TYPE_CHECKING:
    from .launches import Block


@dataclass(frozen=True)
class Arrival:
    """An arrival at an mbarrier: the role or work, its line, and how many threads."""

    by: str
    line: int
    threads: int


@dataclass(frozen=True)
class Begun:
    """A wait that has begun: for which phase, the agent's time then, the role, and its line."""

    phase: int
    time: int
    by: str
    line: int


@dataclass
class Mbarrier:
    """One mbarrier of shared memory (PTX ISA, "mbarrier").

    A phase completes once `count` threads have arrived and all expected bytes have come. A wait
    for parity p passes once the phase with that parity has completed. At a new barrier, in phase
    0, a wait for parity 1 passes at once, a wait for parity 0 waits for the first phase.

    Attributes:
        label: the user's name and index.
        count: arrivals a phase needs.
        phase: number of completed phases.
        missing: arrivals the phase in progress still needs.
        pending_bytes: bytes expected in the phase in progress that have not come.
        gathered: the joined clocks of arrivals.
        released: the clock that a wait for the last completed phase acquires.
        arrivals: the arrivals of the phase in progress.
        total: number of all arrivals.
        waits: the last two waits of each agent, by the key of its time in clocks.
        overtaken: a wait that may last for ever. Nothing says that its agent has passed when the
            next phase completes: two phases later the barrier has the old parity again.
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
    waits: dict[int, list[Begun]] = field(default_factory=dict)
    overtaken: Begun | None = None

    def __post_init__(self) -> None:
        self.missing = self.count

    def passes(self, parity: int) -> bool:
        """Whether a wait for `parity` passes now."""
        return (self.phase & 1) != (parity & 1)

    def begin(self, parity: int, key: int, time: int, by: str, line: int) -> None:
        """An agent begins to wait for `parity`; clocks tell by `key` whether it has passed."""
        now = Begun(self.phase - self.passes(parity), time, by, line)
        self.waits[key] = [*self.waits.get(key, ())[-1:], now]

    def arrive(self, threads: int, clock: Clock, by: str, line: int) -> bool:
        """Arrive; returns False if more threads arrive than a phase takes."""
        join(self.gathered, clock)
        self.total += threads
        self.arrivals.append(Arrival(by, line, threads))
        left = threads
        while left > 0:
            took = min(left, self.missing)
            if took == 0:
                # All threads of the phase have arrived, but not its bytes: no thread may arrive.
                return False
            self.missing -= took
            left -= took
            self._complete()
        return True

    def expect(self, size: int) -> None:
        """Expect bytes in the phase in progress."""
        self.pending_bytes += size
        self._complete()

    def add_bytes(self, size: int, clock: Clock) -> None:
        """Count bytes of a copy that completed with `clock`."""
        join(self.gathered, clock)
        self.pending_bytes -= size
        self._complete()

    def _complete(self) -> None:
        if self.missing == 0 and self.pending_bytes == 0:
            for key, waits in self.waits.items():
                known = self.gathered.get(key, 0)
                for begun in waits:
                    if begun.phase == self.phase - 1 and known < begun.time:
                        self.overtaken = begun
            self.phase += 1
            self.missing = self.count
            self.released = dict(self.gathered)
            self.arrivals = []

    def subject(self) -> tuple[str, tuple[int, ...]]:
        """Its allocation and its index there."""
        name, _, index = self.label.partition("[")
        return name, (int(index[:-1]),) if index else ()

    def state(self) -> str:
        """The state, as text."""
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
    """`T.sync_threads` and named barriers: threads wait until `count` have come.

    `remedy` is added to the text of a wait that never ends.
    """

    label: str
    count: int
    remedy: str = ""
    come: int = 0
    generation: int = 0
    gathered: Clock = field(default_factory=dict)
    released: Clock = field(default_factory=dict)

    def arrive(self, threads: int, clock: Clock) -> Wait:
        """Arrive; returns the wait for all threads."""
        mine = self.generation
        join(self.gathered, clock)
        self.come += threads
        if self.come >= self.count:
            self.come -= self.count
            self.generation += 1
            self.released = self.gathered
            # Threads past the count are the first of the next generation.
            self.gathered = dict(clock) if self.come else {}
        return Wait(
            lambda: self.generation > mine,
            self.describe,
            lambda: self.released,
            barrier=self.label,
        )

    def describe(self) -> str:
        """A wait, as text."""
        return f"at {self.label}, where {self.come} of {self.count} threads came{self.remedy}"


@dataclass
class Rendezvous:
    """A place where agents wait for each other, once.

    Attributes:
        members: the numbers of the agents that must come.
        brought: what each agent that has come brought.
        clock: the joined clocks of all that came.
        done: whether all may go on.
    """

    members: tuple[int, ...]
    brought: dict[int, Any] = field(default_factory=dict)
    clock: Clock = field(default_factory=dict)
    done: bool = False

    def arrive(self, member: int, clock: Clock, data: Any = None) -> bool:
        """Arrive; returns True for the last member."""
        self.brought[member] = data
        join(self.clock, clock)
        return len(self.brought) == len(self.members)

    @property
    def absent(self) -> list[int]:
        """The members that have not come."""
        return [member for member in self.members if member not in self.brought]


# -- requests


@dataclass
class Phase(Request):
    """A wait for a phase of an mbarrier; `explain` says why it cannot complete."""

    bar: Mbarrier
    parity: int
    explain: Callable[[Mbarrier], tuple[int, list[str]]]

    def ready(self) -> bool:
        """Whether the phase has completed."""
        return self.bar.passes(self.parity)

    def finish(self, agent: Agent) -> None:
        """Acquire the clocks of its arrivals."""
        agent.learn(self.bar.released)

    def describe(self) -> str:
        """The wait, as text."""
        return f"for parity {self.parity & 1} of {self.bar.label}"

    def why(self) -> list[str]:
        """The barrier's state, its arrivals, and what could still arrive."""
        return self.explain(self.bar)[1]

    def weight(self) -> int:
        """Low if nothing is left that could arrive."""
        return self.explain(self.bar)[0]

    def subject(self) -> tuple[str, tuple[int, ...]]:
        """The barrier."""
        return self.bar.subject()


class Spin(Request):
    """One iteration of a loop that reads what other agents write: a flag in global memory."""

    polls = True

    def ready(self) -> bool:
        """False: only another iteration can tell."""
        return False

    def describe(self) -> str:
        """The wait, as text."""
        return "in a loop that spins on memory that nothing changes any more"


class ClusterMbarriers(Mbarriers):
    """An allocation of mbarriers of one block, at which others of its cluster may arrive."""

    def __init__(self, name: str, counts: tuple[int, ...]) -> None:
        super().__init__(name, counts)
        self.blocks: list[ClusterMbarriers] = []

    def of_block(self, rank: int) -> ClusterMbarriers:
        """The same allocation of a block of the cluster."""
        if not 0 <= rank < len(self.blocks):
            raise IndexError(f"block {rank} of a cluster, but it has {len(self.blocks)} blocks")
        return self.blocks[rank]


class Cluster:
    """The blocks of a cluster, which run at the same time.

    Attributes:
        size: how many blocks there are.
        joined: how many have started.
        barrier: of all their threads.
        blocks: those that have joined, by rank.
        starts_together: whether none runs before all have started.
    """

    def __init__(self, size: int, threads: int) -> None:
        self.size = size
        self.joined = 0
        self.blocks: dict[int, Block] = {}
        self.starts_together = False
        self.barrier = ThreadBarrier("T.cluster_sync", size * threads)
        self._mbarriers: dict[str, list[ClusterMbarriers]] = {}
        self._arrays: dict[tuple[str, int], Any] = {}
        self._shadows: dict[tuple[str, int], Any] = {}

    def mbarriers(self, name: str, counts: tuple[int, ...], rank: int) -> ClusterMbarriers:
        """The mbarriers of a block; those of its peers exist before they start."""
        blocks = self._mbarriers.get(name)
        if blocks is None:
            blocks = [ClusterMbarriers(name, counts) for _ in range(self.size)]
            for each in blocks:
                each.blocks = blocks
            self._mbarriers[name] = blocks
        return blocks[rank]

    def share(self, name: str, rank: int, array: Any) -> None:
        """Let the other blocks know an array of a block."""
        self._arrays[name, rank] = array

    def share_shadow(self, name: str, rank: int, shadow: Any) -> None:
        """Let accesses of other blocks find the shadow of an array of a block."""
        self._shadows[name, rank] = shadow

    def shadows(self, name: str, ranks: Iterable[int]) -> list[Any]:
        """The shadows of an array of some blocks."""
        return [self._shadows[name, rank] for rank in ranks if (name, rank) in self._shadows]

    def array(self, name: str, rank: int) -> Any:
        """An array of a block.

        Raises:
            IndexError: for a block that the cluster does not have.
        """
        if not 0 <= rank < self.size:
            raise IndexError(f"block {rank} of a cluster, but it has {self.size} blocks")
        return self._arrays[name, rank]
