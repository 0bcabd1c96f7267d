"""Which cases run: those that a command selects, or a shard of them; and how many workers.

The groups of cases that share kernels are assigned to shards one after another, the slowest first,
each to the shard with the least work so far. Every machine computes the same assignment from the
same specs, options and recorded times; `tlmatrix merge` puts the results together.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.engine.settings import ShardError
from tlmatrix.options.table import BACKEND, ONLY, SEED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tlmatrix.engine.settings import RunSettings, Shard
    from tlmatrix.matrix import Case
    from tlmatrix.run.plan import Plan
    from tlmatrix.run.records import RunRecords

_START = 2.0
"""Seconds that a run with workers starts later than one without."""
_GUESS = 0.1
"""Estimated seconds of a case that never ran, on the interpreter."""
_COMPILING = 5.0
"""Estimated seconds to compile the kernels that a group of cases shares."""

Seconds = dict[tuple[Path, str], float]
"""Durations of cases by (absolute path of the spec, id)."""


@dataclass(frozen=True)
class SelectedCases:
    """The cases of one spec that a run selects.

    Attributes:
        plan: the plan of the spec.
        path: the absolute path of the spec.
        shown: the path of the spec as results have it.
        cases: the cases.
    """

    plan: Plan
    path: Path
    shown: str
    cases: Sequence[Case]

    def without(self, done: frozenset[tuple[str, str]]) -> SelectedCases:
        """Without the cases that are `done`: (absolute path of the spec, id)."""
        path = str(self.path)
        return replace(self, cases=[case for case in self.cases if (path, case.id) not in done])


def cases_of(
    plan: Plan, ids: Sequence[str], settings: RunSettings, *, known_only: bool = False
) -> Iterator[Case]:
    """The cases with these ids, also if they are not in the tier; or all, the fuzz cases last.

    Raises:
        CaseNotFoundError: the spec has no case with an id; with `known_only` it is left out.
        SpecError: there are too many cases.
    """
    if not ids:
        plan.refuse_too_many()
    from tlmatrix.matrix import CaseNotFoundError, find_case

    only = settings.options[ONLY]
    listed = {}
    for case in plan.cases():
        if ids and case.id in ids:
            listed[case.id] = case
        elif not ids and (only is None or case.origin == "regression"):
            listed[case.id] = case
            yield case
    for case_id in ids:
        try:
            yield listed.get(case_id) or find_case(plan.spec, case_id)
        except CaseNotFoundError:
            if not known_only:
                raise
    if not ids and settings.runs_fuzz_cases:
        from tlmatrix.backend import backend_class
        from tlmatrix.fuzz.search import tier_fuzz_cases

        options = settings.options
        compiled = backend_class(options[BACKEND]).compiles
        yield from tier_fuzz_cases(
            plan.spec, plan.tier, listed, seed=options[SEED], compiled=compiled
        )


@dataclass(frozen=True)
class Unit:
    """A case: its name in the run (`path::id`), its spec's path, and its group of kernels."""

    node: str
    path: str
    group: str


@dataclass(frozen=True)
class ShardPlan:
    """A plan that is sharded.

    Attributes:
        shard: the shard that runs.
        name: the name of the plan; equal for all of its shards.
        nodes: the cases of this shard.
        total: the number of cases of all shards.
        groups: the number of groups of cases that share kernels.
    """

    shard: Shard
    name: str
    nodes: frozenset[str] = field(repr=False)
    total: int
    groups: int

    def __str__(self) -> str:
        words = f"shard {self.shard} of the plan {self.name}"
        if self.nodes:
            return words
        return f"{words} is empty: {self.groups} groups of cases that share kernels"


def shard_plan(units: Sequence[Unit], seconds: Mapping[str, float], shard: Shard) -> ShardPlan:
    """Assign cases to shards by their recorded `seconds` (by node).

    Raises:
        ShardError: there are more shards than cases.
    """
    if shard.count > max(1, len(units)):
        raise ShardError(
            f"{shard}: more shards than cases; of {len(units)} cases there are at most "
            f"{len(units)} shards"
        )
    shards = assign(units, seconds, shard.count)
    nodes = frozenset(node for node, number in shards.items() if number == shard.number)
    groups = {unit.group for unit in units}
    return ShardPlan(shard, plan_name(shards), nodes, len(units), len(groups))


