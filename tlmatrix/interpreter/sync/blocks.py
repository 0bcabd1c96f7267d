"""A block of threads with warp roles: its barriers, asynchronous work and accesses."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.errors import SynchronizationError
from tlmatrix.interpreter.reports import rendered

from .agents import located
from .barriers import Cluster, Mbarrier, Mbarriers, Rendezvous, ThreadBarrier
from .regions import History, RegionAccess
from .roles import Role

if TYPE_CHECKING:
    from .agents import Clock
    from .launches import Launch

_AGENTS = 1 << 20
"""More agents than any block has."""
_OF_TILELANG = (
    "; branches of one if and else have none between them, nor has a kernel that is compiled with "
    "tl.disable_thread_storage_sync"
)


class Block:
    """One block of the grid: what generated source calls as `cta`."""

    def __init__(
        self, launch: Launch, index: tuple[int, ...], cuts: tuple[int, ...], number: int
    ) -> None:
        self.launch = launch
        self.index = index
        self.running = launch.watch.enter(index) if launch.watch is not None else None
        self.threads = cuts[-1]
        # Agents have numbers of their own in all blocks of a launch.
        self.first_agent = 1 + number * _AGENTS
        self.roles = [Role(self, k, low, high) for k, (low, high) in enumerate(pairwise(cuts))]
        self.rendezvous: dict[int, Rendezvous] = {}
        self._thread_barriers: dict[int, ThreadBarrier] = {}
        self._group_barriers: dict[tuple[int, ...], ThreadBarrier] = {}
        self._agents: dict[tuple[Any, ...], list[int]] = {}
        self._histories: dict[str, History] = {}
        self.cluster: Cluster | None = None
        self._rank = 0
        # By agent the last asynchronous work on memory that the end of the block frees: its
        # time, what it is, its line, and a buffer it accesses.
        self.in_flight: dict[int, tuple[int, str, int, str]] = {}

    @property
    def name(self) -> str:
        """The block as text."""
        return f"block ({', '.join(map(str, self.index))})"

    def agent(self, key: tuple[Any, ...]) -> tuple[int, int]:
        """An agent of asynchronous work and its next time."""
        number = self.first_agent + len(self.roles) + len(self._agents)
        found = self._agents.setdefault(key, [number, 0])
        found[1] += 1
        return found[0], found[1]

    def end(self) -> None:
        """All roles have ended: report asynchronous work that nothing waited for."""
        for agent, (time, what, line, name) in self.in_flight.items():
            if all(role.clock.get(agent, 0) < time for role in self.roles):
                self.launch.outlived(self, name, line, what)

    # -- barriers

    def join_cluster(self, number: tuple[int, ...], size: int, rank: int) -> Cluster:
        """Join the cluster with a number, of `size` blocks, as the block with a rank."""
        clusters = self.launch.clusters
        cluster = clusters.setdefault(number, Cluster(size, self.threads))
        cluster.joined += 1
        if cluster.joined == size:
            del clusters[number]
        self._rank = rank
        self.cluster = cluster
        return cluster

    def mbarriers_of(self, cluster: Cluster, name: str, *counts: int) -> Mbarriers:
        """Make an allocation of mbarriers that other blocks of a cluster know."""
        return cluster.mbarriers(name, counts, self._rank)

    def mbarriers(self, name: str, *counts: int) -> Mbarriers:
        """Make an allocation of mbarriers."""
        return Mbarriers(name, counts)

    def arrive(self, bar: Mbarrier, threads: int, clock: Clock, who: str, line: int) -> None:
        """Arrive at an mbarrier.

        Raises:
            SynchronizationError: if more threads arrive than a phase takes.
        """
        before = bar.phase, bar.missing
        if bar.arrive(threads, clock, who, line):
            return
        bar.phase, bar.missing = before
        text = (
            f"too many arrivals at {bar.label}: {threads} of {who} arrive while {bar.state()}, so "
            "only bytes are missing"
        )
        self.launch.misused(self, bar, line, text)
        raise SynchronizationError(text)

    def thread_barrier(self, identity: int, count: int | None) -> ThreadBarrier:
        """The barrier of threads with a number."""
        bar = self._thread_barriers.get(identity)
        if bar is None or (bar.come == 0 and count is not None and bar.count != count):
            label = f"named barrier {identity}" if identity else "T.sync_threads"
            bar = ThreadBarrier(label, self.threads if count is None else count)
            self._thread_barriers[identity] = bar
        return bar

    def group_barrier(self, members: tuple[int, ...]) -> ThreadBarrier:
        """The barrier of some roles among themselves."""
        bar = self._group_barriers.get(members)
        if bar is None:
            label = "the barrier that TileLang puts between accesses to shared memory"
            threads = sum(self.roles[m].threads for m in members)
            bar = self._group_barriers[members] = ThreadBarrier(label, threads, _OF_TILELANG)
        return bar

    def describe_absent(self, rendezvous: Rendezvous) -> str:
        """A wait of roles for each other as text."""
        absent = " and ".join(self.roles[m].name for m in rendezvous.absent)
        return f"for {absent} to execute a statement together"

    def explain(self, bar: Mbarrier) -> tuple[int, list[str]]:
        """Why a phase of an mbarrier cannot complete.

        Returns:
            0 if nothing in the kernel arrives at it, 1 if all that could have ended, else 2; lines
            as text.
        """
        launch = self.launch
        lines = [bar.state()]
        lines += [
            f"arrived: {a.threads} of {a.who} at {rendered(located(launch, a.line))}"
            for a in bar.arrivals
        ]
        known = launch.arrivals.get(bar.label.split("[")[0], ())
        if not known:
            return 0, [*lines, "nothing in the kernel arrives at it"]
        if bar.total == 0:
            lines.append("it was never primed: nothing has arrived at it at all")
        for number, location in known:
            role = self.roles[number]
            state = "are at their end" if role.done else "wait themselves"
            lines.append(f"could arrive: {role.name} at {location}, but they {state}")
        return 1 if all(self.roles[number].done for number, _ in known) else 2, lines

    # -- accesses

    def add(self, name: str, shape: tuple[int, ...], clock: Clock, access: RegionAccess) -> None:
        """Add an access of an agent with a clock; report a race with an earlier one."""
        history = self._histories.get(name)
        if history is None:
            history = self._histories[name] = History(tuple(shape))
        found = history.add(clock, access)
        if found is None:
            return
        old, fence = found
        self.launch.raced(self, self.launch.names.get(name, name), access, old, fence)
