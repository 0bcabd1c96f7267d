"""A launch of a kernel with warp roles.

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
from itertools import chain, product
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.errors import DeadlockError, RaceError, SynchronizationError, Unsupported
from tlmatrix.interpreter.reports import Party, Report, ReportSet, rendered

from . import context, settings
from .agents import located
from .barriers import Mbarrier, ThreadBarrier
from .blocks import Block
from .regions import rendered_box
from .scheduler import InOrder, Policy, Prioritized, Scheduler, Uniform, deadlock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from .agents import Agent
    from .barriers import Cluster
    from .regions import RegionAccess
    from .roles import Operation, Role


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
        self._waiting = deque(enumerate(product(*map(range, grid))))
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
                return found[0][1]
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
            hint = old.remedy(new)
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

    def outlived(self, block: Block, name: str, line: int, what: str) -> None:
        """Report asynchronous work that nothing has waited for when its block ends.

        Raises:
            SynchronizationError: where `scheduled` asked for errors.
        """
        place = rendered(located(self, line))
        text = f"{what} at {place} may go on when its block ends: nothing waits for it"
        if self.watch is not None:
            self._add("barriers", block, self.names.get(name, name), line, text)
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
    ) -> None:
        place = located(self, line)
        self.findings.add(Report(sanitizer, self.kernel, *place, name, index, block.index, text))

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
