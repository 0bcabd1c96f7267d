"""The blocks of kernels that use flags: each is a task, and only so many are resident at once."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import here
from .rooms import Room
from .tasks import Request, Task
from .world import Stopped, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .streams import Stream

__all__ = ["BlockLaunch", "block_launch"]

_RESIDENT = 132
"""Blocks that are resident at once where no simulation says otherwise: the SMs of an H200."""


@dataclass
class BlockLaunch:
    """A launch whose blocks are tasks.

    Attributes:
        kernel: the kernel's name.
        function: makes the generator of a block from its index.
        grid: extents of the grid.
        locations: for each line of the generated source the user's.
        watch: the monitor of a sanitized launch.
        located: gives an error its place in the user's source.
        around: the context that its blocks run in.
        after: what is done when all blocks are over.
    """

    kernel: str
    function: Callable[..., Iterator[Request | None]]
    grid: tuple[int, ...]
    locations: Sequence[Any]
    watch: Any = None
    located: Callable[[Exception], Exception] | None = None
    around: Callable[[], Any] = nullcontext
    after: list[Callable[[], None]] = field(default_factory=list)

    def run(self, stream: Stream) -> Iterator[Request | None]:
        """As an operation of a stream: dispatch the blocks in order, and wait for all of them."""
        rank, world = stream.host, stream.world
        blocks: list[_Block] = []
        for index in itertools.product(*(range(int(n)) for n in self.grid)):
            yield Room(rank, f"a block of kernel {self.kernel}")
            rank.free -= 1
            block = _Block(self, stream, index)
            blocks.append(block)
            world.tasks.append(block)
        yield _Ended(blocks, self.kernel)
        stream.tick()
        for block in blocks:
            stream.learn(block.clock)
        world.forget(stream.clock)
        for act in self.after:
            act()

    def run_alone(self) -> None:
        """Run all blocks now, where there is no simulation."""
        world = World(1, blocks=_RESIDENT)
        from .streams import Operation, Stream

        rank = world.ranks[0]
        world.tasks.clear()
        stream = Stream(rank, "default")
        operation = Operation(f"kernel {self.kernel}", self.run, ("", 0), {})
        stream.queue.append(operation)
        before = here.enter(world, None)
        try:
            with self.around():
                world.finish(lambda: operation.done)
        except Stopped:
            assert world.failed is not None
            raise world.failed from None
        finally:
            here.enter(*before)


class _Block(Task):
    """A resident block."""

    def __init__(self, launch: BlockLaunch, stream: Stream, index: tuple[int, ...]) -> None:
        super().__init__(stream.rank, stream.name, stream.world.agent())
        self.launch = launch
        self.kernel = launch.kernel
        self.stream = stream
        self.index = index
        self.over = False
        self.clock = dict(stream.clock) | {self.agent: 1}
        self._started = False
        self._running: Any = None
        self.generator = launch.function(*index)
        self.frame = self.generator

    def place(self) -> tuple[str, int]:
        """The user's line where the block is."""
        frame = getattr(self.frame, "gi_frame", None)
        line = frame.f_lineno if frame is not None else 0
        known = self.launch.locations  # type: ignore[attr-defined]
        location = known[line - 1] if 0 < line <= len(known) else None
        return (location.file, location.line) if location is not None else ("", 0)

    def tick(self) -> None:
        """What comes now is not known to those who were told until now; nor to the monitor."""
        super().tick()
        launch = self.launch
        assert isinstance(launch, BlockLaunch)
        if launch.watch is not None and self._started:
            launch.watch.work_as(self._running, self.clock, self.agent, self.clock[self.agent])

    def step(self) -> bool:
        """Run to the next request, watched."""
        launch = self.launch
        assert isinstance(launch, BlockLaunch)
        watch = launch.watch
        if self.request is not None:
            self.request.finish(self)
            self.request = None
        if watch is not None:
            if not self._started:
                self._running = watch.enter(self.index)
            watch.work_as(self._running, self.clock, self.agent, self.clock[self.agent])
        self._started = True
        try:
            going = super().step()
        except Exception as error:
            raise (launch.located(error) if launch.located is not None else error) from error
        if not going:
            self._end()
        return going

    def _end(self) -> None:
        self.over = True
        stream = self.stream
        stream.host.free += 1
        # Whoever knows the end of the kernel knows the block.
        stream.world.retired[self.agent] = (stream.agent, stream.clock[stream.agent] + 1)
        del self.clock[self.agent]


@dataclass
class _Ended(Request):
    """A wait for all blocks of a launch."""

    blocks: list[_Block]
    kernel: str

    def ready(self) -> bool:
        """Whether all are over."""
        return all(block.over for block in self.blocks)

    def describe(self) -> str:
        """The wait in words."""
        left = sum(not block.over for block in self.blocks)
        return f"for {left} block{'s' * (left != 1)} of kernel {self.kernel} to end"


def block_launch(
    kernel: str,
    function: Callable[..., Any],
    grid: tuple[int, ...],
    locations: Sequence[Any],
    watch: Any = None,
) -> BlockLaunch:
    """What a generated kernel with flags returns: its blocks, to be run."""
    return BlockLaunch(kernel, function, grid, locations, watch)
