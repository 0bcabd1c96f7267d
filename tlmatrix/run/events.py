"""Events of a run, which reports read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.interpreter.coverage import Coverage
    from tlmatrix.run.result import CaseResult, Status


@dataclass(frozen=True)
class RunHeader:
    """The settings of a run, with which it can be repeated; first record of a results file."""

    tier: str
    backend: str
    seed: int
    paths: tuple[str, ...]
    command: str
    started: str
    """UTC, ISO 8601."""
    folder: str = ""
    """The working directory; relative paths start from it."""
    versions: Mapping[str, str] = field(default_factory=dict)
    architectures: tuple[str, ...] = ()
    """What the backend `compile` compiles for; empty for the architectures of each spec."""
    select: str = ""
    """The expression of `-k`."""
    fuzz: bool = True
    """Whether the fuzz cases of the tier run."""
    shard: str = ""
    """The shard of the plan, as `3/16`; empty for all of it."""
    plan: str = ""
    """The name of the plan that is sharded; equal in all of its shards."""
    times: str = ""
    """The results file with the times by which the plan is sharded."""
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The parts of the sources of each spec by its path (`tlmatrix.run.sources`)."""


@dataclass(frozen=True)
class Summary:
    """Last record of a results file, if the run finished."""

    counts: Mapping[str, int]
    """Cases by status."""
    seconds: float
    exit_status: int


@dataclass(frozen=True)
class RunStarted:
    """The cases are collected and the first is about to run; `cases` counts them by spec path."""

    cases: Mapping[str, int]
    results: str | None
    """The results file, if one is written."""
    earlier: Mapping[str, int] = field(default_factory=dict)
    """By spec path, the number of cases that passed in the resumed run and do not run again."""
    place: str = ""
    """How workers share the GPUs of the machine, if it has several."""
    header: RunHeader | None = None
    """The settings of the run."""


@dataclass(frozen=True)
class CaseFinished:
    """A case has its result."""

    result: CaseResult


@dataclass(frozen=True)
class RunFinished:
    """The run ended; the last event."""

    counts: Mapping[Status, int]
    seconds: float
    interrupted: bool
    coverage: Coverage | None = None
    """Kernel coverage of all recorded cases, if measured."""
    detail: str = "summary"
    """Detail of the coverage report (`tlmatrix.config.COVERAGE`)."""
    stopped: str = ""
    """Why cases did not run; empty if all did."""
    unrecorded: str = ""
    """Why the results file lacks results, which only this process has; empty if it has all."""


Event = RunStarted | CaseFinished | RunFinished
