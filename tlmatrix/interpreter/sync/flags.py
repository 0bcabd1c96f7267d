"""Flags in global memory, as the CUDA memory model has them (PTX ISA, "Memory Consistency Model").

A release publishes the clock of its agent. An acquire that reads its value, or a value that
atomics made of it, joins that clock. With the scope `gpu` both must be on one rank. A store that
does not release discards what was published before.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tlmatrix.interpreter.errors import InterpreterError
from tlmatrix.interpreter.reports import Party, rendered

from . import context
from .agents import Agent, Clock, Request, join
from .races import UNZEROED

if TYPE_CHECKING:
    from .world import World


ORDERS = ("relaxed", "acquire", "release", "acq_rel")
SCOPES = ("gpu", "sys")
_ACQUIRES = ("acquire", "acq_rel")
_RELEASES = ("release", "acq_rel")
_REMEMBERED = 256
"""Writes of a flag that are remembered."""
_SPINS = 3
"""Reads of an unchanged flag after which an agent counts as waiting for it."""


_Integers = TypeVar("_Integers", int, "np.ndarray[Any, Any]")


def to_int32(value: _Integers) -> _Integers:
    """The low 32 bits of an integer, or of each of an array, as an int32."""
    return (value + 2**31) % 2**32 - 2**31


@dataclass
class Write:
    """A write of a flag.

    Attributes:
        value: the value that it wrote.
        by: the agent, as text.
        rank: its rank.
        place: its file and line.
        scope: "gpu" or "sys".
        agent: the agent's number in clocks.
        releases: whether it released.
        atomic: whether it read the flag too, rather than to replace it.
        clock: the clock that it published.
    """

    value: int
    by: str
    rank: int
    place: tuple[str, int]
    scope: str
    agent: int
    releases: bool = False
    atomic: bool = False
    clock: Clock = field(default_factory=dict)


class Published:
    """What writes made known together: clocks by rank, scope and whether they released."""

    def __init__(self) -> None:
        self.heads: dict[tuple[int, str, bool], tuple[Clock, Write]] = {}

    def add(self, write: Write) -> None:
        """Add a write; the last one of its kind stands for all."""
        key = write.rank, write.scope, write.releases
        clock = self.heads[key][0] if key in self.heads else {}
        join(clock, write.clock)
        self.heads[key] = clock, write


@dataclass
class Flag:
    """The state of a flag.

    Attributes:
        published: what the writes published that its value comes from.
        by_rank: the last write of each rank.
        last: the last write.
        version: how often it was written.
        writes: the last writes, in order.
        before: its value before them.
        lost: the write that zeroed it after the last one, with all of the memory it lies in.
    """

    published: Published = field(default_factory=Published)
    by_rank: dict[int, Write] = field(default_factory=dict)
    last: Write | None = None
    version: int = 0
    writes: list[Write] = field(default_factory=list)
    before: int | None = None
    lost: Write | None = None
    _since: dict[int, Published] = field(default_factory=dict)

    def write(self, write: Write, agent: Agent) -> None:
        """An agent has written the flag."""
        write.clock = dict(agent.clock)
        if not write.atomic:
            self.published = Published()
        self.published.add(write)
        self.writes.append(write)
        if len(self.writes) > 2 * _REMEMBERED:
            self.before = None
            del self.writes[:_REMEMBERED]
            self._since.clear()
        self.by_rank[write.rank] = self.last = write
        self.lost = None
        self.version += 1
        agent.tick()

    def advance(self, number: int) -> None:
        """Add to the values that it had, in 32 bits, as if it had been increased by more writes."""
        if self.before is not None:
            self.before = to_int32(self.before + number)
        for write in self.writes:
            write.value = to_int32(write.value + number)
        self._since.clear()

    def since(self, holds: Callable[[int], bool]) -> Published:
        """What was published when a condition began to hold that has held since then.

        A wait for it may have ended then: nothing that came later is ordered before it.
        """
        writes = self.writes
        first = len(writes)
        while first > 0 and holds(writes[first - 1].value):
            first -= 1
        if first == len(writes) or (first == 0 and self.before is None):
            # Written by other means than flag functions, or too long ago.
            return self.published
        if first == 0 and self.before is not None and holds(self.before):
            return Published()
        found = self._since.get(first)
        if found is None:
            found = self._since[first] = Published()
            start = first
            while start > 0 and writes[start].atomic:
                start -= 1
            for write in writes[start : first + 1]:
                found.add(write)
        return found


def _here() -> tuple[World, Agent]:
    world = context.world()
    if world is None or world.running is None:
        raise RuntimeError("a flag was used outside of a kernel")
    return world, world.running


def _flag(world: World, pointer: Pointer) -> Flag:
    return world.flags.setdefault(pointer.address, Flag())


def _acquire(published: Published, agent: Agent, scope: str, name: str, *, acquires: bool) -> None:
    """An agent has read a flag: acquire releases of sufficient scope, note the others."""
    for (rank, written, releases), (clock, last) in published.heads.items():
        if acquires and releases and (rank == agent.rank or written == scope == "sys"):
            agent.learn(clock)
            agent.acquired_through[last.agent] = (name, last.place)
            continue
        where = rendered(last.place)
        if not releases:
            reason = f"{name} is set relaxed at {where}; release it"
        elif not acquires:
            reason = f"{name} is read relaxed; acquire it"
        elif written != "sys":
            reason = (
                f"{name} is set with the scope of a device (gpu) at {where}, which orders nothing "
                "on another one; use the scope of the system (sys)"
            )
        else:
            reason = (
                f"{name} is read with the scope of a device (gpu), which orders nothing of another "
                "one; use the scope of the system (sys)"
            )
        join(agent.missed_acquires.setdefault(reason, {}), clock)


def access(
    pointer: Pointer,
    order: str,
    scope: str,
    change: Callable[[int], int] | None = None,
    *,
    atomic: bool = True,
) -> int:
    """Read a flag, and write `change` of its value; returns the value before.

    Args:
        pointer: the flag.
        order: "relaxed", "acquire", "release" or "acq_rel".
        scope: "gpu" or "sys".
        change: what it becomes; None only reads.
        atomic: whether it reads and writes at once; false for a store, which does not read.
    """
    world, agent = _here()
    flag = _flag(world, pointer)
    old = int(pointer.load())
    if world.accesses is not None:
        world.accesses.flag(pointer, scope, write=change is not None)
    if atomic:
        _acquire(flag.published, agent, scope, str(pointer), acquires=order in _ACQUIRES)
    if change is None:
        return old
    if not flag.writes:
        flag.before = old
    pointer.store(change(old))
    value, releases = int(pointer.load()), order in _RELEASES
    of_agent = agent.name, agent.rank, agent.place(), scope, agent.agent
    flag.write(Write(value, *of_agent, releases, atomic), agent)
    return old


def atomic(
    array: Any,
    index: tuple[int, ...],
    name: str,
    place: tuple[str, int],
    acquires: bool,
    releases: bool,
) -> None:
    """One of TileLang's own atomics on a flag: of device scope, in any order."""
    world, agent = _here()
    pointer = Pointer(array, index, name)
    flag = _flag(world, pointer)
    _acquire(flag.published, agent, "gpu", str(pointer), acquires=acquires)
    if releases:
        value = int(pointer.load())
        flag.write(
            Write(value, agent.name, agent.rank, place, "gpu", agent.agent, True, True), agent
        )


