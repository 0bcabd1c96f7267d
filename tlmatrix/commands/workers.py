"""How many worker processes a run is worth."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tlmatrix.matrix import Case
    from tlmatrix.run.plan import Plan
    from tlmatrix.run.records import RunRecords

__all__ = ["Wanted", "recorded_seconds", "workers_that_pay"]

_START = 3.0
"""Seconds that a run with workers needs before its first case, beyond those of a run without."""
_GUESS = 0.1
"""Seconds of a case that was never timed, where kernels are interpreted."""
_COMPILING = 5.0
"""Seconds to compile the kernels that a group of cases shares."""
_MANY = 1000
"""Cases for which workers pay, however quick each is."""

Seconds = dict[tuple[Path, str], float]
"""Seconds of cases by (absolute path of the spec, id)."""


@dataclass(frozen=True)
class Wanted:
    """What a run is to run of one spec."""

    plan: Plan
    path: Path
    """Of its file, absolute."""
    cases: Iterable[Case]
    drawn: int
    """Cases that will be drawn beside them, at most."""


def workers_that_pay(wanted: Iterable[Wanted], seconds: Seconds, *, compiled: bool) -> str:
    """The workers that run cases sooner than one process would: `0`, a number, or `auto`.

    A worker imports PyTorch and TileLang as one process does, but it starts later, collects the
    specs once more, and shares the memory of the machine with the others: in all, about three
    seconds before its first case. So the work of all cases is estimated: what each took in the last
    run (`seconds`), if that ran it; else the mean of the last run's cases of its spec; else a tenth
    of a second, and five seconds for each group of cases that share kernels where those are
    `compiled`. Workers pay if sharing this work out saves more than the three seconds. There are
    never more of them than groups of cases, for a group stays on one worker.
    """
    groups: set[str] = set()
    work, listed = 0.0, 0
    for each in wanted:
        known = [spent for (path, _), spent in seconds.items() if path == each.path]
        mean = sum(known) / len(known) if known else _GUESS
        own: set[str] = set()
        for case in islice(each.cases, _MANY):
            listed += 1
            own.add(each.plan.group(case))
            work += seconds.get((each.path, case.id), mean)
        groups |= own
        work += mean * each.drawn
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
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def recorded_seconds(records: RunRecords | None, backend: str) -> Seconds:
    """What the cases of an earlier run took, if it was on the same backend."""
    if records is None or records.header.backend != backend:
        return {}
    folder = Path(records.header.folder)
    return {
        ((folder / result.path).resolve(), result.case): result.seconds
        for result in records.results
        if result.seconds
    }
