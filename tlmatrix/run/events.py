"""What happens during a run, in order; reports, and files, only ever read these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.interpreter.coverage import Coverage
    from tlmatrix.run.result import CaseResult, Status

__all__ = [
    "CaseFinished",
    "Event",
    "Preparing",
    "RunFinished",
    "RunHeader",
    "RunStarted",
    "Summary",
]


@dataclass(frozen=True)
class RunHeader:
    """How a run was made: enough to make it again. First record of a results file."""

    tier: str
    backend: str
    seed: int
    paths: tuple[str, ...]
    command: str
    started: str
    """UTC, ISO 8601."""
    folder: str = ""
    """The working directory, which relative paths start from."""
    versions: Mapping[str, str] = field(default_factory=dict)
    architectures: tuple[str, ...] = ()
    """What the backend `compile` was asked to assemble for; empty for what each spec names."""
    select: str = ""
    """The expression of `-k`."""
    fuzz: bool = True
    """Whether the cases that the tier draws were wanted."""


@dataclass(frozen=True)
class Summary:
    """Last record of a results file whose run came to its end."""

    counts: Mapping[str, int]
    """Cases by status."""
    seconds: float
    exit_status: int


@dataclass(frozen=True)
class RunStarted:
    """Cases are known and the first is about to run; `cases` counts them by spec path."""

    cases: Mapping[str, int]
    results: str | None
    """The results file, where one is written."""
    earlier: Mapping[str, int] = field(default_factory=dict)
    """Cases by spec path that passed in the run that is resumed, and are not run again."""
    place: str = ""
    """How workers share the GPUs of the machine, where there are several."""


@dataclass(frozen=True)
class Preparing:
    """What the process that reports does before the first case has a result, in words."""

    words: str


@dataclass(frozen=True)
class CaseFinished:
    """A case has its result."""

    result: CaseResult


@dataclass(frozen=True)
class RunFinished:
    """Nothing more will come."""

    counts: Mapping[Status, int]
    seconds: float
    interrupted: bool
    coverage: Coverage | None = None
    """What all cases on record exercised of their kernels, where that was counted."""
    detail: str = "summary"
    """How much of it the user wants to see (`tlmatrix.config.COVERAGE`)."""


Event = RunStarted | Preparing | CaseFinished | RunFinished
