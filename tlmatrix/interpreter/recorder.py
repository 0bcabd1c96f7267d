"""Where covered programs count while they run, and what comes of it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from .coverage import Coverage, Feature, Guard, Loop, LoopSite

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .program import Counted, Program

Counts = tuple[list[int], list[dict[int, int]]]
"""What a program counts: its slots, and per loop how often it had how many trips."""


class Recorder:
    """The counts of one `interpret(coverage=True)`: what the covered programs write to."""

    def __init__(self) -> None:
        # By identity of a program: the program is kept, so that no other takes its place.
        self._counts: dict[int, tuple[Program, Counts]] = {}
        self._before = Coverage()

    def of(self, program: Program) -> Counts:
        """Where a program counts: its slots, and per loop its trips."""
        found = self._counts.get(id(program))
        if found is None:
            plan = _plan(program)
            trips: list[dict[int, int]] = [defaultdict(int) for _ in plan.loops]
            found = self._counts[id(program)] = (program, ([0] * plan.slots, trips))
        return found[1]

    def add(self, coverage: Coverage) -> None:
        """Count what a context inside has counted for itself."""
        self._before += coverage

    def coverage(self) -> Coverage:
        """What was exercised so far."""
        return Coverage.merged(
            [self._before, *(_coverage(p, *counts) for p, counts in self._counts.values())]
        )

    def features(self) -> frozenset[Feature]:
        """The features of `coverage()`, for a loop that asks after every call."""
        found = set(self._before.features())
        for program, (counts, trips) in self._counts.values():
            plan = _plan(program)
            for slot, features in _features(plan):
                if counts[slot]:
                    found.update(features)
            for site, numbers in zip(plan.loops, trips, strict=True):
                what = f"loop {site.variable}"
                found.update(
                    Feature(site.file, site.line, what, str(n) if n < 2 else "more")
                    for n in numbers
                )
        return frozenset(found)


def _plan(program: Program) -> Counted:
    assert program.counted is not None
    return program.counted


def _features(plan: Counted) -> Iterable[tuple[int, tuple[Feature, ...]]]:
    """What each slot stands for."""
    for place, slots in plan.lines:
        for slot in slots:
            yield slot, (Feature(*place, "line", "run"),)
    for site, slot, _ in plan.guards:
        for offset, outcome in enumerate(("true", "false", "partly")):
            yield slot + offset, (Feature(site.file, site.line, site.name, outcome),)


def _coverage(program: Program, counts: list[int], trips: list[dict[int, int]]) -> Coverage:
    """What one program counted."""
    plan = _plan(program)
    lines = {place: sum(counts[slot] for slot in slots) for place, slots in plan.lines}
    guards = {
        site: Guard(counts[slot], counts[slot + 1], counts[slot + 2], lanes)
        for site, slot, lanes in plan.guards
    }
    loops: dict[LoopSite, Loop] = {}
    for site, constant, numbers in zip(plan.loops, plan.constant, trips, strict=True):
        loop = Loop(
            numbers.get(0, 0),
            numbers.get(1, 0),
            sum(count for n, count in numbers.items() if n > 1),
            min(numbers, default=None),
            max(numbers, default=None),
            constant,
        )
        # A macro that is used twice has its loop twice.
        loops[site] = loops[site] + loop if site in loops else loop
    return Coverage(lines, guards, loops)