def zero(world: World, memory: Any, stream: Agent) -> None:
    """A stream zeroes the memory that flags lie in; earlier writes are lost."""
    memory[...] = 0
    begin = memory.__array_interface__["data"][0]
    for address, flag in world.flags.items():
        if flag.last is not None and begin <= address < begin + memory.nbytes:
            flag.lost = Write(0, stream.name, stream.rank, stream.place(), "", stream.agent)


def last_write(world: World, pointer: Pointer) -> Write | None:
    """The last write of a flag by flag functions."""
    return _flag(world, pointer).last


# -- waiting

_COMPARE: dict[str, tuple[Callable[[int, int], bool], str]] = {
    # As sequence numbers are compared: a flag of 32 bits may overflow.
    "ge": (lambda a, b: (a - b) & 0xFFFFFFFF < 1 << 31, "at least"),
    "eq": (lambda a, b: a == b, "exactly"),
}


@dataclass
class FlagWait(Request):
    """A wait for a value of a flag."""

    world: World
    pointer: Pointer
    compare: str
    value: int

    def ready(self) -> bool:
        """Whether it has the value."""
        return _COMPARE[self.compare][0](self.pointer.load(), self.value)

    def describe(self) -> str:
        """The wait, as text."""
        goal = f"to be {_COMPARE[self.compare][1]} {self.value}"
        return f"for {self._named()} {goal}: it is {self.pointer.load()}"

    def _named(self) -> str:
        memory = self.world.memory
        found = memory.describe(self.pointer.address) if memory is not None else ""
        return f"{self.pointer} ({found})" if found else str(self.pointer)

    def why(self) -> list[str]:
        """The last write of the flag, and the ranks that never wrote it."""
        world, flag = self.world, _flag(self.world, self.pointer)
        last, lost = flag.last, flag.lost
        if last is None:
            return [f"it was never written{self._elsewhere()}"]
        lines = [f"written last by {last.by}, with {last.value}, at {rendered(last.place)}"]
        if lost is not None:
            lines.append(f"zeroed after that by {lost.by}, at {rendered(lost.place)}: {UNZEROED}")
        absent = [str(r.number) for r in world.ranks if r.number not in flag.by_rank]
        if absent and world.size > 1:
            lines.append(f"never written by rank{'s' * (len(absent) > 1)} {', '.join(absent)}")
        return lines

    def _elsewhere(self) -> str:
        """Which other elements of the buffer were written: shows an index that is off."""
        pointer = self.pointer
        first = Pointer(pointer.array, tuple(0 for _ in pointer.index), pointer.name).address
        written = sorted(
            (address - first) // pointer.array.itemsize
            for address, flag in self.world.flags.items()
            if flag.last is not None and first <= address < first + pointer.array.nbytes
        )
        if not written or len(pointer.index) != 1:
            return ""
        shown = ", ".join(map(str, written[:8])) + (", …" if len(written) > 8 else "")
        return f"; written are {pointer.name}[{shown}]"

    def weight(self) -> int:
        """Flags come first: other waits wait for them."""
        return 0

    def subject(self) -> tuple[str, tuple[int, ...]]:
        """The flag."""
        return self.pointer.name, self.pointer.index

    def other(self) -> Party | None:
        """The last write."""
        last = last_write(self.world, self.pointer)
        return None if last is None else Party(None, *last.place, "write", by=last.by)


