"""Models of CUDA functions that kernels call with `T.call_extern`: the user's own, and flags.

A model is called as the function is: numbers come as Python numbers, `T.address_of(x[i])` as a
`Pointer`. What it returns is the value of the call. A model that has to wait is a generator that
yields `until(condition)`; other blocks, streams and ranks run meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import numpy as np

from . import context
from .agents import Agent, BlockAgent, Request, Wait
from .flags import ORDERS, SCOPES, Pointers, access, poll, wait_for
from .world import Stopped, World

if TYPE_CHECKING:
    from .flags import Pointer
    from .world import Rank


# Functions by which kernels use flags: `tlm_ACTION_ORDER_SCOPE(pointer, value)`; see
# `kernels/distributed/signals.py`.


def _load(order: str, scope: str, pointer: Pointer) -> Generator[Request | None, None, int]:
    yield poll(pointer)
    return access(pointer, order, scope)


def _store(order: str, scope: str, pointer: Pointer, value: int) -> Generator[None, None, int]:
    yield None
    access(pointer, order, scope, lambda _old: int(value), atomic=False)
    return value


def _add(order: str, scope: str, pointer: Pointer, value: int) -> Generator[None, None, int]:
    yield None
    return access(pointer, order, scope, lambda old: old + int(value))


def _given(
    scope: str, pointer: Pointer, value: int, number: int, waits: bool
) -> Generator[Request, None, int]:
    if waits:
        yield from wait_for(pointer, value, "ge", "acquire", scope)
    return number


def _flag_functions() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for scope in SCOPES:
        found[f"tlm_given_ge_acquire_{scope}"] = partial(_given, scope)
        for order in ("relaxed", "acquire"):
            found[f"tlm_load_{order}_{scope}"] = partial(_load, order, scope)
            for compare in ("ge", "eq"):
                wait = partial(wait_for, compare=compare, order=order, scope=scope)
                found[f"tlm_wait_{compare}_{order}_{scope}"] = wait
        # A function of the block, and one that every thread calls.
        for prefix in ("tlm_block", "tlm"):
            for order in ("relaxed", "release"):
                found[f"{prefix}_store_{order}_{scope}"] = partial(_store, order, scope)
            for order in ORDERS:
                found[f"{prefix}_fetch_add_{order}_{scope}"] = partial(_add, order, scope)
    return found


_models: dict[str, Callable[..., Any]] = _flag_functions()


def model_extern(name: str, model: Callable[..., Any]) -> None:
    """Give the interpreter a model of a function that kernels call with `T.call_extern`.

    Args:
        name: the function's name in the CUDA source.
        model: called with the arguments of the call: numbers, and a `Pointer` for
            `T.address_of`. It is called once on behalf of the whole block or warp role; for each
            iteration of `T.Parallel`; and for each active thread if arguments or a condition
            depend on the thread. A generator may yield `until(condition)` to wait.

    Raises:
        TypeError: for a model that cannot be called.
    """
    if not callable(model):
        raise TypeError(f"the model of {name} must be callable, got {type(model).__name__}")
    _models[name] = model


def modelled() -> list[str]:
    """The names of all functions that have a model."""
    return sorted(_models)


def is_modelled(name: str) -> bool:
    """Whether there is a model of a function."""
    return name in _models


def call_extern(name: str, *args: Any) -> Generator[Any, Any, Any]:
    """Call a model; yields what it waits for, returns its value."""
    found = _models[name](*args)
    if isinstance(found, GeneratorType):
        found = yield from found
    return found


def call_extern_by_lane(
    name: str, args: tuple[Any, ...], mask: Any, shape: tuple[int, ...], dtype: str
) -> Generator[Any, Any, Any]:
    """Call a model for each active iteration or thread, in order; returns their values.

    Values of inactive ones are 0. Arguments are numbers, arrays, `Pointer` and `Pointers`.
    """
    results = np.zeros(shape, dtype)
    active = np.broadcast_to(True if mask is None else mask, shape)
    for lane in zip(*np.nonzero(active), strict=True):
        values = [
            np.broadcast_to(arg, shape)[lane].item()
            if isinstance(arg, np.ndarray)
            else arg.of(lane, shape)
            if isinstance(arg, Pointers)
            else arg
            for arg in args
        ]
        found = yield from call_extern(name, *values)
        if found is not None:
            results[lane] = found
    return results


def until(condition: Callable[[], bool], what: str = "a condition") -> Any:
    """What a model yields to wait until `condition()` holds; reports show `what` it waits for."""
    return Wait(condition, lambda: f"for {what}", outside=True)


# Launches of kernels that use flags: each block is an agent in an SM slot -------------------------


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
