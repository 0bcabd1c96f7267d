"""Runs cases, emits events, and writes results files."""

from tlmatrix.run.events import (
    CaseFinished,
    Event,
    RunFinished,
    RunHeader,
    RunStarted,
    Summary,
)
from tlmatrix.run.records import RecordsError, RecordsWriter, RunRecords, read_records
from tlmatrix.run.result import FAILURES, CaseResult, SkipReason, Status

__all__ = [
    "FAILURES",
    "CaseFinished",
    "CaseResult",
    "Event",
    "RecordsError",
    "RecordsWriter",
    "RunFinished",
    "RunHeader",
    "RunRecords",
    "RunStarted",
    "SkipReason",
    "Status",
    "Summary",
    "read_records",
]
