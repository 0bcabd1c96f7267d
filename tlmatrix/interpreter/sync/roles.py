"""A block of threads at run time: its roles, barriers, asynchronous work and memory accesses."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.errors import SynchronizationError

from .barriers import Mbarrier, Mbarriers, Meeting, ThreadBarrier
from .clocks import Access, Cells, Clock, History, box_of, cells_of, fenced, join, spell
from .requests import Finish, Meet, Phase, Request, Spin, Together

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from .launches import Launch

__all__ = ["Block", "Operation", "Role"]

_SPIN = Spin()
# Asynchronous work that is waited for in groups.
_GROUPED = frozenset({"wgmma", "cp.async", "TMA store"})
# More agents than any block has.
_AGENTS = 1 << 20
# What reads shared memory through the asynchronous proxy.
_ASYNCHRONOUS_PROXY = frozenset({"TMA load", "TMA store", "wgmma", "tcgen05 MMA"})
# What works on memory that the block gives back at its end.
_OUTLIVING = frozenset({"TMA load", "TMA store", "cp.async", "tcgen05 MMA"})


def _does(who: str, write: bool) -> str:
    verb = "write" if write else "read"
    return f"{who} {verb}" if who.startswith("threads") else f"{who}, which {verb}s"


@dataclass
class Operation:
    """Asynchronous work: a copy or a matrix product that completes when the schedule says.

    Attributes:
        action: does the work.
        clock: what one knows who saw it completed.
        queue: operations of one queue complete in order; None where nothing orders it.
        what: the operation in words.
        line: the line of the generated source that issued it.
        block: the block that issued it.
        after: what happens on completion (barriers).
        read_clock: what one knows who saw that it has read all it reads, as `clock`.
        agent: the agent whose work it is.
    """

    action: Callable[[], None]
    clock: Clock
    queue: tuple[Any, ...] | None
    what: str
    line: int
    block: Block
    after: list[Callable[[Operation], None]] = field(default_factory=list)
    read_clock: Clock = field(default_factory=dict)
    agent: int = 0
    done: bool = False

    def complete(self) -> None:
        """Do the work and tell the barriers."""
        self.action()
        self.done = True
        for tell in self.after:
            tell(self)


class Role:
    """The threads `low` to `high - 1` of a block, which run one piece of code in lockstep."""

    def __init__(self, block: Block, number: int, low: int, high: int) -> None:
        self.block = block
        self.number = number
        self.low, self.high = low, high
        self.threads = high - low
        self.name = f"threads {low}..{high - 1}"
        self.agent = block.first_agent + number
        self.clock: Clock = {self.agent: 1}
        self.generator: Generator[Request | None, Any, None] | None = None
        self.request: Request | None = None
        self.done = False
        self.spinning = False
        self.ended_line = 0
        # By kind: the last operation of those that follow each other, those of the group that is
        # open, and the groups that were closed and not waited for.
        self.last: dict[str, Operation] = {}
        self.copied: Clock = {}
        self.open: dict[str, list[Operation]] = {}
        self.groups: dict[str, list[list[Operation]]] = {}
        # Work that was waited for until it had read what it reads, but not done.
        self.half_waited: list[Operation] = []

    # -- synchronization

    def wait(self, bar: Mbarrier, parity: Any) -> Phase:
        """`T.mbarrier_wait_parity`."""
        return Phase(bar, int(parity))

    def arrive(self, bar: Mbarrier, threads: Any) -> None:
        """`T.mbarrier_arrive` by some threads of this role."""
        line = sys._getframe(1).f_lineno  # noqa: SLF001  # the statement that runs
        self.block.arrive(bar, int(threads), self.clock, self.name, line)
        self.clock[self.agent] += 1
        self.block.launch.progress += 1

    def expect(self, bar: Mbarrier, size: Any) -> None:
        """`T.mbarrier_expect_tx`."""
        bar.expect(int(size))

    def sync(self, identity: int = 0, count: int | None = None) -> Together:
        """`T.sync_threads`, of the whole block or of `count` threads."""
        bar = self.block.thread_barrier(identity, count)
        generation = bar.arrive(self.threads, self.clock)
        self.clock[self.agent] += 1
        self.block.launch.progress += 1
        return Together(bar, generation)

    def sync_group(self, members: tuple[int, ...]) -> Together:
        """The barrier that TileLang puts between statements that share memory."""
        roles = [self.block.roles[m] for m in members]
        bar = self.block.group_barrier(members, sum(r.threads for r in roles))
        generation = bar.arrive(self.threads, self.clock)
        self.clock[self.agent] += 1
        return Together(bar, generation)

    def sync_grid(self) -> Together:
        """`T.sync_grid`: of all blocks."""
        bar = self.block.launch.grid
        generation = bar.arrive(self.threads, self.clock)
        self.clock[self.agent] += 1
        self.block.launch.progress += 1
        return Together(bar, generation)

    def named_arrive(self, identity: int, count: int) -> None:
        """`T.named_barrier_arrive`: arrive and go on."""
        self.block.thread_barrier(identity, count).arrive(self.threads, self.clock)
        self.clock[self.agent] += 1

    def meet(self, key: int, members: tuple[int, ...]) -> Meet:
        """Come to a statement that the roles of `members` do together."""
        meetings = self.block.meetings
        meeting = meetings.get(key)
        if meeting is None:
            meeting = meetings[key] = Meeting(members)
        meeting.come.add(self.number)
        join(meeting.gathered, self.clock)
        self.clock[self.agent] += 1
        leader = len(meeting.come) == len(members)
        self.block.launch.progress += 1
        return Meet(meeting, {r.number: r.name for r in self.block.roles}, leader)

    def part(self, key: int) -> None:
        """The statement is done: the others go on, knowing of it."""
        meeting = self.block.meetings.pop(key)
        join(meeting.gathered, self.clock)
        self.clock[self.agent] += 1
        meeting.done = True

    def spin(self) -> Spin:
        """A turn of a loop that reads what other blocks or roles write."""
        return _SPIN

    # -- asynchronous work

    def issue(
        self,
        kind: str,
        action: Callable[[], None],
        accesses: Sequence[tuple[str, bool, Any, tuple[int, ...]]],
        *,
        bar: Mbarrier | None = None,
        size: int = 0,
        arrive: Mbarrier | None = None,
        ordered: bool = False,
    ) -> None:
        """Issue asynchronous work.

        Args:
            kind: what it is: "TMA load", "TMA store", "cp.async", "wgmma", "tcgen05 MMA".
            action: does it.
            accesses: per buffer its name, whether it is written, the block's dims, the shape.
            bar: the mbarrier that counts its bytes.
            size: how many bytes.
            arrive: the mbarrier that gets one arrival when it and all before it are done.
            ordered: whether it comes after the role's earlier work of this kind.
        """
        line = sys._getframe(1).f_lineno  # noqa: SLF001
        block = self.block
        queue = (self.agent, kind) if ordered else None
        agent, time = block.agent((self.number, kind, None if bar is None else bar.label))
        clock = dict(self.clock)
        if ordered:
            self._join_last(clock, kind)
        what = f"the {kind} issued by {self.name}"
        # A TMA store can be waited for until it has read, and until it has written.
        writer, written = (agent, time)
        if kind == "TMA store":
            writer, written = block.agent((self.number, "the writes of a TMA store", None))
        for name, write, dims, shape in accesses:
            cells = dims.flat if isinstance(dims, Cells) else None
            box = None if isinstance(dims, Cells) else dims
            who, when = (writer, written) if write else (agent, time)
            block.note(
                name,
                shape,
                clock,
                who,
                when,
                write,
                box,
                cells,
                line,
                what,
                asynchronous=kind in _ASYNCHRONOUS_PROXY,
            )
        clock[agent] = time
        read_clock = dict(clock)
        clock[writer] = written
        if kind in _OUTLIVING:
            block.flying[agent] = (time, what, line, accesses[0][0] if accesses else "")
        if kind == "cp.async":
            # A thread's copies complete in order, though nothing orders what they touch.
            queue = (self.agent, kind)
            join(self.copied, clock)
        op = Operation(action, clock, queue, what, line, block, read_clock=read_clock, agent=writer)
        if bar is not None:
            bar.expect(size)
            op.after.append(lambda op: bar.came(size, op.clock))
        if arrive is not None:
            self._completion(op, arrive)
        if ordered:
            self.last[kind] = op
        if kind in _GROUPED:
            self.open.setdefault(kind, []).append(op)
        block.launch.issued(op, self)

    def _join_last(self, clock: Clock, kind: str) -> None:
        last = self.last.get(kind)
        if last is not None:
            join(clock, last.clock)

    def _completion(self, op: Operation, bar: Mbarrier) -> None:
        def tell(done: Operation) -> None:
            self.block.arrive(bar, 1, done.clock, done.what, done.line)

        op.after.append(tell)

    def commit_to(self, kind: str, bar: Mbarrier) -> None:
        """One arrival at `bar` when all work of a kind issued so far is done."""
        line = sys._getframe(1).f_lineno  # noqa: SLF001
        clock = dict(self.clock)
        self._join_last(clock, kind)
        what = f"the commit of {self.name}"
        op = Operation(lambda: None, clock, (self.agent, kind), what, line, self.block)
        self._completion(op, bar)
        self.last[kind] = op
        self.block.launch.issued(op, self)

    def arrive_later(self, kind: str, bar: Mbarrier, threads: Any) -> None:
        """`threads` arrivals at `bar` when the role's copies issued so far are done."""
        line = sys._getframe(1).f_lineno  # noqa: SLF001
        clock = dict(self.clock)
        join(clock, self.copied)
        what = f"the {kind} of {self.name}"
        op = Operation(lambda: None, clock, (self.agent, kind), what, line, self.block)
        count = int(threads)

        def tell(done: Operation) -> None:
            self.block.arrive(bar, count, done.clock, done.what, done.line)

        op.after.append(tell)
        self.block.launch.issued(op, self)

    def commit(self, kind: str) -> None:
        """Close a group of work of a kind."""
        self.groups.setdefault(kind, []).append(self.open.pop(kind, []))

    def wait_groups(self, kind: str, left: Any, *, reads: Any = False) -> Finish:
        """Wait until at most `left` groups of a kind are in flight, or have not `reads` all."""
        groups = self.groups.setdefault(kind, [])
        count = max(0, len(groups) - int(left))
        waited = tuple(op for group in groups[:count] for op in group)
        del groups[:count]
        if reads:
            self.half_waited += waited
        elif kind == "TMA store":
            waited = (*self.half_waited, *waited)
            self.half_waited = []
        return Finish(waited, f"its {kind}", bool(reads))

    # -- accesses

    def reads(self, name: str, dims: Any, shape: tuple[int, ...]) -> None:
        """Note that a block of a buffer is read."""
        self._note(name, shape, dims, None, write=False)

    def writes(
        self, name: str, dims: Any, shape: tuple[int, ...], *, ordinary: bool = False
    ) -> None:
        """Note that a block of a buffer is written."""
        self._note(name, shape, dims, None, write=True, ordinary=ordinary)

    def frees(self, name: str, shape: tuple[int, ...]) -> None:
        """Note that a buffer of tensor memory is freed: as if all of it were written."""
        line = sys._getframe(1).f_lineno  # noqa: SLF001
        clock, number = self.clock, self.agent
        who = f"the end of {self.name}, where tensor memory is freed"
        whole = tuple((0, n, 1) for n in shape)
        self.block.note(name, shape, clock, number, clock[number], True, whole, None, line, who)

    def fence(self) -> None:
        """`T.fence_proxy_async`: all writes known so far count for the asynchronous proxy."""
        clock = self.clock
        for agent in [a for a in clock if a >= 0]:
            clock[fenced(agent)] = clock[agent]
        clock[self.agent] += 1

    def _note(
        self,
        name: str,
        shape: tuple[int, ...],
        dims: Any,
        cells: Any,
        *,
        write: bool,
        ordinary: bool = False,
    ) -> None:
        line = sys._getframe(2).f_lineno  # noqa: SLF001
        clock, number = self.clock, self.agent
        self.block.note(
            name,
            shape,
            clock,
            number,
            clock[number],
            write,
            dims,
            cells,
            line,
            self.name,
            ordinary=ordinary,
        )

    def touches(
        self,
        name: str,
        index: Any,
        mask: Any,
        shape: tuple[int, ...],
        *,
        write: bool,
        ordinary: bool = False,
    ) -> None:
        """Note that the lanes of a gather or scatter touch elements."""
        cells = cells_of(index, mask, shape)
        self._note(name, shape, None, cells, write=write, ordinary=ordinary)


