"""Results on disk: one JSON record a line, appended as things happen, never rewritten.

Every record goes out in one `write` to a file opened for appending, so workers in several
processes share a file without a lock, and whatever ends a process loses at most the case it was
running: `start` without `case` tells which one that was. A torn last line is skipped by the
reader.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.check.finding import Finding
from tlmatrix.run.coverage import CoverageReader, CoverageWriter
from tlmatrix.run.events import RunHeader, Summary
from tlmatrix.run.result import CaseResult, Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tlmatrix.interpreter.coverage import Coverage

__all__ = ["RecordsError", "RecordsWriter", "RunRecords", "read_records"]

_FORMAT = 1


class RecordsError(ValueError):
    """A file that holds no results of a run."""


class RecordsWriter:
    """Appends records to a results file; safe for several processes at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._coverage = CoverageWriter()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if _ends_torn(path):
            os.write(self._file, b"\n")

    def header(self, header: RunHeader) -> None:
        """Begin a run; a second header in one file begins the part that resumed it."""
        self._append("run", {"format": _FORMAT, **asdict(header)})

    def start(self, path: str, case: str, worker: str) -> None:
        """Say that a case is about to run, in case nobody can say how it ended."""
        self._append("start", {"path": path, "case": case, "worker": worker})

    def case(self, result: CaseResult) -> None:
        """A case has its result, and may have counted what it exercised."""
        self._append("case", result.to_json())
        if result.coverage is not None:
            self.coverage(result.path, result.case, result.coverage)

    def coverage(self, path: str, case: str, coverage: Coverage) -> None:
        """What a case exercised, or several under a name that no case has."""
        for kind, data in self._coverage.records(path, case, coverage):
            self._append(kind, data)

    def summary(self, summary: Summary) -> None:
        """The run came to its end."""
        self._append("summary", asdict(summary))

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def _append(self, kind: str, data: Mapping[str, Any]) -> None:
        line = json.dumps({"record": kind, **data}, separators=(",", ":"), default=str)
        os.write(self._file, line.encode() + b"\n")


@dataclass(frozen=True)
class RunRecords:
    """A results file, read. `results` hold the last word on each case, in order of appearance."""

    path: Path
    header: RunHeader
    results: tuple[CaseResult, ...]
    summary: Summary | None
    """None when the run did not come to its end."""
    _covered: CoverageReader = field(default_factory=CoverageReader, repr=False, compare=False)

    def coverage(self) -> Coverage:
        """What all cases together exercised of their kernels; empty if nothing was counted."""
        return self._covered.merged()

    @property
    def passed(self) -> frozenset[tuple[str, str]]:
        """(path, case) of the cases that passed."""
        return frozenset(
            (item.path, item.case) for item in self.results if item.status is Status.PASSED
        )

    def counts(self) -> Counter[Status]:
        """Cases by status."""
        return Counter(item.status for item in self.results)


def read_records(path: Path) -> RunRecords:
    """Read a results file, also one that is still being written or was cut short.

    A case that was started and has no result is given as crashed.

    Raises:
        RecordsError: the file does not begin with the header of a run, or a line other than the
            last is no record.
        OSError: the file cannot be read.
    """
    header: RunHeader | None = None
    summary: Summary | None = None
    results: dict[tuple[str, str], CaseResult] = {}
    covered = CoverageReader()
    for record in _records(path):
        kind = record.pop("record", None)
        if header is None and kind != "run":
            raise RecordsError(f"{path}: does not begin with the header of a run")
        match kind:
            case "run":
                known = RunHeader.__dataclass_fields__
                found = {name: record[name] for name in known if name in record}
                for name in ("paths", "architectures"):
                    found[name] = tuple(found.get(name, ()))
                header = header or RunHeader(**found)
                summary = None
            case "start":
                place = (record["path"], record["case"])
                results.pop(place, None)
                results[place] = _in_flight(record)
            case "case":
                result = CaseResult.from_json(record)
                results[(result.path, result.case)] = result
            case "sites":
                covered.sites(record)
            case "coverage":
                covered.case(record)
            case "summary":
                summary = Summary(**{name: record[name] for name in Summary.__dataclass_fields__})
            case _:
                pass  # A record of a later version.
    if header is None:
        raise RecordsError(f"{path}: holds no record of a run")
    return RunRecords(path, header, tuple(results.values()), summary, covered)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    lines = path.read_bytes().split(b"\n")
    last = max((number for number, line in enumerate(lines) if line.strip()), default=-1)
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            if number == last or _torn(line):
                continue
            raise RecordsError(f"{path}:{number + 1}: not a record: {error}") from error
        if not isinstance(record, dict):
            raise RecordsError(f"{path}:{number + 1}: not a record but {type(record).__name__}")
        yield record


def _torn(line: bytes) -> bool:
    """Whether a line begins as our records do: then its end was lost, and a resume wrote on."""
    return line.startswith(b'{"record":')


def _in_flight(record: Mapping[str, Any]) -> CaseResult:
    return CaseResult(
        spec=Path(record["path"]).stem,
        path=record["path"],
        case=record["case"],
        status=Status.CRASHED,
        findings=(
            Finding(
                check="crash",
                title="the run ended while this case was running",
                hint="it may have been stopped from outside; run it alone to see",
            ),
        ),
    )


def _ends_torn(path: Path) -> bool:
    size = path.stat().st_size
    if size == 0:
        return False
    with path.open("rb") as file:
        file.seek(size - 1)
        return file.read(1) != b"\n"
