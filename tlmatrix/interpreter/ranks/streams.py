"""Streams and events: a host enqueues work, which runs later, in the order of its stream."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from tlmatrix.interpreter.patching import tracing
from tlmatrix.interpreter.reports import caller, rendered
from tlmatrix.interpreter.sync import context
from tlmatrix.interpreter.sync.agents import Agent, Request
from tlmatrix.interpreter.sync.context import current_rank
from tlmatrix.interpreter.sync.externs import Dispatcher, Slot

if TYPE_CHECKING:
    from tlmatrix.interpreter.sync.agents import Clock
    from tlmatrix.interpreter.sync.externs import BlockLaunch
    from tlmatrix.interpreter.sync.world import Rank, World

    from .graphs import Capture


@dataclass
class Operation:
    """Work on a stream.

    Attributes:
        what: what it is, as text: "kernel gemm", "copy".
        work: does it; a generator of requests, or a plain function.
        place: the user's file and line that enqueued it.
        host_clock: the clock of the host when it enqueued it.
        done: whether it is over.
        clock: the clock of the stream at its end.
        capture: what it is captured to, in place of being run.
        world: the simulation that it belongs to.
    """

    what: str
    work: Callable[[Stream], Iterator[Request | None] | None]
    place: tuple[str, int]
    host_clock: Clock
    done: bool = False
    clock: Clock = field(default_factory=dict)
    capture: Capture | None = None
    world: World | None = None


@dataclass
class _Work(Request):
    """An idle stream waits for work."""

    stream: Stream
    idle = True

    def ready(self) -> bool:
        """Whether something is enqueued."""
        return bool(self.stream.queue)

    def describe(self) -> str:
        """The wait, as text."""
        return "for work"


@dataclass
class Done(Request):
    """A wait for an operation of a stream."""

    operation: Operation
    what: str

    def ready(self) -> bool:
        """Whether it is over."""
        return self.operation.done

    def finish(self, task: Agent) -> None:
        """Acquire its clock."""
        task.learn(self.operation.clock)

    def describe(self) -> str:
        """The wait, as text."""
        return self.what


class HostStream:
    """`torch.cuda.Stream`: outside of a simulation work is done in the order it is given.

    An entry may keep one that it made there, and use it on a simulated rank: there it stands for a
    stream of the rank (`of_this_rank`).
    """

    def __enter__(self) -> Self:
        own = of_this_rank(self)
        if own is not None:
            own.host.current.append(own)
        return self

    def __exit__(self, *_error: object) -> None:
        own = of_this_rank(self)
        if own is not None:
            own.host.current.remove(own)

    def wait_event(self, event: Event) -> None:
        """Later work of the stream waits for an event."""
        stream, operation = of_this_rank(self), getattr(event, "operation", None)
        if stream is not None and operation is not None and operation.world is stream.world:
            stream.wait_for(operation, f"for {event}")

    def wait_stream(self, stream: HostStream) -> None:
        """Later work of the stream waits for the earlier work of another."""
        before = of_this_rank(stream)
        if before is not None:
            self.wait_event(before.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """An event that happens when the earlier work of the stream is over."""
        event = event if event is not None else Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """The host waits for the work of the stream."""
        synchronize(self)


class Stream(HostStream, Dispatcher):
    """A simulated stream of a rank.

    Attributes:
        queue: what is enqueued and not over, the running one first.
        label: its name: "default", or a number.
        capture: what it is being captured to.
    """

    def __init__(self, rank: Rank, label: str) -> None:
        super().__init__(rank, label)
        self.label = label
        self.queue: deque[Operation] = deque()
        self.capture: Capture | None = None
        self.generator = self._run()
        self.request = _Work(self)
        rank.streams.append(self)
        self.world.agents.append(self)
        next(self.generator)

    def place(self) -> tuple[str, int]:
        """Where the running operation was enqueued."""
        return self.queue[0].place if self.queue else ("", 0)

    def _run(self) -> Iterator[Request | None]:
        waiting = _Work(self)
        yield waiting
        while True:
            if not self.queue:
                yield waiting
            operation = self.queue[0]
            self.learn(operation.host_clock)
            self.tick()
            work = operation.work(self)
            if work is not None:
                yield from work
            operation.clock = dict(self.clock)
            self.tick()
            operation.done = True
            self.queue.popleft()
            yield None

    def last(self) -> Operation | None:
        """What was enqueued last and is not over."""
        return self.queue[-1] if self.queue else None

    # -- as torch.cuda.Stream

    @property
    def default(self) -> bool:
        """Whether it is the default stream of its rank."""
        return self.label == "default"

    @property
    def cuda_stream(self) -> int:
        """A number that no other stream has."""
        return self.agent

    @property
    def device(self) -> Any:
        """The rank's device."""
        import torch

        return torch.device("cuda", self.rank)

    def wait_for(self, target: Operation, what: str) -> None:
        """Later work of the stream waits for an operation."""
        capture = self.capture or target.capture
        if capture is not None:
            capture.wait(self, target, what)
        else:
            enqueue(f"wait {what}", waiting(target, what), self)

    def query(self) -> bool:
        """Whether nothing is left to do."""
        return not self.queue

    def __repr__(self) -> str:
        return f"<simulated stream {self.label} of rank {self.rank}>"


