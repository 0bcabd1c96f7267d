"""The scheduler: ranks whose hosts are threads, and the tasks that run beside them.

Exactly one thread runs at a time. Whoever has to wait runs the others: it steps streams and blocks
in its own thread, and hands on to another rank's thread when that is chosen. Every choice comes
from one seeded generator, so a seed stands for one interleaving. A deadlock is a state, not a
time-out: nobody can go on, and nothing is left that could change that.
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.errors import DeadlockError

from . import context
from .agents import Agent, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from .accesses import Accesses
    from .clocks import Clock
    from .flags import Flag

__all__ = ["Rank", "Stopped", "World"]

_STRAGGLE = 0.02
"""How often a task falls behind for a while, where stragglers are asked for."""
_BEHIND = 400
"""The most steps that it does."""


_URGENT = 0.5
"""How many interleavings go by priorities."""
_DEMOTED = 0.05
"""How often the most urgent task becomes the least urgent."""


class Stopped(BaseException):  # no error of this rank, and not for it to catch
    """Another rank failed."""


class Rank(Agent):
    """A rank: its host is a thread, which this task stands for.

    Attributes:
        number: its number, from 0.
        world: the world.
        free: how many more blocks its multiprocessors can hold.
        streams: its streams, the default one first.
    """

    def __init__(self, world: World, number: int, blocks: int) -> None:
        super().__init__(number, f"rank {number}", 0)
        self.number = number
        self.world = world
        self.free = blocks
        self.streams: list[Any] = []
        self.current: list[Any] = []
        self.done = False
        self.wake = threading.Semaphore(0)
        self.here: tuple[str, int] = ("", 0)
        self.state: dict[str, Any] = {}

    def place(self) -> tuple[str, int]:
        """Where in the user's program the host waits."""
        return self.here

    @property
    def stream(self) -> Any:
        """The current stream."""
        return self.current[-1] if self.current else self.streams[0]


class World:
    """What a simulation shares.

    Attributes:
        ranks: the ranks.
        tasks: all that can be scheduled.
        running: the task that runs.
        flags: what is known of flags, by address.
        retired: agents that are over, with the agent and the time that stand for them.
    """

    def __init__(
        self, size: int, *, seed: int = 0, stragglers: bool = False, blocks: int = 8
    ) -> None:
        self.size = size
        self.random = random.Random(seed)  # noqa: S311  # a schedule is no secret
        self.stragglers = stragglers
        self.ranks = [Rank(self, k, blocks) for k in range(size)]
        self.tasks: list[Agent] = list(self.ranks)
        self.running: Agent | None = None
        self.failed: BaseException | None = None
        self.failed_rank: int | None = None
        self.over = threading.Event()
        self.steps = 0
        self.flags: dict[int, Flag] = {}
        self.retired: dict[int, tuple[int, int]] = {}
        self.accesses: Accesses | None = None
        self.memory: Any = None
        self.state: dict[str, Any] = {}
        self.around: Callable[[], Any] | None = None
        self._agents = 0
        # How readily a host lets others run when it only enqueues; differs between seeds.
        self.lazy = self.random.choice((0.0, 0.1, 0.5))
        # Whether tasks have priorities, or an equal chance each time.
        self.urgency = self.random.random() < _URGENT

    def agent(self) -> int:
        """A new number for clocks."""
        self._agents += 1
        return self._agents

    def knows(self, clock: Clock, agent: int, time: int) -> bool:
        """Whether a clock knows of an agent's time."""
        if clock.get(agent, 0) >= time:
            return True
        after = self.retired.get(agent)
        return after is not None and self.knows(clock, *after)

    def forget(self, clock: Clock) -> None:
        """Drop from a clock the agents that are over, where it knows what stands for them."""
        for agent in [a for a in clock if a in self.retired]:
            if self.knows(clock, *self.retired[agent]):
                del clock[agent]

    # -- choosing

    def pick(self) -> Agent | None:
        """A task that can go on; None if there is none."""
        tasks = self.tasks
        if self.urgency:
            return self._most_urgent()
        count = len(tasks)
        start = self.random.randrange(count) if count else 0
        asleep: Agent | None = None
        for offset in range(count):
            task = tasks[(start + offset) % count]
            if not task.ready:
                continue
            if task.wakes > self.steps:
                if asleep is None or task.wakes < asleep.wakes:
                    asleep = task
                continue
            if self.stragglers and self.random.random() < _STRAGGLE:
                task.wakes = self.steps + self.random.randrange(_BEHIND)
                if asleep is None or task.wakes < asleep.wakes:
                    asleep = task
                continue
            return task
        return asleep

    def _most_urgent(self) -> Agent | None:
        """The ready task of the highest priority; priorities change at random points.

        So some tasks lag far behind (probabilistic concurrency testing, Burckhardt et al. 2010).
        """
        best: Agent | None = None
        asleep: Agent | None = None
        for task in self.tasks:
            if not task.ready:
                continue
            if task.priority is None:
                task.priority = self.random.random()
            if task.wakes > self.steps:
                if asleep is None or task.wakes < asleep.wakes:
                    asleep = task
            elif best is None or best.priority is None or task.priority > best.priority:
                best = task
        if best is None:
            return asleep
        if self.random.random() < _DEMOTED:
            best.priority = -self.random.random()
        if self.stragglers and self.random.random() < _STRAGGLE:
            best.wakes = self.steps + self.random.randrange(_BEHIND)
        return best

    # -- running

    def wait(self, rank: Rank, request: Request | None) -> Any:
        """Let others run until a host's request is ready and the host is chosen again.

        Raises:
            DeadlockError: if nobody can go on.
            Stopped: if another rank failed.
        """
        rank.request = request
        if self.around is not None:
            with self.around():
                self._drive(rank)
        else:
            self._drive(rank)
        self.running = rank
        rank.request = None
        return request.finish(rank) if request is not None else None

    def _drive(self, rank: Rank) -> None:
        """Step tasks until `rank` is chosen."""
        while True:
            if self.failed is not None:
                raise Stopped
            self.steps += 1
            task = self.pick()
            if task is rank:
                return
            if task is None:
                self._stuck()
            elif isinstance(task, Rank):
                task.wake.release()
                if rank.done:
                    return
                rank.wake.acquire()
                if self.failed is not None:
                    raise Stopped
                return
            else:
                self.step(task)

    def finish(self, over: Callable[[], bool]) -> None:
        """Step tasks until something is over, in a world without hosts."""
        while not over():
            self.steps += 1
            task = self.pick()
            if task is None:
                self._stuck()
            else:
                self.step(task)

    def step(self, task: Agent) -> None:
        """Run a stream or a block to its next request."""
        self.running = task
        try:
            if not task.step():
                self.tasks.remove(task)
        except BaseException as error:  # noqa: BLE001  # raised again in the caller's thread
            self.fail(error, task.rank)
            raise Stopped from None

    def _stuck(self) -> None:
        from .deadlocks import deadlock

        error = deadlock(self)
        self.fail(error, None)
        raise Stopped

    def fail(self, error: BaseException, rank: int | None) -> None:
        """Note why the simulation ends; the first reason counts."""
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
            self.tasks.remove(rank)
            self._leave(rank)
            context.enter(None, None)

    def _leave(self, rank: Rank) -> None:
        """Hand on to another host; the last one ends the simulation."""
        left = [r for r in self.ranks if not r.done]
        if left and self.failed is None:
            try:
                if self.around is not None:
                    with self.around():
                        self._drive(rank)
                else:
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