def shard_of(
    selected: Sequence[SelectedCases], seconds: Mapping[str, float], shard: Shard, root: Path
) -> tuple[list[SelectedCases], ShardPlan]:
    """The selected cases of a shard, and the plan; names of cases are relative to `root`.

    Raises:
        ShardError: there are more shards than cases.
    """
    paths = {each.path: Path(os.path.relpath(each.path, root)).as_posix() for each in selected}
    units = [
        Unit(f"{paths[each.path]}::{case.id}", paths[each.path], each.plan.group(case))
        for each in selected
        for case in each.cases
    ]
    plan = shard_plan(units, seconds, shard)
    mine = [
        replace(
            each,
            cases=[case for case in each.cases if f"{paths[each.path]}::{case.id}" in plan.nodes],
        )
        for each in selected
    ]
    return mine, plan


def assign(units: Sequence[Unit], seconds: Mapping[str, float], count: int) -> dict[str, int]:
    """The shard, from 1, of each case by its node.

    A case takes its recorded `seconds` (by node), else the mean of its spec, else that of all.
    """
    known: dict[str, list[float]] = defaultdict(list)
    for unit in units:
        if unit.node in seconds:
            known[unit.path].append(seconds[unit.node])
    means = {path: sum(times) / len(times) for path, times in known.items()}
    mean = sum(means.values()) / len(means) if means else _GUESS
    work: Counter[str] = Counter()
    for unit in units:
        # Whole microseconds: sums of floats depend on their order.
        own = seconds.get(unit.node, means.get(unit.path, mean))
        work[unit.group] += max(1, round(1e6 * own))
    loads = [0] * count
    shards: dict[str, int] = {}
    for group in sorted(work, key=lambda group: (-work[group], group)):
        lightest = min(range(count), key=loads.__getitem__)
        loads[lightest] += work[group]
        shards[group] = lightest + 1
    return {unit.node: shards[unit.group] for unit in units}


def plan_name(shards: Mapping[str, int]) -> str:
    """A short name of an assignment; equal for shards that together are one plan."""
    lines: Iterable[str] = (f"{node}\t{shard}\n" for node, shard in sorted(shards.items()))
    return sha256("".join(lines).encode()).hexdigest()[:16]


def seconds_for_shards(file: str, root: Path) -> Mapping[str, float]:
    """The durations of cases in a results file, by node relative to `root`; none without a file."""
    if not file:
        return {}
    from tlmatrix.run.records import RecordsError, read_records

    try:
        records = read_records(Path(file))
    except (OSError, RecordsError):
        return {}
    recorded = recorded_seconds([records], records.header.backend)
    return {
        f"{path.relative_to(root).as_posix()}::{case}": spent
        for (path, case), spent in recorded.items()
        if path.is_relative_to(root)
    }


def worker_count(selected: Iterable[SelectedCases], seconds: Seconds, *, compiled: bool) -> int:
    """The number of workers that finish first.

    Workers import PyTorch and TileLang, share memory bandwidth, and each traces the kernels of its
    cases, so there are several if sharing the work saves more than two seconds. The work of a case
    is its duration in the last run (`seconds`), else the mean of its spec's cases there, else a
    tenth of a second; if kernels are `compiled`, five seconds for each group of cases that share
    kernels are added. There are at most as many workers as groups, because a group stays on one
    worker.
    """
    cores = processors()
    groups: set[str] = set()
    work = 0.0
    for each in selected:
        known = [spent for (path, _), spent in seconds.items() if path == each.path]
        mean = sum(known) / len(known) if known else _GUESS
        own: set[str] = set()
        for case in each.cases:
            own.add(each.plan.group(case))
            work += seconds.get((each.path, case.id), mean)
            if len(groups | own) >= cores and work * (1 - 1 / cores) > _START:
                return cores
        groups |= own
        if compiled and not known:
            work += _COMPILING * len(own)
    most = min(cores, len(groups))
    return most if most >= 2 and work * (1 - 1 / most) > _START else 1


def processors() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def recorded_seconds(runs: Iterable[RunRecords], backend: str) -> Seconds:
    """The durations of the cases of earlier runs on the same backend, the newest of each."""
    found: Seconds = {}
    resolved = cache(lambda folder, path: (Path(folder) / path).resolve())
    for records in runs:
        if records.header.backend == backend:
            for result in records.results:
                if result.seconds:
                    path = resolved(records.header.folder, result.path)
                    found.setdefault((path, result.case), result.seconds)
    return found


def mean_seconds(seconds: Seconds) -> dict[Path, float]:
    """The mean duration of the cases of each spec, by its absolute path."""
    found: dict[Path, list[float]] = {}
    for (path, _), spent in seconds.items():
        found.setdefault(path, []).append(spent)
    return {path: sum(spent) / len(spent) for path, spent in found.items()}
