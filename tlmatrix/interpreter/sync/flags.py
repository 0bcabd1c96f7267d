"""Flags in global memory, as the CUDA memory model has them, and the models of their functions.

The functions are `tlm_ACTION_ORDER_SCOPE(pointer, value)`, see `kernels/distributed/signals.py`.
A release makes known what its task did and knew; an acquire that reads it, or a value that an
atomic made of it, learns that. With the scope `gpu` both must be on one rank; a store that does
not release forgets what was made known before. (PTX ISA, "Memory Consistency Model".)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.callsite import rendered
from tlmatrix.interpreter.externs import Pointer, model_extern
from tlmatrix.interpreter.reports import Party

from . import context
from .agents import Agent, Request
from .clocks import Clock, join
from .races import UNZEROED

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from .world import World

__all__ = [
    "Flag",
    "FlagWait",
    "Write",
    "access",
    "acquire",
    "atomic",
    "last_write",
    "release",
    "wait_for",
    "zero",
]

_REMEMBERED = 256
"""Writes of a flag that are remembered."""
_SPINS = 3
"""Reads of an unchanged flag in turn after which a task counts as waiting for it."""


@dataclass
class Write:
    """A write of a flag: its value, who made it, and where."""

    value: int
    who: str
    rank: int
    place: tuple[str, int]
    scope: str
    agent: int


@dataclass
class Head:
    """What writes of one kind made known: those of a rank, with a scope, releasing or not."""

    clock: Clock
    last: Write


Heads = dict[tuple[int, str, bool], Head]


@dataclass
class Step:
    """One write of a flag: what it made of it, and what was made known with it."""

    write: Write
    atomic: bool
    key: tuple[int, str, bool]
    clock: Clock


@dataclass
class Flag:
    """What is known of a flag.

    Attributes:
        heads: what the writes made known that its value comes from, by rank, scope and whether
            they released.
        writes: the last write of each rank.
        last: the last write.
        version: how often it was written.
        steps: the last writes, in order.
        before: its value before them.
        lost: who zeroed it after the last write, with all of the memory it lies in.
    """

    heads: Heads = field(default_factory=dict)
    writes: dict[int, Write] = field(default_factory=dict)
    last: Write | None = None
    version: int = 0
    steps: list[Step] = field(default_factory=list)
    before: int | None = None
    lost: Write | None = None
    known: dict[int, Heads] = field(default_factory=dict)

    def note(self, step: Step) -> None:
        """Remember a write; of many the last ones."""
        self.steps.append(step)
        if len(self.steps) > 2 * _REMEMBERED:
            self.before = None
            del self.steps[:_REMEMBERED]
            self.known.clear()

    def since(self, holds: Callable[[int], bool]) -> Heads:
        """What was known when a condition began to hold that has held since then.

        A wait for it may have ended then: nothing that came later is ordered before it.
        """
        first = len(self.steps)
        while first > 0 and holds(self.steps[first - 1].write.value):
            first -= 1
        if first == len(self.steps):
            # Written by something else than flag functions.
            return self.heads
        if first == 0:
            if self.before is None:
                return self.heads
            if holds(self.before):
                return {}
        found = self.known.get(first)
        if found is None:
            found = self.known[first] = self._heads(first)
        return found

    def _heads(self, place: int) -> Heads:
        """What was made known by a write and those that its value comes from."""
        start = place
        while start > 0 and self.steps[start].atomic:
            start -= 1
        heads: Heads = {}
        for step in self.steps[start : place + 1]:
            head = heads.setdefault(step.key, Head({}, step.write))
            join(head.clock, step.clock)
            head.last = step.write
        return heads


def _here() -> tuple[World, Agent]:
    world = context.world()
    if world is None or world.running is None:
        raise RuntimeError("a flag was used outside of a kernel")
    return world, world.running


def _flag(world: World, pointer: Pointer) -> Flag:
    return world.flags.setdefault(pointer.address, Flag())


def acquire(heads: Heads, task: Agent, scope: str, name: str, *, acquires: bool) -> None:
    """A task has read a flag: it learns what releases of sufficient scope made known."""
    for (rank, written, releases), head in heads.items():
        same = rank == task.rank
        if acquires and releases and (same or written == scope == "sys"):
            task.learn(head.clock)
            task.heard[head.last.agent] = (name, head.last.place)
            continue
        where = rendered(head.last.place)
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
        join(task.doubts.setdefault(reason, {}), head.clock)


def release(flag: Flag, task: Agent, write: Write, *, releases: bool, atomic: bool) -> None:
    """A task has written a flag: what it knows is made known; a plain store forgets the rest."""
    if not atomic:
        flag.heads = {}
    key = (task.rank, write.scope, releases)
    head = flag.heads.setdefault(key, Head({}, write))
    join(head.clock, task.clock)
    head.last = write
    flag.note(Step(write, atomic, key, dict(task.clock)))
    task.tick()
    flag.writes[task.rank] = flag.last = write
    flag.lost = None
    flag.version += 1


def access(
    pointer: Pointer,
    order: str,
    scope: str,
    change: Callable[[int], int] | None = None,
    *,
    atomic: bool = True,
) -> int:
    """Read a flag, and write `change` of its value; the value that was there.

    Args:
        pointer: the flag.
        order: "relaxed", "acquire", "release" or "acq_rel".
        scope: "gpu" or "sys".
        change: what it becomes; None only reads.
        atomic: whether reading and writing are one: false for a store, which does not read.
    """
    world, task = _here()
    flag = _flag(world, pointer)
    old = int(pointer.load())
    if world.accesses is not None:
        world.accesses.flag(pointer, scope, write=change is not None)
    if atomic:
        acquire(flag.heads, task, scope, str(pointer), acquires=order in ("acquire", "acq_rel"))
    if change is None:
        return old
    if not flag.steps:
        flag.before = old
    pointer.store(change(old))
    write = Write(int(pointer.load()), task.name, task.rank, task.place(), scope, task.agent)
    release(flag, task, write, releases=order in ("release", "acq_rel"), atomic=atomic)
    return old


_COMPARE: dict[str, tuple[Callable[[int, int], bool], str]] = {
    # As sequence numbers are compared: a flag of 32 bits may overflow.
    "ge": (lambda a, b: (a - b) & 0xFFFFFFFF < 1 << 31, "at least"),
    "eq": (lambda a, b: a == b, "exactly"),
    "ne": (lambda a, b: a != b, "anything but"),
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
        """The wait in words."""
        where = _owner(self.world, self.pointer)
        return (
            f"for {self.pointer}{where} to be {_COMPARE[self.compare][1]} {self.value}: "
            f"it is {self.pointer.load()}"
        )

    def why(self) -> list[str]:
        """The last write of the flag, and the ranks that never wrote it."""
        return flag_history(self.world, self.pointer)

    def weight(self) -> int:
        """Flags come first: other waits wait for them."""
        return 0

    def subject(self) -> tuple[str, tuple[int, ...]]:
        """The flag."""
        return self.pointer.name, self.pointer.index

    def other(self) -> Party | None:
        """The last write."""
        last = last_write(self.world, self.pointer)
        return None if last is None else Party(None, *last.place, "write", who=last.who)


@dataclass
class _Changed(FlagWait):
    """A task that spins: it reads a flag again and again."""

    version: int = 0

    def ready(self) -> bool:
        """Whether somebody has written the flag."""
        return _flag(self.world, self.pointer).version != self.version

    def describe(self) -> str:
        """The wait in words."""
        where = _owner(self.world, self.pointer)
        return f"in a loop for {self.pointer}{where} to change: it is {self.pointer.load()}"


def _owner(world: World, pointer: Pointer) -> str:
    found = world.memory.describe(pointer.address) if world.memory is not None else ""
    return f" ({found})" if found else ""


def flag_history(world: World, pointer: Pointer) -> list[str]:
    """Lines that say who wrote a flag."""
    flag = _flag(world, pointer)
    if flag.last is None:
        return [f"nobody has ever written it{_elsewhere(world, pointer)}"]
    last = flag.last
    lines = [f"written last by {last.who}, with {last.value}, at {rendered(last.place)}"]
    if flag.lost is not None:
        lost = flag.lost
        lines.append(f"zeroed after that by {lost.who}, at {rendered(lost.place)}: {UNZEROED}")
    absent = [str(r.number) for r in world.ranks if r.number not in flag.writes]
    if absent and world.size > 1:
        lines.append(f"never written by rank{'s' * (len(absent) > 1)} {', '.join(absent)}")
    return lines


def last_write(world: World, pointer: Pointer) -> Write | None:
    """Who wrote a flag last by flag functions."""
    return _flag(world, pointer).last


def zero(world: World, memory: Any, stream: Agent) -> None:
    """A stream zeroes the memory that flags lie in; the writes before are lost."""
    memory[...] = 0
    begin = memory.__array_interface__["data"][0]
    for address, flag in world.flags.items():
        if flag.last is not None and begin <= address < begin + memory.nbytes:
            flag.lost = Write(0, stream.name, stream.rank, stream.place(), "", stream.agent)


def _elsewhere(world: World, pointer: Pointer) -> str:
    """Which other elements of the buffer were written: an index that is off shows so."""
    first = Pointer(pointer.array, tuple(0 for _ in pointer.index), pointer.name).address
    size = pointer.array.itemsize
    written = sorted(
        (address - first) // size
        for address, flag in world.flags.items()
        if flag.last is not None and first <= address < first + pointer.array.nbytes
    )
    if not written or len(pointer.index) != 1:
        return ""
    shown = ", ".join(map(str, written[:8])) + (", …" if len(written) > 8 else "")
    return f"; written are {pointer.name}[{shown}]"


def atomic(
    array: Any,
    index: tuple[int, ...],
    name: str,
    place: tuple[str, int],
    acquires: bool,
    releases: bool,
) -> None:
    """One of TileLang's own atomics on a flag: of device scope, whatever order it has."""
    world, task = _here()
    pointer = Pointer(array, index, name)
    flag = _flag(world, pointer)
    acquire(flag.heads, task, "gpu", str(pointer), acquires=acquires)
    if releases:
        value = pointer.load()
        write = Write(int(value), task.name, task.rank, place, "gpu", task.agent)
        release(flag, task, write, releases=True, atomic=True)


