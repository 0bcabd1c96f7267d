"""Launches of kernels that use flags: each block is an agent, and occupies an SM slot."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from . import context
from .agents import Agent, BlockAgent, Request, Wait
from .world import Stopped, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .world import Rank

_RESIDENT = 132
"""Blocks that are resident at once outside a simulation: the SMs of an H200."""
_NUMBERS = itertools.count(1)


@dataclass
class Slot(Request):
    """Waits until a rank has a free SM slot.

    Attributes:
        rank: the rank.
        what: what needs the slot: "a block of kernel gemm", "a fill".
    """

    rank: Rank
    what: str

    def ready(self) -> bool:
        """Whether another block can be resident."""
        return self.rank.free > 0

    def describe(self) -> str:
        """The wait, as text."""
        return f"for a free multiprocessor, to run {self.what}"

    def weight(self) -> int:
        """Behind waits for flags."""
        return 1

    def why(self) -> list[str]:
        """What occupies the slots, and what to do."""
        return [
            (
                "blocks that wait for flags take all of them: signal without a kernel "
                "(stream_write_value32), launch what signals first, or launch fewer blocks"
            )
        ]


class Dispatcher(Agent):
    """An agent that dispatches blocks: a stream, or one launch outside a simulation.

    Attributes:
        host: its rank.
        world: its world.
    """

    def __init__(self, host: Rank, label: str) -> None:
        super().__init__(host.number, f"rank {host.number}, stream {label}", host.world.agent())
        self.host = host
        self.world = host.world


@dataclass
class BlockLaunch:
    """A launch whose blocks are agents.

    Attributes:
        kernel: the kernel's name.
        function: makes the generator of a block from its index.
        grid: extents of the grid.
        locations: the user's location of each line of the generated source.
        watch: the monitor of a sanitized launch.
        located: adds the user's location to an error.
        around: the context that its blocks run in.
        after: called when all blocks have ended.
        number: its number; no two launches have the same.
    """

    kernel: str
    function: Callable[..., Iterator[Request | None]]
    grid: tuple[int, ...]
    locations: Sequence[Any]
    watch: Any = None
    located: Callable[[Exception], Exception] | None = None
    around: Callable[[], Any] = nullcontext
    after: list[Callable[[], None]] = field(default_factory=list)
    number: int = field(default_factory=_NUMBERS.__next__)

    def run(self, stream: Dispatcher) -> Iterator[Request | None]:
        """Dispatch the blocks in order, and wait for all of them."""
        rank, world = stream.host, stream.world
        blocks: list[_Block] = []
        for index in itertools.product(*(range(int(n)) for n in self.grid)):
            yield Slot(rank, f"a block of kernel {self.kernel}")
            rank.free -= 1
            block = _Block(self, stream, index)
            blocks.append(block)
            world.agents.append(block)
        yield Wait(lambda: all(block.done for block in blocks), partial(self._left, blocks))
        stream.tick()
        for block in blocks:
            stream.learn(block.clock)
        world.order.forget(stream.clock)
        for act in self.after:
            act()

    def _left(self, blocks: Sequence[Agent]) -> str:
        left = sum(not block.done for block in blocks)
        return f"for {left} block{'s' * (left != 1)} of kernel {self.kernel} to end"

    def run_alone(self) -> None:
        """Run all blocks now, outside a simulation."""
        world = World(1, blocks=_RESIDENT)
        stream = Dispatcher(world.ranks[0], "default")
        stream.generator = self.run(stream)
        world.agents[:] = [stream]
        before = context.enter(world, None)
        try:
            with self.around():
                world.finish(lambda: stream not in world.agents)
        except Stopped:
            assert world.failed is not None
            raise world.failed from None
        finally:
            context.enter(*before)


class _Block(BlockAgent):
    """A resident block."""

    def __init__(self, launch: BlockLaunch, stream: Dispatcher, index: tuple[int, ...]) -> None:
        super().__init__(stream.rank, stream.name, stream.world.agent(), launch, index)
        self.stream = stream
        self.clock = dict(stream.clock) | {self.agent: 1}
        self.generator = launch.function(*index)

    def step(self) -> bool:
        """Run to the next request; False at the end."""
        launch = self.launch
        if self.running is None and launch.watch is not None:
            self.running = launch.watch.enter(self.index)
        try:
            going = super().step()
        except Exception as error:
            raise (launch.located(error) if launch.located is not None else error) from error
        if not going:
            self._end()
        return going

    def _end(self) -> None:
        stream = self.stream
        stream.host.free += 1
        # A clock that includes the end of the kernel includes the block.
        stream.world.order.retired[self.agent] = (stream.agent, stream.clock[stream.agent] + 1)
        del self.clock[self.agent]
