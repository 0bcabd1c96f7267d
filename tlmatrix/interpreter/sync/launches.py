"""A launch of a kernel with warp roles, and its blocks: barriers, asynchronous work, accesses.

Schedules of asynchronous work and roles:

- eager: work completes at once, roles run in order until they wait
- lazy: work completes only when every role waits, oldest first
- random: any role that can go on, any work that can complete
- adversarial: roles by random priorities, work as late as can be, newest first
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, pairwise, product
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.errors import DeadlockError, RaceError, SynchronizationError, Unsupported
from tlmatrix.interpreter.gpu import WARP_GROUP
from tlmatrix.interpreter.reports import (
    ALL_ARRIVE,
    ALL_WARPS,
    Party,
    Report,
    ReportSet,
    overtaken_wait,
    registers_of_a_part,
    rendered,
)

from . import context, settings
from .agents import located
from .barriers import Cluster, Mbarrier, Mbarriers, Rendezvous, ThreadBarrier
from .regions import History, RegionAccess, rendered_box
from .roles import Role
from .scheduler import InOrder, Policy, Prioritized, Scheduler, Uniform, deadlock

if TYPE_CHECKING:
    from .agents import Agent, Clock
    from .barriers import Begun
    from .roles import Operation


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
        self.ended = False
        # By agent the last work on memory that the end of the block frees, asynchronous or of
        # another block: its time, what it is, its line, and a buffer it accesses.
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

    def _warp_groups(self) -> Iterator[tuple[range, list[Role]]]:
        """The threads of each warp group, and the roles that have some of them."""
        for first in range(0, self.threads, WARP_GROUP):
            group = range(first, min(first + WARP_GROUP, self.threads))
            yield group, [r for r in self.roles if r.low < group.stop and r.high > first]

    @property
    def registers(self) -> int:
        """The registers of all warp groups that have set theirs."""
        return sum(
            len(group) * max((role.registers[-1][0] for role in roles if role.registers), default=0)
            for group, roles in self._warp_groups()
        )

    def end(self) -> None:
        """All roles have ended: report work on the block's memory that nothing waited for."""
        self.ended = True
        for agent, (time, what, line, name) in self.in_flight.items():
            if all(role.clock.get(agent, 0) < time for role in self.roles):
                self.launch.outlived(self, name, line, what)
        for group, roles in self._warp_groups() if self.registers else ():
            first, *others = sorted(roles, key=lambda role: not role.registers)
            counts = [count for count, _ in first.registers]
            if any([count for count, _ in other.registers] != counts for other in others):
                text = registers_of_a_part(first.name, group[0], group[-1])
                self.launch.divided(self, first.registers[-1][1], text)

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
        cluster.blocks[rank] = self
        return cluster

    def mbarriers_of(self, cluster: Cluster, name: str, *counts: int) -> Mbarriers:
        """Make an allocation of mbarriers that other blocks of a cluster know."""
        return cluster.mbarriers(name, counts, self._rank)

    def mbarriers(self, name: str, *counts: int) -> Mbarriers:
        """Make an allocation of mbarriers."""
        return Mbarriers(name, counts)

    def arrive(self, bar: Mbarrier, threads: int, clock: Clock, by: str, line: int) -> None:
        """Arrive at an mbarrier.

        Raises:
            SynchronizationError: if more threads arrive than a phase takes.
        """
        before = bar.phase, bar.missing
        if bar.arrive(threads, clock, by, line):
            if bar.overtaken is not None:
                self.launch.overtaken(self, bar, bar.overtaken)
                bar.overtaken = None  # later arrivals do not report it again
            return
        bar.phase, bar.missing = before
        text = (
            f"too many arrivals at {bar.label}: {threads} of {by} arrive while {bar.state()}, so "
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
            f"arrived: {a.threads} of {a.by} at {rendered(located(launch, a.line))}"
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

    def members(self, ranks: Iterable[int]) -> list[Block]:
        """Blocks of the cluster, some of whose memory is accessed."""
        assert self.cluster is not None
        return [self.cluster.blocks[rank] for rank in ranks if rank in self.cluster.blocks]

    def reached(self, by: Block, clock: Clock, name: str, line: int, what: str) -> None:
        """Another block of the cluster accesses a buffer: this one must run."""
        started = by.cluster is None or by.cluster.starts_together
        if not started and all(clock.get(role.agent, 0) == 0 for role in self.roles):
            text = f"{what} accesses {self.name}, which may not have started"
            self.launch.misplaced(by, name, line, text, "T.cluster_sync() before it")
        elif self.ended:
            text = f"{what} accesses {self.name}, which has ended"
            self.launch.misplaced(by, name, line, text, "T.cluster_sync() at the end of both")

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


# Launches -----------------------------------------------------------------------------------------


_SPINS = (
    "a kernel spins on a flag that only another stream or rank can raise, with an atomic load; "
    "under simulate() the interpreter models waits by tlm_wait_* and tlm_load_* "
    "(kernels/distributed/signals.py), in kernels whose threads play no roles"
)


class Launch(Scheduler):
    """One launch of a kernel.

    Attributes:
        plain: whether asynchronous work completes at once, and nothing looks for races.
        unordered: buffers of a block on whose accesses TileLang does not order threads.
    """

    def __init__(
        self,
        kernel: str,
        locations: Sequence[Any],
        arrivals: dict[str, Any],
        names: dict[str, str],
        watch: Any,
        threads: int,
        grid: tuple[int, ...],
        make: Callable[[Launch, int, tuple[int, ...]], Block],
        unordered: Collection[str] = (),
    ) -> None:
        self.unordered = frozenset(unordered)
        chosen = settings.current()
        self._eager = chosen.schedule == "eager"
        super().__init__(_policy(chosen))
        self.kernel = kernel
        self.watch = watch
        self._reported = watch is not None and "races" in watch.sanitizers
        self.watched = self._reported or (
            bool(chosen.races) and not (watch is not None and watch.traced)
        )
        self.plain = self._eager and watch is None and not self.watched
        self.findings = ReportSet()
        self.locations = locations
        self.arrivals = arrivals
        self.names = names
        self.grid = ThreadBarrier("T.sync_grid", threads)
        # Clusters of which some blocks have started, and some have not.
        self.clusters: dict[tuple[int, ...], Cluster] = {}
        blocks = enumerate(product(*map(range, grid)))
        # In descending order the blocks of a cluster stay together.
        self._waiting = deque(reversed(list(blocks)) if settings.block_seed() % 2 else blocks)
        self._make = make
        self._live: list[Block] = []
        self._issued = 0

    # -- running

    def run(self) -> None:
        """Run all blocks; a new one starts when those that run can only spin or wait for it."""
        while (agent := self.pick()) is not None:
            self.step(agent)
        if self.agents:
            raise self._stuck(self._live[0])

    def pick(self) -> Agent | None:
        """The agent that goes on; None at the end, or if nothing can change any more.

        Raises:
            Unsupported: the kernel spins on what it can only get from another rank or stream.
        """
        self.steps += 1
        while (agent := self.policy.pick(self.agents, self.steps)) is None and self._admit():
            pass
        if agent is None and self.agents:
            agent = self.poll()
            if agent is None and context.world() is not None:
                raise Unsupported(_SPINS)
        return agent

    def _admit(self) -> bool:
        """Start the next block; False if there is none.

        Raises:
            DeadlockError: if a block can never go on.
        """
        if self.grid.come and self._start():
            return True
        for block in self._live:
            peers = [block]
            if block.cluster is not None:
                peers = [each for each in self._live if each.cluster is block.cluster]
            roles = chain.from_iterable(each.roles for each in peers)
            if not any(role.waits_outside or role.ready for role in roles if not role.done):
                raise self._stuck(block)
        return self._start()

    def _start(self) -> bool:
        """Start the next block, and with it the blocks of its cluster; False if there is none."""
        if not self._waiting:
            return False
        while self._waiting:
            block = self._make(self, *self._waiting.popleft())
            self._live.append(block)
            self.agents += block.roles
            if not self.clusters:
                break
        return True

    def cancel(self, extents: tuple[int, ...]) -> tuple[int, ...] | None:
        """Cancel a cluster that has not started.

        Args:
            extents: how many blocks of a cluster there are along each dim of the grid.

        Returns:
            The index of its first block; None if all clusters have started.
        """
        members: dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]] = {}
        for block in self._waiting:
            cluster = tuple(i // n for i, n in zip(block[1], extents, strict=True))
            found = members.setdefault(cluster, [])
            found.append(block)
            if len(found) == math.prod(extents):
                for each in found:
                    self._waiting.remove(each)
                return min(found)[1]
        return None

    def step(self, agent: Agent) -> None:
        """Run a role to its next request, or complete an operation."""
        super().step(agent)
        if agent.done:
            for block in [b for b in self._live if all(role.done for role in b.roles)]:
                self._live.remove(block)
                block.end()

    def issued(self, op: Operation, role: Role) -> None:
        """Take asynchronous work that a role issued."""
        if self._eager:
            op.step()
            role.resumed()
        else:
            self.agents.append(op)

    def priority_of_operation(self) -> float:
        """The priority of new work: below that of roles, above that of older work."""
        self._issued += 1
        return self._issued - 1e12

    # -- findings

    def raced(
        self,
        block: Block,
        name: str,
        new: RegionAccess,
        old: RegionAccess,
        fence: bool,
    ) -> None:
        """Report a race: to the sanitizers in force, or as an error.

        Args:
            block: the block.
            name: the user's name of the buffer.
            new: the access that nothing orders after `old`.
            old: an earlier access.
            fence: whether only a fence between the proxies is missing.

        Raises:
            RaceError: where `scheduled` asked for errors.
        """
        place, before = located(self, new.line), located(self, old.line)
        party = Party(block.index, *before, "write" if old.write else "read", old.what)
        index = tuple(low for low, _ in new.box)
        element = f"{name}[{rendered_box(new.box)}]"
        same = "it" if old.box == new.box else f"{name}[{rendered_box(old.box)}]"
        if fence:
            text = f"{new} {element} after {old} {same}, with no T.fence_proxy_async() between them"
            hint = f"T.fence_proxy_async() in {old.by}, before the barrier that orders the two"
        else:
            text = f"{new} {element}, and nothing orders this after {old} {same}"
            since = [role.groups_since(old) for role in block.roles]
            hint = old.remedy(new, next((each for each in since if each is not None), 0))
        report = Report(
            "races", self.kernel, *place, name, index, block.index, text, party, hint=hint
        )
        if self._reported:
            self.findings.add(report)
            return
        where = f"{rendered(place)} and {rendered(before)}, {block.name}"
        error = RaceError(f"race on {name}: {text} ({where}); {hint}")
        error.reports = (report,)
        raise error

    def misused(self, block: Block, bar: Mbarrier, line: int, text: str) -> None:
        """Report a wrong use of a barrier to the sanitizers; the error follows."""
        name, index = bar.subject()
        self._add("barriers", block, name, line, text, index)

    def overtaken(self, block: Block, bar: Mbarrier, begun: Begun) -> None:
        """Report a wait for a phase that the next one may overtake."""
        name, index = bar.subject()
        text = overtaken_wait(begun.by, bar.label)
        self._add("barriers", block, name, begun.line, text, index, ALL_ARRIVE)

    def divided(self, block: Block, line: int, text: str) -> None:
        """Report a `setmaxnreg` that other warps of the warp group do not execute."""
        self._add("barriers", block, "", line, text, hint=ALL_WARPS)

    def outlived(self, block: Block, name: str, line: int, what: str) -> None:
        """Report asynchronous work that nothing has waited for when its block ends.

        Raises:
            SynchronizationError: where `scheduled` asked for errors.
        """
        place = rendered(located(self, line))
        ends = f"{block.name} ends" if block.cluster is not None else "its block ends"
        text = f"{what} at {place} may go on when {ends}: nothing waits for it"
        self.misplaced(block, name, line, text)

    def misplaced(self, block: Block, name: str, line: int, text: str, hint: str = "") -> None:
        """Report an access of memory outside of the block's life, or too many registers.

        Raises:
            SynchronizationError: where `scheduled` asked for errors.
        """
        if self.watch is not None:
            self._add("barriers", block, self.names.get(name, name), line, text, hint=hint)
        elif self.watched:
            raise SynchronizationError(text)

    def _add(
        self,
        sanitizer: str,
        block: Block,
        name: str,
        line: int,
        text: str,
        index: tuple[int, ...] = (),
        hint: str = "",
    ) -> None:
        place = located(self, line)
        found = Report(sanitizer, self.kernel, *place, name, index, block.index, text, hint=hint)
        self.findings.add(found)

    def _stuck(self, block: Block) -> DeadlockError:
        """The error for a deadlock, with reports for the sanitizers."""
        error = deadlock(block.name, block.roles)
        for report in error.reports:
            self.findings.add(report)
        return error

    def finish(self) -> None:
        """Give the reports to the monitor."""
        if self.watch is not None and not self.watch.traced:
            self.watch.add(self.findings.reports())


def _policy(chosen: settings.Settings) -> Policy:
    if chosen.schedule in ("eager", "lazy"):
        return InOrder()
    seeded = random.Random(chosen.seed)  # noqa: S311  # a schedule is no secret
    return Uniform(seeded) if chosen.schedule == "random" else Prioritized(seeded)


def launch(
    make: Callable[..., Sequence[Callable[[Role], Any]]],
    grid: tuple[int, ...],
    cuts: tuple[int, ...],
    kernel: str,
    locations: Sequence[Any],
    arrivals: dict[str, Any],
    names: dict[str, str],
    watch: Any = None,
    unordered: Collection[str] = (),
) -> None:
    """Run a grid of blocks.

    Args:
        make: makes a block's memory and returns the generator function of each role.
        grid: extents of the grid.
        cuts: where the roles begin, and the number of threads.
        kernel: the kernel's name.
        locations: for each line of the generated source the user's.
        arrivals: per barrier which roles arrive at it, and where.
        names: the user's names of buffers that the generated source calls otherwise.
        watch: the monitor of an instrumented program.
        unordered: buffers of a block on whose accesses TileLang does not order threads.

    Raises:
        DeadlockError: if no role can ever go on.
        RaceError: if two accesses race, where `scheduled` asked for errors and no sanitizer
            collects them.
    """

    def started(running: Launch, number: int, index: tuple[int, ...]) -> Block:
        block = Block(running, index, cuts, number)
        for role, function in zip(block.roles, make(block, *index), strict=True):
            role.generator = function(role)
        return block

    grid = tuple(map(int, grid))
    threads = math.prod(grid) * cuts[-1]
    running = Launch(kernel, locations, arrivals, names, watch, threads, grid, started, unordered)
    if watch is not None:
        watch.launch()
    try:
        running.run()
    finally:
        running.finish()
