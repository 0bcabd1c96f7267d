"""The world: ranks whose hosts are threads, and the streams and blocks that run beside them.

Exactly one thread runs at a time. A host that has to wait steps streams and blocks in its own
thread, and wakes the thread of another rank when that is chosen. Every choice comes from one
seeded generator, so a seed stands for one interleaving. A deadlock is a state, not a timeout: no
agent can go on, and nothing is left that could change that.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.errors import DeadlockError, SynchronizationError
from tlmatrix.interpreter.reports import caller, rendered

from . import context
from .agents import Agent, Order, Wait
from .barriers import Rendezvous
from .context import current_rank
from .scheduler import Prioritized, Scheduler, Uniform, deadlock

if TYPE_CHECKING:
    from .accesses import Accesses
    from .agents import Request
    from .flags import Flag


_PRIORITIZED = 0.5
"""How many interleavings go by priorities."""


class Stopped(BaseException):  # no error of this rank, and not for it to catch
    """Another rank failed."""

    unwinds = True
    """See `tlmatrix.tracebacks`."""


class Rank(Agent):
    """A rank: its host is a thread, which this task stands for.

    Attributes:
        number: its number, from 0.
        world: the world.
        free: how many more blocks its multiprocessors can hold.
        streams: its streams, the default one first.
        asks_stream: whether its program has asked for the current stream.
    """

    def __init__(self, world: World, number: int, blocks: int) -> None:
        super().__init__(number, f"rank {number}", 0)
        self.number = number
        self.world = world
        self.free = blocks
        self.streams: list[Any] = []
        self.current: list[Any] = []
        self.asks_stream = False
        self.done = False
        self.wake = threading.Lock()
        self.wake.acquire()
        self.call_site: tuple[str, int] = ("", 0)
        self.state: dict[str, Any] = {}

    def place(self) -> tuple[str, int]:
        """Where in the user's program the host waits."""
        return self.call_site

    @property
    def stream(self) -> Any:
        """The current stream."""
        return self.current[-1] if self.current else self.streams[0]


class World(Scheduler):
    """What a simulation shares.

    Attributes:
        ranks: the ranks.
        running: the agent that runs.
        flags: the state of flags, by address.
        order: which accesses happen before others.
    """

    def __init__(
        self, size: int, *, seed: int = 0, stragglers: bool = False, blocks: int = 8
    ) -> None:
        self.size = size
        self.random = random.Random(seed)  # noqa: S311  # a schedule is no secret
        # How readily a host lets others run when it only enqueues; differs between seeds.
        self.lazy = self.random.choice((0.0, 0.1, 0.5))
        policy = Prioritized if self.random.random() < _PRIORITIZED else Uniform
        super().__init__(policy(self.random, stragglers=stragglers))
        self.ranks = [Rank(self, k, blocks) for k in range(size)]
        self.agents += self.ranks
        self.running: Agent | None = None
        self.failed: BaseException | None = None
        self.failed_rank: int | None = None
        self.over = threading.Event()
        self.flags: dict[int, Flag] = {}
        self.order = Order()
        self.accesses: Accesses | None = None
        self.memory: Any = None
        self.state: dict[str, Any] = {}
        self.around: Callable[[], Any] = nullcontext
        self._agents = 0

    def agent(self) -> int:
        """A new number for clocks."""
        self._agents += 1
        return self._agents

    # -- running

    def wait(self, rank: Rank, request: Request | None) -> Any:
        """Let others run until a host's request is ready and the host is chosen again.

        Raises:
            Stopped: if another rank failed, or no agent can go on.
        """
        if request is None or not request.polls:
            self.progress += 1
        rank.request = request
        self._drive(rank)
        self.running = rank
        rank.request = None
        return request.finish(rank) if request is not None else None

    def _drive(self, rank: Rank) -> None:
        """Step agents until `rank` is chosen, or wake another host and sleep."""
        agent = self._picked() if self.failed is None else None
        if agent is not None and not isinstance(agent, Rank):
            with self.around():
                while agent is not None and not isinstance(agent, Rank):
                    self.step(agent)
                    agent = self._picked() if self.failed is None else None
        if agent is None:
            raise Stopped
        if agent is rank:
            return
        agent.wake.release()
        if not rank.done:
            rank.wake.acquire()
            if self.failed is not None:
                raise Stopped

    def finish(self, over: Callable[[], bool]) -> None:
        """Step agents until something is over, in a world without hosts."""
        while not over():
            self.step(self._picked())

    def _picked(self) -> Agent:
        agent = self.pick()
        if agent is None:
            ranks = f"{self.size} simulated rank{'s' * (self.size != 1)}"
            self.fail(deadlock(ranks, self.agents, rank=True), None)
            raise Stopped
        return agent

    def step(self, agent: Agent) -> None:
        """Run a stream or a block to its next request."""
        self.running = agent
        try:
            super().step(agent)
        except BaseException as error:  # noqa: BLE001  # raised again in the caller's thread
            self.fail(error, agent.rank)
            raise Stopped from None

    def fail(self, error: BaseException, rank: int | None) -> None:
        """End the simulation with an error; the first one counts."""
        if self.failed is None:
            self.failed, self.failed_rank = error, rank

    # -- hosts

    def host(self, rank: Rank, program: Callable[[], None]) -> None:
        """The body of a host's thread."""
        rank.wake.acquire()
        context.enter(self, rank)
        try:
            if self.failed is None:
                self.running = rank
                program()
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001  # raised again in the caller's thread
            self.fail(error, rank.number)
        finally:
            rank.done = True
            self.progress += 1
            self.agents.remove(rank)
            self._leave(rank)
            context.enter(None, None)

    def _leave(self, rank: Rank) -> None:
        """Wake another host; the last one ends the simulation."""
        left = [r for r in self.ranks if not r.done]
        if left and self.failed is None:
            try:
                self._drive(rank)
            except Stopped:
                pass
            else:
                return
        if not left:
            self.over.set()
            return
        left[0].wake.release()

    def run(self, program: Callable[[Rank], None]) -> None:
        """Run `program(rank)` in a thread a rank.

        Raises:
            DeadlockError, or whatever a rank raised first.
        """

        def body(rank: Rank) -> Callable[[], None]:
            return lambda: self.host(rank, lambda: program(rank))

        threads = [
            threading.Thread(target=body(rank), name=f"tlmatrix rank {rank.number}", daemon=True)
            for rank in self.ranks
        ]
        for thread in threads:
            thread.start()
        self.ranks[self.random.randrange(self.size)].wake.release()
        self.over.wait()
        for thread in threads:
            thread.join()
        if self.failed is not None:
            error = self.failed
            if self.failed_rank is not None and not isinstance(error, DeadlockError):
                error.add_note(f"on simulated rank {self.failed_rank} of {self.size}")
            raise error


# Collectives: a rendezvous of the ranks of a group, to which each brings data ---------------------


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
