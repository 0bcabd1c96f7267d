"""Runs the blocks of a launch: which role goes on next, and when asynchronous work completes.

A schedule is a seeded choice among all that the hardware may do. Programs without races compute
the same under every one; the schedules differ in what they provoke of the others:

- eager: asynchronous work completes at once, roles run until they wait
- lazy: asynchronous work completes only when every role waits, oldest first
- random: any role that can go on, any work that can complete
- adversarial: roles with random priorities that change at random points (probabilistic
  concurrency testing, Burckhardt et al. 2010), asynchronous work as late as can be, newest first
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.errors import DeadlockError, RaceError, SynchronizationError
from tlmatrix.interpreter.reports import Party, Report
from tlmatrix.interpreter.runtime.monitor import Monitor

from . import settings, turns
from .barriers import ThreadBarrier
from .requests import Phase, Spin, Together
from .roles import Block, Operation, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tlmatrix.interpreter.runtime.tracer import Tracer

    from .clocks import Access
    from .requests import Request

__all__ = ["Launch", "launch"]

# Turns of spinning with nothing else happening after which nothing can happen any more.
_TURNS = 3


class Launch:
    """One launch of a kernel."""

    def __init__(
        self,
        kernel: str,
        locations: Sequence[Any],
        arrivals: dict[str, Any],
        names: dict[str, str],
        watch: Monitor | Tracer | None,
        threads: int,
    ) -> None:
        chosen = settings.current()
        self.schedule = chosen.schedule
        self.kernel = kernel
        self.watch = watch
        self.collects = watch is not None and "races" in watch.sanitizers
        self.watched = self.collects or (
            bool(chosen.races) and not (watch is not None and watch.traced)
        )
        self._reports: dict[tuple[Any, ...], Report] = {}
        self.random = random.Random(chosen.seed)  # noqa: S311  # a schedule is no secret
        self.locations = locations
        self.arrivals = arrivals
        self.names = names
        self.grid = ThreadBarrier("T.sync_grid", threads)
        self.pending: list[Operation] = []
        self.started = 0
        self.progress = 0
        self._passed = -1
        self._priorities: dict[int, float] = {}

    def place(self, line: int) -> str:
        """The user's line of a line of the generated source."""
        location = self.locations[line - 1] if 0 < line <= len(self.locations) else None
        return str(location) if location is not None else "an unknown line"

    def raced(self, block: Block, name: str, new: Access, old: Access, *, unfenced: bool) -> None:
        """Report a race: to the sanitizers in force, or as an error.

        Raises:
            RaceError: where `scheduled` asked for errors.
        """
        text = block.describe_race(name, new, old, unfenced=unfenced)
        if not self.collects:
            raise RaceError(text)
        party = Party(block.index, *self._location(old.line), "write" if old.write else "read")
        index = tuple(low for low, _ in new.box)
        self._note("races", block, name, new.line, text, index, party)

    def _note(
        self,
        sanitizer: str,
        block: Block,
        name: str,
        line: int,
        text: str,
        index: tuple[int, ...] = (),
        other: Party | None = None,
    ) -> None:
        """Note a finding: the first of its kind at its lines, and how many there are."""
        file, number = self._location(line)
        key = (sanitizer, file, number, name, other and (other.file, other.line))
        known = self._reports.get(key)
        if known is None:
            self._reports[key] = Report(
                sanitizer, self.kernel, file, number, name, index, block.index, text, other
            )
        else:
            self._reports[key] = replace(known, count=known.count + 1)

    def misused(
        self, block: Block, label: str, line: int, text: str, other: Party | None = None
    ) -> None:
        """Note for the sanitizers that a barrier is used wrongly; the error follows."""
        name, _, index = label.partition("[")
        self._note("barriers", block, name, line, text, (int(index[:-1]),) if index else (), other)

    def outlived(self, block: Block, name: str, line: int, what: str) -> None:
        """Asynchronous work that nothing has waited for when its block ends.

        Raises:
            SynchronizationError: where `scheduled` asked for errors.
        """
        text = f"{what} at {self.place(line)} may go on when its block ends: nothing waits for it"
        if self.watch is not None:
            self._note("barriers", block, name, line, text)
        elif self.watched:
            raise SynchronizationError(text)

    def finish(self) -> None:
        """Hand over the reports."""
        if isinstance(self.watch, Monitor):
            self.watch.add(self._reports.values())

    def _location(self, line: int) -> tuple[str, int]:
        location = self.locations[line - 1] if 0 < line <= len(self.locations) else None
        return (location.file, location.line) if location is not None else ("", 0)

    # -- asynchronous work

    def issued(self, op: Operation, role: Role) -> None:
        """Take asynchronous work that a role issued."""
        self.progress += 1
        if self.schedule == "eager":
            self._complete(op)
            self._resume(role)
        else:
            self.pending.append(op)

    def _completable(self) -> list[Operation]:
        seen: set[Any] = set()
        found = []
        for op in self.pending:
            if op.queue is None or op.queue not in seen:
                found.append(op)
            if op.queue is not None:
                seen.add(op.queue)
        return found

    def _complete_one(self) -> bool:
        ready = self._completable()
        if not ready:
            return False
        if self.schedule == "random":
            op = self.random.choice(ready)
        else:
            op = ready[-1] if self.schedule == "adversarial" else ready[0]
        self.pending.remove(op)
        self._complete(op)
        self.progress += 1
        return True

    # -- roles

    def run(self, blocks: Iterator[Block]) -> None:
        """Run all blocks; a new one starts when those that run can only spin."""
        live: list[Block] = []
        idle = 0
        seen = -1
        exhausted = False
        while True:
            runnable = [r for b in live for r in b.roles if not r.done and self._ready(r)]
            busy = [r for r in runnable if not r.spinning]
            if busy:
                idle = 0
                self._step(busy)
                if any(r.done for r in busy):
                    live = [b for b in live if not all(r.done for r in b.roles)]
                continue
            if self.pending and self._complete_one():
                continue
            if not exhausted and self.grid.come:
                new = next(blocks, None)
                if new is not None:
                    live.append(new)
                    continue
                exhausted = True
            for block in live:
                if not any(self._ready(r) for r in block.roles if not r.done):
                    raise self._stuck(block)
            if not exhausted:
                new = next(blocks, None)
                if new is not None:
                    live.append(new)
                    continue
                exhausted = True
            if not live:
                return
            # Everybody spins: each looks once more, then other ranks get their turn.
            idle = idle + 1 if self.progress == seen else 0
            seen = self.progress
            if idle > _TURNS:
                if not turns.stuck(moving=self.progress != self._passed):
                    raise self._stuck(live[0])
                self._passed = self.progress
                idle = 0
            for role in runnable:
                self._advance(role)
            if any(r.done for r in runnable):
                live = [b for b in live if not all(r.done for r in b.roles)]
                self.progress += 1

    @staticmethod
    def _ready(role: Role) -> bool:
        return role.request is None or role.request.ready()

    def _step(self, roles: list[Role]) -> None:
        if self.schedule in ("eager", "lazy"):
            role = roles[0]
            # A role runs until it waits.
            while not role.done and not role.spinning and self._ready(role):
                self._advance(role)
            return
        if self.schedule == "random":
            ready = self._completable()
            if ready and self.random.random() < len(ready) / (len(ready) + len(roles)):
                self._complete_one()
                return
            self._advance(self.random.choice(roles))
            return
        for role in roles:
            self._priorities.setdefault(id(role), self.random.random())
        role = max(roles, key=lambda r: self._priorities[id(r)])
        if self.random.random() < 0.05:
            self._priorities[id(role)] = -self.random.random()
        self._advance(role)

    def _advance(self, role: Role) -> None:
        """Run a role to its next yield."""
        generator = role.generator
        assert generator is not None
        value = None
        if role.request is not None:
            value = role.request.finish(role)
            role.request = None
        self._resume(role)
        was_spinning = role.spinning
        try:
            role.request = generator.send(value)
        except StopIteration:
            role.done = True
            self.progress += 1
            if all(r.done for r in role.block.roles):
                role.block.end()
            return
        role.spinning = isinstance(role.request, Spin)
        if was_spinning and not role.spinning:
            self.progress += 1

    def _resume(self, role: Role) -> None:
        """Tell the monitor whose accesses follow."""
        if self.watch is not None:
            clock, agent = role.clock, role.agent
            self.watch.work_as(role.block.running, clock, agent, clock[agent])

    def _complete(self, op: Operation) -> None:
        """Complete asynchronous work."""
        if self.watch is not None:
            time = op.clock.get(op.agent, 0)
            self.watch.work_as(op.block.running, op.clock, op.agent, time)
        op.complete()

    # -- reports

    def _stuck(self, block: Block) -> DeadlockError:
        """The error for a deadlock; the sanitizers get the wait that nobody can end."""
        waiting = [r for r in block.roles if r.request is not None and not r.done]
        least = min(map(self._hope, waiting))
        for role in waiting:
            request = role.request
            if request is None or self._hope(role) > least:
                continue
            label = request.bar.label if isinstance(request, Phase | Together) else ""
            text = f"{role.name} {request.describe()}, which nobody can end any more"
            if isinstance(request, Phase):
                text += f": {request.bar.state()}"
            other = next((r for r in waiting if r is not role), None)
            party = None
            if other is not None:
                party = Party(block.index, *self._location(self._line(other)), "wait")
            self.misused(block, label, self._line(role), text, party)
        return DeadlockError(self._deadlock(block))

    def _hope(self, role: Role) -> int:
        """How much there still is of what could end a wait: 0 for nothing in the kernel."""
        request = role.request
        if not isinstance(request, Phase):
            return 2
        known = self.arrivals.get(request.bar.label.split("[")[0], ())
        if not known:
            return 0
        roles = {r.number: r for r in role.block.roles}
        return 1 if all(roles[number].done for number, _ in known) else 2

    @staticmethod
    def _line(role: Role) -> int:
        """The line of the generated source where a role is."""
        frame = getattr(role.generator, "gi_frame", None)
        return frame.f_lineno if frame is not None else 0

    def _deadlock(self, block: Block) -> str:
        lines = [
            f"deadlock in {block.name}: every thread waits and no asynchronous work is in flight"
        ]
        for role in block.roles:
            if role.done:
                lines.append(f"  {role.name} are at their end")
                continue
            where = self.place(self._line(role))
            request: Request | None = role.request
            assert request is not None
            lines.append(f"  {role.name} {request.describe()} at {where}")
            if isinstance(request, Phase):
                lines += [f"    {text}" for text in self._why(block, request)]
        return "\n".join(lines)

    def _why(self, block: Block, request: Phase) -> list[str]:
        """Why a phase cannot complete."""
        bar = request.bar
        lines = [bar.state()]
        lines += [f"arrived: {a.threads} of {a.who} at {self.place(a.line)}" for a in bar.arrivals]
        known = self.arrivals.get(bar.label.split("[")[0], ())
        if not known:
            lines.append("nothing in the kernel arrives at it")
            return lines
        if bar.total == 0:
            lines.append("it was never primed: nobody has arrived at it at all")
        roles = {r.number: r for r in block.roles}
        for number, location in known:
            role = roles[number]
            state = "are at their end" if role.done else "wait themselves"
            lines.append(f"could arrive: {role.name} at {location}, but they {state}")
        return lines


