"""Results files: one JSON record per line, appended during a run and never rewritten.

Every record is a single `write` to a file opened for appending, so worker processes share the
file without a lock. If a process ends early, at most its current case is lost: its record `start`
has no record `case`. The reader skips an incomplete last line.
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
    """The file is not a results file."""


class RecordsWriter:
    """Appends records to a results file; safe for several processes at once.

    Without `case_coverage` only calls of `coverage` write coverage, such as that of a search.
    """

    def __init__(self, path: Path, *, case_coverage: bool = True) -> None:
        self.path = path
        self._case_coverage = case_coverage
        self._coverage = CoverageWriter()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if _ends_mid_line(path):
            os.write(self._file, b"\n")

    def header(self, header: RunHeader) -> None:
        """Write the header of a run; later headers in the file are those of resumed runs."""
        self._append("run", {"format": _FORMAT, **asdict(header)})

    def start(self, path: str, case: str, worker: str) -> None:
        """Record that a case is about to run, in case its process crashes."""
        self._append("start", {"path": path, "case": case, "worker": worker})

    def case(self, result: CaseResult) -> None:
        """Write the result of a case and, with `case_coverage`, its coverage if measured."""
        self._append("case", result.to_json())
        if self._case_coverage and result.coverage is not None:
            self.coverage(result.path, result.case, result.coverage)

    def coverage(self, path: str, case: str, coverage: Coverage) -> None:
        """Write the coverage of a case, or of several cases under a name of their own."""
        for kind, data in self._coverage.records(path, case, coverage):
            self._append(kind, data)

    def summary(self, summary: Summary) -> None:
        """Write the summary at the end of a run."""
        self._append("summary", asdict(summary))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _append(self, kind: str, data: Mapping[str, Any]) -> None:
        line = json.dumps({"record": kind, **data}, separators=(",", ":"), default=str)
        os.write(self._file, line.encode() + b"\n")


@dataclass(frozen=True)
class RunRecords:
    """The content of a results file; `results` has the last result of each case, in file order."""

    path: Path
    header: RunHeader
    results: tuple[CaseResult, ...]
    summary: Summary | None
    """None if the run did not finish."""
    _covered: CoverageReader = field(default_factory=CoverageReader, repr=False, compare=False)

    def coverage(self) -> Coverage:
        """The kernel coverage of all cases together; empty if it was not measured."""
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
    """Read a results file, which may be still growing or incomplete.

    The status of a case that started and has no result is `crashed`.

    Raises:
        RecordsError: the file does not begin with the header of a run, or a line other than the
            last is not a record.
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
                key = (record["path"], record["case"])
                results.pop(key, None)
                results[key] = _unfinished(record)
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
                pass  # a record of a later version
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
            if number == last or _incomplete(line):
                continue
            raise RecordsError(f"{path}:{number + 1}: not a record: {error}") from error
        if not isinstance(record, dict):
            raise RecordsError(f"{path}:{number + 1}: not a record but {type(record).__name__}")
        yield record


def _incomplete(line: bytes) -> bool:
    """Whether a line begins like a record: its end was lost, and a resumed run appended to it."""
    return line.startswith(b'{"record":')


def _unfinished(record: Mapping[str, Any]) -> CaseResult:
    return CaseResult(
        spec=Path(record["path"]).stem,
        path=record["path"],
        case=record["case"],
        status=Status.CRASHED,
        findings=(
            Finding(
                check="crash",
                title="the run ended while this case was running",
                hint="the process may have been killed; run the case alone to find out",
            ),
        ),
    )


def _ends_mid_line(path: Path) -> bool:
    size = path.stat().st_size
    if size == 0:
        return False
    with path.open("rb") as file:
        file.seek(size - 1)
        return file.read(1) != b"\n"