@dataclass
class _Changed(FlagWait):
    """An agent that has read an unchanged flag again and again; `value` is the version."""

    def ready(self) -> bool:
        """Whether the flag was written since."""
        return _flag(self.world, self.pointer).version != self.value

    def describe(self) -> str:
        """The wait, as text."""
        return f"in a loop for {self._named()} to change: it is {self.pointer.load()}"


def poll(pointer: Pointer) -> Request | None:
    """The request of an agent before it reads a flag: a wait if it has read it before."""
    world, agent = _here()
    version = _flag(world, pointer).version
    key = pointer.address, version
    count = agent.spins[1] + 1 if agent.spins[0] == key else 1
    agent.spins = key, count
    return _Changed(world, pointer, "", version) if count > _SPINS else None


def wait_for(
    pointer: Pointer, value: int, compare: str, order: str, scope: str
) -> Generator[Request, None, int]:
    """Wait until a flag has a value; returns the value seen."""
    world, agent = _here()
    yield FlagWait(world, pointer, compare, int(value))
    seen = int(pointer.load())
    if world.accesses is not None:
        world.accesses.flag(pointer, scope, write=False)
    flag = _flag(world, pointer)
    holds, words = _COMPARE[compare]
    published = flag.since(lambda found: holds(found, int(value)))
    if published is not flag.published:
        reason = (
            f"{pointer} has been {words} {value} since an earlier write, so that the wait for it "
            "may end too early; wait for a later value (an epoch, the whole count)"
        )
        missed = agent.missed_acquires.setdefault(reason, {})
        for (rank, written, releases), (clock, _) in flag.published.heads.items():
            if (
                releases
                and order == "acquire"
                and (rank == agent.rank or written == scope == "sys")
            ):
                join(missed, clock)
    _acquire(published, agent, scope, str(pointer), acquires=order == "acquire")
    return seen


