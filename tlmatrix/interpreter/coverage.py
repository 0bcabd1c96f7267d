"""Which lines, guards and trip counts of kernels were exercised, by lines of the user's source.

A kernel traced for other shapes or options is another program of the same lines: what programs
counted is merged by file and line, so a line counts as run if any variant ran it, and lines that
an option of the factory left out belong to the variants that have them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, NamedTuple


class GuardSite(NamedTuple):
    """A condition of a kernel.

    Attributes:
        file: the Python file.
        line: the line of its statement.
        kind: `if` (a statement), `select` (`T.if_then_else` in a value), or `edge` (the bounds
            that TileLang puts around a tile or block of global memory).
        number: which condition of that kind it is in its statement, from 1.
        text: of an edge the buffers; of a comparison in a condition of several, that
            comparison, with # for numbers; else nothing.
    """

    file: str
    line: int
    kind: str
    number: int
    text: str

    @property
    def name(self) -> str:
        """Which guard of its line: `if 1`, `select 2 key + i < length`, `edge 1 q`."""
        return f"{self.kind} {self.number} {self.text}".rstrip()


class LoopSite(NamedTuple):
    """A loop of a kernel: its line and variable (`while` has none)."""

    file: str
    line: int
    variable: str


class Feature(NamedTuple):
    """Something that a run exercised: a line run, an outcome of a guard, a trip count.

    Attributes:
        file: the Python file.
        line: its line.
        what: `line`, or which guard or loop.
        outcome: `run`; `true`, `false`, `partly`; or `0`, `1`, `more` trips.
    """

    file: str
    line: int
    what: str
    outcome: str


@dataclass(frozen=True)
class Guard:
    """How often a guard held.

    Attributes:
        true: times that it held, in every iteration; of an edge, that the whole tile was inside.
        false: times that it held in no iteration; of an edge, that nothing was inside.
        partly: times that it held in some iterations only.
        lanes: whether it is a mask, and so can hold partly.
    """

    true: int = 0
    false: int = 0
    partly: int = 0
    lanes: bool = False

    @property
    def never(self) -> tuple[str, ...]:
        """What was not seen although the guard was reached: never true, false, or partly."""
        if not self.true + self.false + self.partly:
            return ()
        missing = []
        if not self.true + self.partly:
            missing.append("true")
        if not self.false + self.partly:
            missing.append("false")
        elif self.lanes and self.true and not self.partly:
            missing.append("partly")
        return tuple(missing)

    @property
    def letters(self) -> str:
        """`TFP`, with a dash for an outcome not seen."""
        seen = [("T", self.true), ("F", self.false)] + [("P", self.partly)] * self.lanes
        return "".join(letter if count else "-" for letter, count in seen)

    def __add__(self, other: Guard) -> Guard:
        return Guard(
            self.true + other.true,
            self.false + other.false,
            self.partly + other.partly,
            self.lanes or other.lanes,
        )


@dataclass(frozen=True)
class Loop:
    """How often a loop was entered, by the number of its trips.

    Attributes:
        zero: times without a trip.
        one: times with one.
        more: times with more.
        least: the fewest trips; None if the loop was never come to.
        most: the most.
        constant: whether the number of trips is fixed when the kernel is traced.
    """

    zero: int = 0
    one: int = 0
    more: int = 0
    least: int | None = None
    most: int | None = None
    constant: bool = False

    @property
    def never(self) -> tuple[str, ...]:
        """Trip counts that were not seen, although the loop was come to: `0`, `1`, `more`."""
        if self.least is None or self.constant:
            return ()
        counts = (("0", self.zero), ("1", self.one), ("more", self.more))
        return tuple(name for name, count in counts if not count)

    @property
    def range(self) -> str:
        """`0-3`: the fewest and the most trips."""
        if self.least is None:
            return ""
        return str(self.least) if self.least == self.most else f"{self.least}-{self.most}"

    def __add__(self, other: Loop) -> Loop:
        least = [n for n in (self.least, other.least) if n is not None]
        most = [n for n in (self.most, other.most) if n is not None]
        return Loop(
            self.zero + other.zero,
            self.one + other.one,
            self.more + other.more,
            min(least, default=None),
            max(most, default=None),
            self.constant and other.constant,
        )


class Gap(NamedTuple):
    """Something that can happen in a kernel and was not seen.

    Attributes:
        file: the Python file.
        first: the line.
        last: the last line, of lines that never ran; else the same.
        what: empty for lines; which guard or loop.
        never: `run`, or outcomes and trips that were not seen.
    """

    file: str
    first: int
    last: int
    what: str
    never: tuple[str, ...]


@dataclass(frozen=True)
class Coverage:
    """What was exercised of the kernels that ran; `a + b` is what either exercised.

    Attributes:
        lines: how often each line that can run was run, by (file, line); in one block of a
            grid, once for each time that control came by, whatever the number of iterations.
        guards: by `GuardSite`.
        loops: by `LoopSite`.
    """

    lines: Mapping[tuple[str, int], int] = field(default_factory=dict)
    guards: Mapping[GuardSite, Guard] = field(default_factory=dict)
    loops: Mapping[LoopSite, Loop] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.lines)

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage.merged([self, other])

    @classmethod
    def merged(cls, parts: Iterable[Coverage]) -> Coverage:
        """What any of the parts exercised."""
        lines: dict[tuple[str, int], int] = {}
        guards: dict[GuardSite, Guard] = {}
        loops: dict[LoopSite, Loop] = {}
        for part in parts:
            for place, count in part.lines.items():
                lines[place] = lines.get(place, 0) + count
            for site, guard in part.guards.items():
                guards[site] = guards[site] + guard if site in guards else guard
            for where, loop in part.loops.items():
                loops[where] = loops[where] + loop if where in loops else loop
        return cls(lines, guards, loops)

    @property
    def files(self) -> tuple[str, ...]:
        """The files that have lines, sorted."""
        return tuple(sorted({file for file, _ in self.lines}))

    def of(self, file: str) -> Coverage:
        """What there is of one file."""
        return Coverage(
            {k: n for k, n in self.lines.items() if k[0] == file},
            {k: g for k, g in self.guards.items() if k.file == file},
            {k: n for k, n in self.loops.items() if k.file == file},
        )

    def renamed(self, name: Callable[[str], str]) -> Coverage:
        """The same with other names of files."""
        names = {file: name(file) for file in self.files}
        return Coverage(
            {(names[file], line): n for (file, line), n in self.lines.items()},
            {GuardSite(names[k[0]], *k[1:]): g for k, g in self.guards.items()},
            {LoopSite(names[k[0]], *k[1:]): n for k, n in self.loops.items()},
        )

    def gaps(self) -> tuple[Gap, ...]:
        """What was not seen, by file and line.

        A guard that was not come to is the gap of its line; one of several comparisons has none
        of its own where they have.
        """
        found: list[Gap] = []
        for file in self.files:
            places = sorted(line for name, line in self.lines if name == file)
            for first, last in _runs([(n, not self.lines[(file, n)]) for n in places]):
                found.append(Gap(file, first, last, "", ("run",)))
        numbered = {site._replace(text="") for site in self.guards if site.number > 1}
        located = {
            site._replace(text="")
            for site, guard in self.guards.items()
            if site.text and site.kind != "edge" and guard.never
        }
        for site, guard in self.guards.items():
            if not guard.never or (site in located and not site.text):
                continue
            alone = site._replace(text="", number=2) not in numbered
            kind = site.kind if alone else f"{site.kind} {site.number}"
            what = f"{kind} {site.text}".rstrip()
            found.append(Gap(site.file, site.line, site.line, what, guard.never))
        for where, loop in self.loops.items():
            if loop.never:
                what = f"loop {where.variable}"
                found.append(Gap(where.file, where.line, where.line, what, loop.never))
        return tuple(sorted(found))

    def features(self) -> frozenset[Feature]:
        """Everything that was exercised, as a set: what one run adds to others is a difference."""
        found = {Feature(*place, "line", "run") for place, n in self.lines.items() if n}
        for site, guard in self.guards.items():
            found.update(
                Feature(site.file, site.line, site.name, outcome)
                for outcome in _OUTCOMES
                if getattr(guard, outcome)
            )
        for place, loop in self.loops.items():
            counts = (("0", loop.zero), ("1", loop.one), ("more", loop.more))
            found.update(
                Feature(place.file, place.line, f"loop {place.variable}", outcome)
                for outcome, count in counts
                if count
            )
        return frozenset(found)

    def to_json(self) -> dict[str, Any]:
        """Plain data, by file; short, for it is written for every case of a run."""
        found: dict[str, Any] = {}
        for file in self.files:
            mine = self.of(file)
            by_count: dict[int, list[int]] = defaultdict(list)
            for (_, line), count in mine.lines.items():
                by_count[count].append(line)
            found[file] = {
                "hits": {str(count): _ranges(by_count[count]) for count in sorted(by_count)}
            }
            guards = {
                f"{site.line} {site.name}": [
                    *(guard.true, guard.false),
                    *([guard.partly] if guard.lanes else []),
                ]
                for site, guard in sorted(mine.guards.items())
            }
            loops = {
                f"{site.line} {site.variable}": [
                    *(loop.zero, loop.one, loop.more),
                    *(loop.least, loop.most, int(loop.constant)),
                ]
                for site, loop in sorted(mine.loops.items())
            }
            found[file] |= {"guards": guards} if guards else {}
            found[file] |= {"loops": loops} if loops else {}
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Coverage:
        """What `to_json` wrote."""
        lines: dict[tuple[str, int], int] = {}
        guards: dict[GuardSite, Guard] = {}
        loops: dict[LoopSite, Loop] = {}
        for file, mine in data.items():
            for count, ranges in mine["hits"].items():
                lines.update({(file, line): int(count) for line in _lines(ranges)})
            for name, counts in mine.get("guards", {}).items():
                line, kind, number, *text = name.split(" ", 3)
                site = GuardSite(file, int(line), kind, int(number), *(text or [""]))
                true, false, *partly = counts
                guards[site] = Guard(true, false, sum(partly), bool(partly))
            for name, numbers in mine.get("loops", {}).items():
                line, _, variable = name.partition(" ")
                zero, one, more, least, most, constant = numbers
                site_of = LoopSite(file, int(line), variable)
                loops[site_of] = Loop(zero, one, more, least, most, bool(constant))
        return cls(lines, guards, loops)


# Counting -------------------------------------------------------------------------------------


Counts = tuple[list[int], list[dict[int, int]]]
"""What a program counts: its slots, and per loop how often it had how many trips."""

_OUTCOMES = ("true", "false", "partly")


@dataclass(frozen=True)
class Counted:
    """What the slots of a covered program stand for.

    Attributes:
        slots: how many there are; slot 0 is of nothing.
        lines: each line that can run, and the slots whose sum is how often it did.
        guards: each guard with the first of its three slots, and whether it is a mask.
        loops: the loops, by number.
        constant: of each loop whether its trips are fixed in this program.
    """

    slots: int
    lines: tuple[tuple[tuple[str, int], tuple[int, ...]], ...]
    guards: tuple[tuple[GuardSite, int, bool], ...]
    loops: tuple[LoopSite, ...]
    constant: tuple[bool, ...]

    def features(self, counts: Counts) -> Iterable[Feature]:
        """What was exercised, by what the program counted."""
        slots, trips = counts
        for place, own in self.lines:
            if any(slots[slot] for slot in own):
                yield Feature(*place, "line", "run")
        for site, slot, _ in self.guards:
            for offset, outcome in enumerate(_OUTCOMES):
                if slots[slot + offset]:
                    yield Feature(site.file, site.line, site.name, outcome)
        for loop, numbers in zip(self.loops, trips, strict=True):
            for n in numbers:
                what = f"loop {loop.variable}"
                yield Feature(loop.file, loop.line, what, str(n) if n < 2 else "more")

    def coverage(self, counts: Counts) -> Coverage:
        """What the program counted."""
        slots, trips = counts
        lines = {place: sum(slots[slot] for slot in own) for place, own in self.lines}
        guards = {
            site: Guard(slots[slot], slots[slot + 1], slots[slot + 2], lanes)
            for site, slot, lanes in self.guards
        }
        loops: dict[LoopSite, Loop] = {}
        for site, constant, numbers in zip(self.loops, self.constant, trips, strict=True):
            more = sum(count for n, count in numbers.items() if n > 1)
            ends = min(numbers, default=None), max(numbers, default=None)
            loop = Loop(numbers.get(0, 0), numbers.get(1, 0), more, *ends, constant)
            # A macro that is used twice has its loop twice.
            loops[site] = loops[site] + loop if site in loops else loop
        return Coverage(lines, guards, loops)


class Recorder:
    """The counts of one `interpret(coverage=True)`: what the covered programs write to."""

    def __init__(self) -> None:
        # By identity of a plan, which is kept, so that no other takes its place.
        self._counts: dict[int, tuple[Counted, Counts]] = {}
        self._before = Coverage()

    def of(self, plan: Counted) -> Counts:
        """Where a program counts: its slots, and per loop its trips."""
        found = self._counts.get(id(plan))
        if found is None:
            trips: list[dict[int, int]] = [defaultdict(int) for _ in plan.loops]
            found = self._counts[id(plan)] = (plan, ([0] * plan.slots, trips))
        return found[1]

    def add(self, coverage: Coverage) -> None:
        """Count what a context inside has counted for itself."""
        self._before += coverage

    def coverage(self) -> Coverage:
        """What was exercised so far."""
        counted = [plan.coverage(counts) for plan, counts in self._counts.values()]
        return Coverage.merged([self._before, *counted])

    def features(self) -> frozenset[Feature]:
        """The features of `coverage()`, for a loop that asks after every call."""
        counted = (plan.features(counts) for plan, counts in self._counts.values())
        return self._before.features().union(*counted)


def _ranges(lines: Iterable[int]) -> str:
    """`3-5,9`."""
    ordered = sorted(lines)
    starts = [ordered[0], *(b for a, b in pairwise(ordered) if b != a + 1)]
    ends = [*(a for a, b in pairwise(ordered) if b != a + 1), ordered[-1]]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def _lines(ranges: str) -> Iterable[int]:
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _runs(marked: Iterable[tuple[int, bool]]) -> Iterable[tuple[int, int]]:
    """First and last of each run of neighbours that are marked."""
    for holds, group in groupby(marked, key=lambda item: item[1]):
        numbers = [number for number, _ in group]
        if holds:
            yield numbers[0], numbers[-1]
