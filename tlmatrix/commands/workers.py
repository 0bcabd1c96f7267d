"""Chooses the number of worker processes of a run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tlmatrix.matrix import Case
    from tlmatrix.run.plan import Plan
    from tlmatrix.run.records import RunRecords

_START = 2.0
"""Seconds that a run with workers starts later than one without."""
_GUESS = 0.1
"""Estimated seconds of a case that never ran, on the interpreter."""
_COMPILING = 5.0
"""Estimated seconds to compile the kernels that a group of cases shares."""
_MANY = 1000
"""Number of cases from which workers are always faster."""

Seconds = dict[tuple[Path, str], float]
"""Durations of cases by (absolute path of the spec, id)."""


@dataclass(frozen=True)
class SelectedCases:
    """The cases of one spec that a run selects.

    Attributes:
        plan: the plan of the spec.
        path: the absolute path of the spec.
        cases: the cases.
        fuzz_cases: the maximum number of fuzz cases that the run adds.
    """

    plan: Plan
    path: Path
    cases: Iterable[Case]
    fuzz_cases: int


def worker_count(selected: Iterable[SelectedCases], seconds: Seconds, *, compiled: bool) -> str:
    """The number of workers that finish first, for `-n`: `0` for none, a number, or `auto`.

    Workers begin up to two seconds later than a single process, because they start, collect the
    specs again and share memory bandwidth. They are used if sharing the work saves more than that.
    The work of a case is its duration in the last run (`seconds`), else the mean of its spec's
    cases there, else a tenth of a second; if kernels are `compiled`, five seconds for each group
    of cases that share kernels are added. There are at most as many workers as groups, because a
    group stays on one worker.
    """
    groups: set[str] = set()
    work, listed = 0.0, 0
    for each in selected:
        known = [spent for (path, _), spent in seconds.items() if path == each.path]
        mean = sum(known) / len(known) if known else _GUESS
        own: set[str] = set()
        for case in islice(each.cases, _MANY):
            listed += 1
            own.add(each.plan.group(case))
            work += seconds.get((each.path, case.id), mean)
        groups |= own
        work += mean * each.fuzz_cases
        if compiled and not known:
            work += _COMPILING * len(own)
        if listed >= _MANY:
            return "auto"
    cores = _cores()
    most = min(cores, len(groups))
    if most < 2 or work * (1 - 1 / most) <= _START:
        return "0"
    return "auto" if most == cores else str(most)


def _cores() -> int:
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