def wait_for(
    pointer: Pointer, value: int, compare: str, order: str, scope: str
) -> Generator[Request, None, int]:
    """Wait until a flag has a value; the value seen."""
    world, task = _here()
    yield FlagWait(world, pointer, compare, int(value))
    seen = int(pointer.load())
    if world.accesses is not None:
        world.accesses.flag(pointer, scope, write=False)
    flag = _flag(world, pointer)
    heads = flag.since(lambda found: _COMPARE[compare][0](found, int(value)))
    if heads is not flag.heads:
        words = _COMPARE[compare][1]
        reason = (
            f"{pointer} has been {words} {value} since an earlier write, so that the wait for it "
            "may end too early; wait for a later value (an epoch, the whole count)"
        )
        doubt = task.doubts.setdefault(reason, {})
        for (rank, written, releases), head in flag.heads.items():
            if releases and order == "acquire" and (rank == task.rank or written == scope == "sys"):
                join(doubt, head.clock)
    acquire(heads, task, scope, str(pointer), acquires=order == "acquire")
    return seen


# -- the functions of kernels


def _load(order: str, scope: str) -> Callable[..., Any]:
    def load(pointer: Pointer) -> Generator[Request | None, None, int]:
        world, task = _here()
        version = _flag(world, pointer).version
        key = (pointer.address, version)
        before, count = getattr(task, "spins", (None, 0))
        count = count + 1 if before == key else 1
        task.spins = (key, count)  # type: ignore[attr-defined]
        if count > _SPINS:
            yield _Changed(world, pointer, "ne", pointer.load(), version)
        else:
            yield None
        return access(pointer, order, scope)

    return load