def of_this_rank(stream: Any) -> Stream | None:
    """The stream of this thread's rank that an object of an entry means; None outside a simulation.

    An entry may keep a stream that it made before, outside of the simulation or in another one. It
    means a stream of its own here, and the default stream if it was that one. None is the current
    stream.
    """
    rank = context.rank()
    if rank is None:
        return None
    if stream is None:
        current: Stream = rank.stream
        return current
    if isinstance(stream, Stream) and stream.world is rank.world:
        return stream
    if getattr(stream, "default", False):
        default: Stream = rank.streams[0]
        return default
    twins: dict[int, tuple[Stream, Any]] = rank.world.state.setdefault(
        f"streams of {rank.number}", {}
    )
    if id(stream) not in twins:
        twins[id(stream)] = Stream(rank, str(len(rank.streams))), stream
    return twins[id(stream)][0]


def waiting(target: Operation, what: str) -> Callable[[Stream], Iterator[Request]]:
    """Work of a stream that waits for an operation."""

    def work(_stream: Stream) -> Iterator[Request]:
        yield Done(target, what)

    return work


class Event:
    """`torch.cuda.Event`: outside of a simulation everything has happened already."""

    def __init__(self, *_args: Any, **_options: Any) -> None:
        self.operation: Operation | None = None
        self._of = ""

    def record(self, stream: HostStream | None = None) -> None:
        """It happens when the earlier work of `stream` is over."""
        own = of_this_rank(stream)
        if own is None:
            return
        self._of = f"an event of {own.name} recorded at {rendered(caller())}"
        self.operation = enqueue("event", lambda _stream: None, own)

    def wait(self, stream: HostStream | None = None) -> None:
        """Later work of `stream` waits for it."""
        own = of_this_rank(stream)
        if own is not None:
            own.wait_event(self)

    def synchronize(self) -> None:
        """The host waits for it."""
        if self.operation is not None and self.operation.world is context.world_of_host():
            if self.operation.capture is not None:
                self.operation.capture.refuse("waiting for an event")
            rank = current_rank()
            rank.call_site = caller()
            rank.world.wait(rank, Done(self.operation, f"for {self}"))

    def query(self) -> bool:
        """Whether it has happened."""
        return self.operation is None or self.operation.done

    def elapsed_time(self, other: Event) -> float:
        """NaN: no time is invented."""
        del other
        return math.nan

    def __str__(self) -> str:
        return self._of or "an event that was never recorded"


def enqueue(
    what: str,
    work: Callable[[Stream], Iterator[Request | None] | None],
    stream: Stream | None = None,
) -> Operation:
    """Enqueue an operation on a stream of this thread's rank; now and then others run meanwhile."""
    rank = current_rank()
    stream = stream if stream is not None else rank.stream
    world = rank.world
    if world.memory is not None:
        world.memory.free(rank)
    operation = Operation(what, work, caller(), dict(rank.clock), world=world)
    if stream.capture is not None:
        return stream.capture.note(stream, operation)
    stream.queue.append(operation)
    # An eager kernel is launched while it is traced: its rank keeps its turn.
    if world.random.random() < world.lazy and not tracing():
        rank.call_site = operation.place
        world.wait(rank, None)
    return operation


def enqueue_kernel(kernel: Any, running: Callable[[], Iterator[BlockLaunch]]) -> None:
    """Enqueue a launch on the current stream of this thread's rank.

    Args:
        kernel: the kernel.
        running: runs it, and yields the blocks of one that waits for flags.
    """

    def work(stream: Stream) -> Iterator[Request | None]:
        if not kernel.waits:
            yield Slot(stream.host, f"kernel {kernel.name}")
        stream.kernel = kernel.name
        for blocks in running():
            yield from blocks.run(stream)
        stream.kernel = ""

    enqueue(f"kernel {kernel.name}", work)


def synchronize(stream: HostStream | None = None) -> None:
    """The host waits for a stream, or for all streams of its rank."""
    own = of_this_rank(stream) if stream is not None else None
    if stream is not None and own is None:
        return  # of a simulation that is over
    rank = current_rank()
    for each in [own] if own is not None else list(rank.streams):
        if each.capture is not None:
            each.capture.refuse("waiting for a stream")
        last = each.last()
        if last is not None:
            rank.call_site = caller()
            rank.world.wait(rank, Done(last, f"for {each.name} to finish its work"))
        else:
            rank.learn(each.clock)