class Block:
    """One block of the grid."""

    def __init__(self, launch: Launch, index: tuple[int, ...], cuts: tuple[int, ...]) -> None:
        self.launch = launch
        self.index = index
        # What the monitor of a sanitized program goes on with this block by.
        self.running: Any = None
        self.threads = cuts[-1]
        # Agents of all blocks of a launch have numbers of their own.
        self.first_agent = launch.started * _AGENTS
        launch.started += 1
        self.roles = [Role(self, k, low, high) for k, (low, high) in enumerate(pairwise(cuts))]
        self.meetings: dict[int, Meeting] = {}
        self.barriers: list[Mbarriers] = []
        self._thread_barriers: dict[int, ThreadBarrier] = {}
        self._group_barriers: dict[tuple[int, ...], ThreadBarrier] = {}
        self._agents: dict[tuple[Any, ...], list[int]] = {}
        self._histories: dict[str, History] = {}
        # By agent the last asynchronous work that the end of the block would tear apart: its
        # time, what it is, its line, and a buffer it works on.
        self.flying: dict[int, tuple[int, str, int, str]] = {}

    @property
    def name(self) -> str:
        """The block in words."""
        return f"block ({', '.join(map(str, self.index))})"

    def mbarriers(self, name: str, *counts: int) -> Mbarriers:
        """Make an allocation of mbarriers."""
        made = Mbarriers(name, counts)
        self.barriers.append(made)
        return made

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
        self.launch.misused(self, bar.label, line, text)
        raise SynchronizationError(text)

    def end(self) -> None:
        """All roles are at their end: asynchronous work must be known to be done."""
        for agent, (time, what, line, name) in self.flying.items():
            if all(role.clock.get(agent, 0) < time for role in self.roles):
                self.launch.outlived(self, self.launch.names.get(name, name), line, what)

    def thread_barrier(self, identity: int, count: int | None) -> ThreadBarrier:
        """The barrier of threads with a number."""
        bar = self._thread_barriers.get(identity)
        if bar is None or (bar.come == 0 and count is not None and bar.count != count):
            label = f"named barrier {identity}" if identity else "T.sync_threads"
            bar = ThreadBarrier(label, self.threads if count is None else count)
            self._thread_barriers[identity] = bar
        return bar

    def group_barrier(self, members: tuple[int, ...], threads: int) -> ThreadBarrier:
        """The barrier of some roles among themselves."""
        bar = self._group_barriers.get(members)
        if bar is None:
            label = "the barrier that TileLang puts between accesses to shared memory"
            bar = self._group_barriers[members] = ThreadBarrier(label, threads)
        return bar

    def agent(self, key: tuple[Any, ...]) -> tuple[int, int]:
        """An agent of asynchronous work and its next time."""
        found = self._agents.get(key)
        if found is None:
            number = self.first_agent + len(self.roles) + len(self._agents)
            found = self._agents[key] = [number, 0]
        found[1] += 1
        return found[0], found[1]

    def note(
        self,
        name: str,
        shape: tuple[int, ...],
        clock: Clock,
        agent: int,
        time: int,
        write: bool,
        dims: Any,
        cells: Any,
        line: int,
        what: str,
        *,
        ordinary: bool = False,
        asynchronous: bool = False,
    ) -> None:
        """Note an access, and report it if it races with an earlier one."""
        if not self.launch.watched:
            return
        history = self._histories.get(name)
        if history is None:
            history = self._histories[name] = History(name, tuple(shape))
        box = None if dims is None else box_of(dims, history.shape)
        found = history.add(
            clock,
            agent,
            time,
            write=write,
            box=box,
            cells=cells,
            line=line,
            what=what,
            ordinary=ordinary,
            asynchronous=asynchronous,
        )
        if found is None:
            return
        name = self.launch.names.get(name, name)
        self.launch.raced(self, name, history.live[-1], found[0], unfenced=found[1])

    def describe_race(self, name: str, new: Access, old: Access, *, unfenced: bool) -> str:
        """A race in words, with both parties."""
        place = self.launch.place
        if unfenced:
            return (
                f"fence missing on {name}: {_does(new.what, new.write)} "
                f"{name}[{spell(new.box)}] at {place(new.line)},\n"
                f"  after {_does(old.what, old.write)} it at {place(old.line)}, with no "
                f"T.fence_proxy_async() between them ({self.name})"
            )
        return (
            f"race on {name}: {_does(new.what, new.write)} "
            f"{name}[{spell(new.box)}] at {place(new.line)},\n"
            f"  and nothing orders it after {_does(old.what, old.write)} "
            f"{name}[{spell(old.box)}] at {place(old.line)} ({self.name})"
        )