# Pointers to elements of buffers, as `T.address_of` gives them to modelled functions --------------


@dataclass(frozen=True)
class Pointer:
    """The address of an element of a buffer; `pointer[i]` is the element `i` places behind it.

    Attributes:
        array: the buffer, as the kernel sees it.
        index: the element.
        name: the user's name of the buffer.
    """

    array: Any
    index: tuple[int, ...]
    name: str

    def __post_init__(self) -> None:
        shape = self.array.shape
        for i, n in zip(self.index, shape, strict=True):
            if not 0 <= i < n:
                raise InterpreterError(
                    f"index out of bounds: the address of {self} is taken, but {self.name} has "
                    f"shape {tuple(shape)}{_owner(self.array)}"
                )

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.index))}]"

    @property
    def address(self) -> int:
        """The address; the same for every view of the buffer."""
        steps = zip(self.index, self.array.strides, strict=True)
        start: int = self.array.__array_interface__["data"][0]
        return start + sum(i * int(s) for i, s in steps)

    def __add__(self, offset: int) -> Pointer:
        """The address of the element `offset` places behind, in C order.

        Raises:
            InterpreterError: if the buffer has no such element.
        """
        shape = self.array.shape
        flat = int(np.ravel_multi_index(self.index, shape)) + int(offset)
        if not 0 <= flat < self.array.size:
            raise InterpreterError(
                f"index out of bounds: {self} + {offset} is outside {self.name}, which has shape "
                f"{tuple(shape)}"
            )
        return Pointer(self.array, tuple(map(int, np.unravel_index(flat, shape))), self.name)

    def __getitem__(self, offset: int) -> Any:
        """The value of the element `offset` places behind."""
        return (self + offset).load()

    def __setitem__(self, offset: int, value: Any) -> None:
        """Store a value in the element `offset` places behind."""
        (self + offset).store(value)

    def load(self) -> Any:
        """The value."""
        return self.array.item(self.index)

    def store(self, value: Any) -> None:
        """Store a value; integers wrap."""
        if self.array.dtype.kind in "iu":
            bits = 8 * self.array.itemsize
            value = int(value) & ((1 << bits) - 1)
            if self.array.dtype.kind == "i" and value >> (bits - 1):
                value -= 1 << bits
        self.array[self.index] = value


@dataclass(frozen=True)
class Pointers:
    """Addresses of elements of a buffer, one for each iteration or thread.

    Attributes:
        array: the buffer.
        index: the elements, as integers or arrays.
        name: the user's name of the buffer.
    """

    array: Any
    index: tuple[Any, ...]
    name: str

    def of(self, lane: tuple[int, ...], shape: tuple[int, ...]) -> Pointer:
        """The pointer of an iteration, of as many as `shape` has."""
        index = tuple(int(np.broadcast_to(i, shape)[lane]) for i in self.index)
        return Pointer(self.array, index, self.name)


def _owner(array: Any) -> str:
    """The symmetric memory that an array is part of, as text."""
    world = context.world()
    if world is None or world.memory is None:
        return ""
    address = array.__array_interface__["data"][0]
    found = world.memory.find(address)
    if found is None:
        return ""
    first = address - found.begin
    return f", bytes {first} to {first + array.nbytes} of {found}, which has {found.size} bytes"