def launch(
    make: Callable[..., Sequence[Callable[[Role], Any]]],
    grid: tuple[int, ...],
    cuts: tuple[int, ...],
    kernel: str,
    locations: Sequence[Any],
    arrivals: dict[str, Any],
    names: dict[str, str],
    watch: Monitor | Tracer | None = None,
) -> None:
    """Run a grid of blocks.

    Args:
        make: makes a block's memory and returns the generator function of each role.
        grid: extents of the grid.
        cuts: where the roles begin, and the number of threads.
        kernel: the kernel's name.
        locations: for each line of the generated source the user's.
        arrivals: per barrier which roles arrive at it, and where.
        names: the user's names of buffers that the generated source calls otherwise.
        watch: what a sanitized program calls.

    Raises:
        DeadlockError: if no role can ever go on.
        RaceError: if two accesses race, where `scheduled` asked for errors and no sanitizer
            collects them.
    """
    threads = math.prod(int(n) for n in grid) * cuts[-1]
    running = Launch(kernel, locations, arrivals, names, watch, threads)
    if watch is not None:
        watch.launch()

    def blocks() -> Iterator[Block]:
        for index in product(*(range(int(n)) for n in grid)):
            block = Block(running, index, cuts)
            if watch is not None:
                block.running = watch.enter(index)
            for role, function in zip(block.roles, make(block, *index), strict=True):
                role.generator = function(role)
            yield block

    try:
        running.run(blocks())
    finally:
        running.finish()
