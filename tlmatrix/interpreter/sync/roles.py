"""Warp roles and their asynchronous work: what generated source calls as `me`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.errors import SynchronizationError
from tlmatrix.interpreter.gpu import REGISTERS, WARP
from tlmatrix.interpreter.reports import too_many_registers

from .agents import Agent, BlockAgent, Clock, Wait, by_all, fenced, join
from .barriers import Mbarrier, Phase, Rendezvous, Spin, ThreadBarrier
from .regions import RegionAccess, region_of

if TYPE_CHECKING:
    from .barriers import Cluster
    from .launches import Block

_SPIN = Spin()
_GROUPED = frozenset({"wgmma", "cp.async", "TMA store"})
"""Asynchronous work that is waited for in groups."""
_ASYNCHRONOUS_PROXY = frozenset(
    {"TMA load", "TMA store", "wgmma", "tcgen05 MMA", "launch control", "bulk copy"}
)
"""Work that reads shared memory through the asynchronous proxy."""
_OUTLIVING = (_ASYNCHRONOUS_PROXY - {"wgmma"}) | {"cp.async"}
"""Work on memory that the block frees at its end."""


class Operation(Agent):
    """Asynchronous work: a copy or a matrix product that completes when the policy says.

    Attributes:
        line: the line of the generated source that issued it.
        read_clock: the clock of a wait until it has read all it reads; `clock` has its writes too.
    """

    def __init__(
        self,
        role: Role,
        what: str,
        line: int,
        clock: Clock,
        agent: int = 0,
        *,
        action: Callable[[], None] | None = None,
        queue: str = "",
    ) -> None:
        super().__init__(role.rank, what, agent)
        self.at = line
        self.clock = self.read_clock = clock
        self._block = role.block
        self._action = action
        self._completed: list[Callable[[], None]] = []
        # Operations of one queue complete in order.
        self._before = role.queues.get(queue)
        if queue:
            role.queues[queue] = self
        self.priority = role.block.launch.priority_of_operation()

    @property
    def ready(self) -> bool:
        """Whether it may complete."""
        return self._before is None or self._before.done

    def count_bytes(self, bar: Mbarrier, size: int) -> None:
        """Expect bytes at an mbarrier, which come when the work completes."""
        bar.expect(size)
        self.delivers(bar, size)

    def delivers(self, bar: Mbarrier, size: int) -> None:
        """Count bytes at an mbarrier that expects them when the work completes."""
        self._completed.append(lambda: bar.add_bytes(size, self.clock))

    def arrives(self, bar: Mbarrier, count: int = 1) -> None:
        """Arrive at an mbarrier when the work completes."""
        self._completed.append(
            lambda: self._block.arrive(bar, count, self.clock, self.name, self.at)
        )

    def step(self) -> bool:
        """Do the work and notify the barriers."""
        watch = self._block.launch.watch
        if watch is not None:
            watch.work_as(
                self._block.running, self.clock, self.agent, self.clock.get(self.agent, 0)
            )
        if self._action is not None:
            self._action()
        self.done = True
        self._before = None
        for notify in self._completed:
            notify()
        return False


@dataclass
class _OwnWait(Wait):
    """A wait of each thread for its own work: the others of the role may not be there yet."""

    def finish(self, agent: Agent) -> Any:
        """Acquire the clock, for this thread alone."""
        join(agent.clock, self.clock())
        return self.value


class Role(BlockAgent):
    """The threads `low` to `high - 1` of a block, which run one piece of code in lockstep.

    Their order is that of barriers alone where TileLang inserts none: `_shared_past` is what all of
    them know, as they have learned it at a barrier. In its place the clock stands for one thread.

    Attributes:
        watched: whether accesses are recorded.
        registers: the counts of each `setmaxnreg`, and its line.
    """

    waits = "wait"

    def __init__(self, block: Block, number: int, low: int, high: int) -> None:
        name = f"threads {low}..{high - 1}"
        super().__init__(0, name, block.first_agent + number, block.launch, block.index)
        self.block: Block = block
        self.number = number
        self.low, self.high = low, high
        self.threads = high - low
        self.running = block.running
        self.watched: bool = block.launch.watched
        # By kind of work: the last operation in order, that of its queue, the open group, and the
        # groups that are closed and not waited for.
        self._last: dict[str, Operation] = {}
        self.queues: dict[str, Operation] = {}
        self._shared_past: Clock = {}
        self._engines: set[int] = set()  # agents of work that read shared memory
        self.registers: list[tuple[int, int]] = []
        self._open: dict[str, list[Operation]] = {}
        self._groups: dict[str, list[list[Operation]]] = {}
        self._copied: Clock = {}
        self._cluster_wait: Wait | None = None
        # TMA stores that were waited for until they had read, but not until they had written.
        self._half_waited: list[Operation] = []

    # -- synchronization

    def learn(self, clock: Clock) -> None:
        """Order what the clock of a barrier includes before all threads."""
        super().learn(clock)
        if self.launch.unordered:
            join(self._shared_past, clock)

    def _known_to_all(self, clock: Clock, agents: Iterable[int]) -> Clock:
        """A clock with what all threads know of some agents."""
        return clock | {agent: self._shared_past.get(agent, 0) for agent in agents}

    def wait(self, bar: Mbarrier, parity: Any) -> Phase:
        """`T.mbarrier_wait_parity`."""
        if not self.block.launch.plain:
            line = sys._getframe(1).f_lineno  # noqa: SLF001
            # Where TileLang adds barriers, one may stand between the wait and an arrival.
            alone = self.launch.unordered and self.threads > WARP
            key = by_all(self.agent) if alone else self.agent
            bar.begin(int(parity), key, self.clock[self.agent], self.name, line)
        return Phase(bar, int(parity), self.block.explain)

    def arrive(self, bar: Mbarrier, threads: Any) -> None:
        """`T.mbarrier_arrive` by some threads of this role."""
        line = sys._getframe(1).f_lineno  # noqa: SLF001  # the statement that runs
        if int(threads) * WARP >= self.threads:  # one of each warp, at least
            self._all_arrive()
        self.block.arrive(bar, int(threads), self.clock, self.name, line)
        self.tick()

    def expect(self, bar: Mbarrier, size: Any) -> None:
        """`T.mbarrier_expect_tx`."""
        bar.expect(int(size))

    def until_expected(self, bars: Sequence[Mbarrier], size: int) -> Wait | None:
        """Wait until other blocks expect bytes that this one loads for them.

        Nothing on hardware waits for it, but blocks of a cluster run side by side there: eager
        work of the first block would come before the others have started.
        """
        if not self.block.launch.plain:
            return None
        return Wait(
            lambda: all(bar.pending_bytes >= size for bar in bars),
            lambda: f"for other blocks to expect bytes at {bars[0].label}",
            dict,
        )

    def sync(self, identity: int = 0, count: int | None = None) -> Wait:
        """`T.sync_threads`, of the whole block or of `count` threads."""
        return self._arrive(self.block.thread_barrier(identity, count))

    def sync_group(self, members: tuple[int, ...]) -> Wait:
        """The barrier that TileLang puts between statements that share memory."""
        return self._arrive(self.block.group_barrier(members))

    def sync_grid(self) -> Wait:
        """`T.sync_grid`: of all blocks."""
        return self._arrive(self.block.launch.grid)

    def cluster_arrive(self, cluster: Cluster) -> None:
        """`T.cluster_arrive`: of all blocks of a cluster; the wait may come later."""
        self._cluster_wait = self._arrive(cluster.barrier)

    def cluster_wait(self) -> Wait:
        """`T.cluster_wait`, after an arrival.

        Raises:
            SynchronizationError: without one.
        """
        if self._cluster_wait is None:
            raise SynchronizationError(f"{self.name}: T.cluster_wait without T.cluster_arrive")
        wait, self._cluster_wait = self._cluster_wait, None
        return wait

    def named_arrive(self, identity: int, count: int) -> None:
        """`T.named_barrier_arrive`: arrive and go on."""
        self._arrive(self.block.thread_barrier(identity, count))

    def _arrive(self, bar: ThreadBarrier) -> Wait:
        self._all_arrive()
        wait = bar.arrive(self.threads, self.clock)
        self.tick()
        return wait

    def _all_arrive(self) -> None:
        """What the clock includes next, all warps have done."""
        self.clock[by_all(self.agent)] = self.clock[self.agent]

    def meet(self, key: int, members: tuple[int, ...]) -> Wait:
        """Come to a statement that the roles of `members` execute together; the last leads."""
        rendezvous = self.block.rendezvous.setdefault(key, Rendezvous(members))
        self._all_arrive()
        leads = rendezvous.arrive(self.number, self.clock)
        self.tick()
        return Wait(
            lambda: leads or rendezvous.done,
            lambda: self.block.describe_absent(rendezvous),
            lambda: rendezvous.clock,
            leads,
        )

    def part(self, key: int) -> None:
        """The leader has executed the statement: the other roles go on, ordered after it."""
        rendezvous = self.block.rendezvous.pop(key)
        join(rendezvous.clock, self.clock)
        self.tick()
        rendezvous.done = True

    def set_registers(self, count: int) -> None:
        """`setmaxnreg` to `count` a thread."""
        self.registers.append((count, sys._getframe(1).f_lineno))  # noqa: SLF001
        total = self.block.registers
        if total > REGISTERS:
            text = too_many_registers(total, REGISTERS)
            self.block.launch.misplaced(self.block, "", self.registers[-1][1], text)

    def spin(self) -> Spin:
        """An iteration of a loop that reads what other blocks or roles write."""
        return _SPIN

    # -- asynchronous work

    def issue(
        self,
        kind: str,
        action: Callable[[], None],
        accesses: Sequence[tuple[Any, ...]],
        *,
        bar: Mbarrier | None = None,
        size: int = 0,
        arrive: Mbarrier | None = None,
        delivers: Sequence[Mbarrier] = (),
        ordered: bool = False,
    ) -> None:
        """Issue asynchronous work.

        Args:
            kind: what it is: "TMA load", "TMA store", "cp.async", "wgmma", "tcgen05 MMA".
            action: does it.
            accesses: per buffer its name, whether it is written, the region's dims, the shape, and
                of memory of a cluster the ranks of its blocks.
            bar: the mbarrier that counts its bytes.
            size: how many bytes.
            arrive: the mbarrier at which it arrives when it and all before it are done.
            delivers: mbarriers that get `size` bytes, which their own blocks expect.
            ordered: whether it comes after the role's earlier work of this kind.
        """
        line = sys._getframe(1).f_lineno  # noqa: SLF001
        block = self.block
        if block.launch.plain:
            self._do(kind, action, line, bar, size, arrive, delivers)
            return
        agent, time = block.agent((self.number, kind, None if bar is None else bar.label))
        # A TMA store can be waited for until it has read, and until it has written.
        writer, written = agent, time
        if kind == "TMA store":
            writer, written = block.agent((self.number, "the writes of a TMA store", None))
        clock = self._after_last(kind) if ordered else dict(self.clock)
        what = f"the {kind} issued by {self.name}"
        if block.launch.watched:
            through = kind in _ASYNCHRONOUS_PROXY
            for name, write, dims, shape, *ranks in accesses:
                by, when = (writer, written) if write else (agent, time)
                region = region_of(dims, shape)
                unordered = name in block.launch.unordered and not write
                access = RegionAccess(
                    by, when, write, line, self.name, *region,
                    asynchronous=through, kind=kind, unordered=unordered,
                )  # fmt: skip
                known = clock
                if unordered:
                    # Other threads may not have stored what this reads.
                    self._engines.add(agent)
                    known = self._known_to_all(clock, (self.agent,))
                for of in block.members(*ranks) if ranks else (block,):
                    self._add_to(of, name, shape, known, access)
        clock[agent] = time
        read_clock = dict(clock)
        clock[writer] = written
        if kind in _OUTLIVING:
            block.in_flight[agent] = (time, what, line, accesses[0][0] if accesses else "")
        copies = kind == "cp.async"
        if copies:
            join(self._copied, clock)
        # A thread's copies complete in order, though nothing orders what they access.
        queue = kind if ordered or copies else ""
        op = Operation(self, what, line, clock, writer, action=action, queue=queue)
        op.read_clock = read_clock
        if bar is not None:
            op.count_bytes(bar, size)
        for each in delivers:
            op.delivers(each, size)
        if arrive is not None:
            op.arrives(arrive)
        if ordered:
            self._last[kind] = op
        if kind in _GROUPED:
            self._open.setdefault(kind, []).append(op)
        block.launch.issued(op, self)

    def _do(
        self,
        kind: str,
        action: Callable[[], None],
        line: int,
        bar: Mbarrier | None,
        size: int,
        arrive: Mbarrier | None,
        delivers: Sequence[Mbarrier],
    ) -> None:
        """Do work at once, of which no clock needs to know."""
        if bar is not None:
            bar.expect(size)
        action()
        if bar is not None:
            bar.add_bytes(size, {})
        for each in delivers:
            each.add_bytes(size, {})
        if arrive is not None:
            self.block.arrive(arrive, 1, {}, f"the {kind} issued by {self.name}", line)

    def _after_last(self, kind: str) -> Clock:
        """The role's clock, with the last ordered work of a kind."""
        clock = dict(self.clock)
        last = self._last.get(kind)
        if last is not None:
            join(clock, last.clock)
        return clock

    def commit_to(self, kind: str, bar: Mbarrier) -> None:
        """One arrival at `bar` when all work of a kind issued so far is done."""
        line = sys._getframe(1).f_lineno  # noqa: SLF001
        what = f"the commit of {self.name}"
        op = Operation(self, what, line, self._after_last(kind), queue=kind)
        op.arrives(bar)
        self._last[kind] = op
        self.block.launch.issued(op, self)

    def arrive_later(self, kind: str, bar: Mbarrier, threads: Any) -> None:
        """`threads` arrivals at `bar` when the role's copies issued so far are done."""
        line = sys._getframe(1).f_lineno  # noqa: SLF001
        clock = dict(self.clock)
        join(clock, self._copied)
        op = Operation(self, f"the {kind} of {self.name}", line, clock, queue=kind)
        op.arrives(bar, int(threads))
        self.block.launch.issued(op, self)

    def commit(self, kind: str) -> None:
        """Close a group of work of a kind."""
        if self.block.launch.plain:
            return
        self._groups.setdefault(kind, []).append(self._open.pop(kind, []))

    def wait_groups(self, kind: str, left: Any, *, reads: Any = False) -> Wait | None:
        """Wait until at most `left` groups of a kind are in flight, or have not `reads` all."""
        if self.block.launch.plain:
            return None
        groups = self._groups.setdefault(kind, [])
        count = max(0, len(groups) - int(left))
        waited = [op for group in groups[:count] for op in group]
        del groups[:count]
        if reads:
            self._half_waited += waited
        elif kind == "TMA store":
            waited = self._half_waited + waited
            self._half_waited = []
        clock: Clock = {}
        for op in waited:
            join(clock, op.read_clock if reads else op.clock)
        return _OwnWait(
            lambda: all(op.done for op in waited), lambda: f"for its {kind}", lambda: clock
        )

    def groups_since(self, access: RegionAccess) -> int | None:
        """The number of groups committed after that of an access in flight; None if it has none."""
        groups = self._groups.get(access.kind, ())
        for number, group in enumerate(groups, 1):
            if any(op.clock.get(access.agent, 0) >= access.time for op in group):
                return len(groups) - number
        return None

    # -- accesses

    def access(
        self,
        name: str,
        elements: Any,
        shape: tuple[int, ...],
        *,
        write: bool = False,
        ordinary: bool = False,
        blocks: tuple[int, ...] | None = None,
    ) -> None:
        """Record an access of a buffer.

        Args:
            name: of the buffer.
            elements: the dims of a region, or `Cells`.
            shape: of the buffer.
            write: whether it is written.
            ordinary: whether the asynchronous proxy sees the write only after a fence.
            blocks: the ranks of the blocks of the cluster that have it; None for this one.
        """
        line = sys._getframe(1).f_lineno  # noqa: SLF001
        self._add(
            name, elements, shape, self.name, line, write=write, ordinary=ordinary, blocks=blocks
        )

    def frees(self, name: str, shape: tuple[int, ...]) -> None:
        """Record that a buffer of tensor memory is freed, as a write of the whole."""
        by = f"the release of tensor memory at the end of {self.name}"
        line = sys._getframe(1).f_lineno  # noqa: SLF001
        self._add(name, tuple((0, n, 1) for n in shape), shape, by, line, write=True)

    def _add(
        self,
        name: str,
        elements: Any,
        shape: tuple[int, ...],
        by: str,
        line: int,
        *,
        write: bool,
        ordinary: bool = False,
        blocks: tuple[int, ...] | None = None,
    ) -> None:
        if self.watched:
            clock, agent = self.clock, self.agent
            region = region_of(elements, shape)
            unordered = write and name in self.launch.unordered
            if unordered:
                clock = self._known_to_all(clock, self._engines)
            access = RegionAccess(
                agent, clock[agent], write, line, by, *region,
                unfenced=ordinary, unordered=unordered,
            )  # fmt: skip
            for of in (self.block,) if blocks is None else self.block.members(blocks):
                self._add_to(of, name, shape, clock, access)

    def _add_to(
        self, block: Block, name: str, shape: tuple[int, ...], clock: Clock, access: RegionAccess
    ) -> None:
        """Add an access of memory of this block, or of another of its cluster."""
        if block is not self.block:
            access = replace(access, by=f"{self.name} of {self.block.name}")
            block.reached(self.block, clock, name, access.line, access.what)
            block.in_flight[access.agent] = access.time, access.what, access.line, name
        block.add(name, shape, clock, access)

    def fence(self) -> None:
        """`T.fence_proxy_async`: earlier writes become visible to the asynchronous proxy."""
        clock = self.clock
        for agent in [a for a in clock if a >= 0]:
            clock[fenced(agent)] = clock[agent]
        self.tick()