def _store(order: str, scope: str) -> Callable[..., Any]:
    def store(pointer: Pointer, value: int) -> Generator[None, None, int]:
        yield None
        access(pointer, order, scope, lambda _old: int(value), atomic=False)
        return value

    return store


def _add(order: str, scope: str) -> Callable[..., Any]:
    def add(pointer: Pointer, value: int) -> Generator[None, None, int]:
        yield None
        return access(pointer, order, scope, lambda old: old + int(value))

    return add


def _wait(compare: str, order: str, scope: str) -> Callable[..., Any]:
    def wait(pointer: Pointer, value: int) -> Generator[Request, None, int]:
        return wait_for(pointer, value, compare, order, scope)

    return wait


def _given(scope: str) -> Callable[..., Any]:
    def given(
        pointer: Pointer, value: int, number: int, waits: bool
    ) -> Generator[Request | None, None, int]:
        if waits:
            yield from wait_for(pointer, value, "ge", "acquire", scope)
        return number

    return given


def _register() -> None:
    for scope in ("gpu", "sys"):
        model_extern(f"tlm_given_ge_acquire_{scope}", _given(scope))
        for order in ("relaxed", "acquire"):
            model_extern(f"tlm_load_{order}_{scope}", _load(order, scope))
            for compare in ("ge", "eq"):
                model_extern(f"tlm_wait_{compare}_{order}_{scope}", _wait(compare, order, scope))
        for order in ("relaxed", "release"):
            model_extern(f"tlm_block_store_{order}_{scope}", _store(order, scope))
        for order in ("relaxed", "acquire", "release", "acq_rel"):
            model_extern(f"tlm_block_fetch_add_{order}_{scope}", _add(order, scope))
        # What every thread of the block calls by itself.
        for order in ("relaxed", "release"):
            model_extern(f"tlm_store_{order}_{scope}", _store(order, scope))
        for order in ("relaxed", "acquire", "release", "acq_rel"):
            model_extern(f"tlm_fetch_add_{order}_{scope}", _add(order, scope))


_register()
