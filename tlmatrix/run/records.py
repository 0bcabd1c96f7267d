"""Results files: one JSON record per line, appended during a run and never rewritten.

Every record is a single `write` to a file opened for appending, so worker processes share the
file without a lock. If a process ends early, at most its current case is lost: its record `start`
has no record `case`. The reader skips an incomplete last line.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.json_fields import fields_of
from tlmatrix.run.events import RunHeader, Summary
from tlmatrix.run.measurements import CoverageReader, CoverageWriter
from tlmatrix.run.result import CaseResult, Status, crash_finding
from tlmatrix.run.sources import SourceWatch, differences, digest_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tlmatrix.interpreter.coverage import Coverage


_FORMAT = 1


class RecordsError(ValueError):
    """The file is not a results file."""


class FormatError(RecordsError):
    """The file has a format that this version does not read."""


class RecordsWriter:
    """Appends records to a results file; safe for several processes at once.

    Without `case_coverage` only calls of `coverage` write coverage, such as that of a search.

    Attributes:
        path: the file.
        error: the first error of writing, such as a full disk; empty if there was none. Later
            records are still tried.
    """

    def __init__(self, path: Path, *, case_coverage: bool = True) -> None:
        """Open the file, which is created with its folder if it does not exist."""
        self.path = path
        self.error = ""
        self._case_coverage = case_coverage
        self._coverage = CoverageWriter()
        self._file: int | None = None
        self._open()

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            if _ends_mid_line(self.path):
                self._write(b"\n")
        except FileExistsError:
            self.error = self.error or f"{self.path.parent} is not a folder"
        except OSError as error:
            self._failed(error)

    def header(self, header: RunHeader) -> None:
        """Write the header of a run; later headers in the file are those of resumed runs."""
        self._append("run", {"format": _FORMAT, **asdict(header)})

    def copy(self, line: bytes) -> None:
        """Write a record that was read from another file."""
        self._write(line + b"\n")

    def plan(self, cases: Mapping[str, Sequence[str]]) -> None:
        """Write the cases of a run, or of its shard: ids by path of the spec."""
        self._append("plan", {"cases": {path: list(ids) for path, ids in cases.items()}})

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
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, kind: str, data: Mapping[str, Any]) -> None:
        line = json.dumps({"record": kind, **data}, separators=(",", ":"), default=str)
        self._write(line.encode() + b"\n")

    def _write(self, line: bytes) -> None:
        """Write a line; after an error, on a line of its own."""
        if self._file is None:
            return
        if self.error:
            line = b"\n" + line
        try:
            written = os.write(self._file, line)
        except OSError as error:
            self._failed(error)
            return
        if written < len(line):
            self.error = self.error or "a record was written in part: the disk may be full"

    def _failed(self, error: OSError) -> None:
        self.error = self.error or error.strerror or str(error)


@dataclass(frozen=True)
class RunRecords:
    """The content of a results file; `results` has the last result of each case, in file order."""

    path: Path
    header: RunHeader
    """That of the first session, with the versions of the last one."""
    results: tuple[CaseResult, ...]
    summary: Summary | None
    """None if the run did not finish."""
    planned: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The ids of the cases of the run by path of the spec; empty for a search."""
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The parts of sources by the digest that results have (`tlmatrix.run.sources`)."""
    problems: tuple[str, ...] = ()
    """Lines of the file that cannot be used, each with the reason."""
    _covered: CoverageReader = field(default_factory=CoverageReader, repr=False, compare=False)

    def coverage(self) -> Coverage:
        """The kernel coverage of all cases together; empty if it was not measured."""
        return self._covered.merged()

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """The planned cases without a result, `path::id`."""
        # A result without a key is only a record that the case began.
        judged = {(result.path, result.case) for result in self.results if result.key}
        planned = ((path, case) for path, cases in self.planned.items() for case in cases)
        return tuple(f"{path}::{case}" for path, case in planned if (path, case) not in judged)

    @property
    def incomplete(self) -> str:
        """What the file lacks of its run, in words; empty if it is complete."""
        words = [] if self.summary is not None else ["the run did not finish"]
        if self.missing:
            total = sum(map(len, self.planned.values()))
            words.append(f"{len(self.missing):,} of {total:,} planned cases have no result")
        return "; ".join(words)

    def counts(self) -> Counter[Status]:
        """Cases by status."""
        return Counter(item.status for item in self.results)


def read_records(path: Path) -> RunRecords:
    """Read a results file, which may be still growing or incomplete.

    The status of a case that started and has no result is `crashed`. Lines that are no records
    are left out and are in `problems`; without a header, default settings are taken.

    Raises:
        RecordsError: it is not a file, no line is a record of a run, or it has another format.
        OSError: the file cannot be read.
    """
    if path.exists() and not path.is_file():  # a device or a pipe may have no end
        raise RecordsError(f"{path}: is not a file")
    reader = _Reader(path)
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if line.strip():
            reader.read(number, line)
    return reader.records()


class _Reader:
    """Collects the records of a results file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._header: RunHeader | None = None
        self._summary: Summary | None = None
        self._results: dict[tuple[str, str], CaseResult] = {}
        self._planned: dict[str, dict[str, None]] = {}
        self._now: Mapping[str, Mapping[str, str]] = {}
        self._planned_of: dict[str, str] = {}
        self._sources: dict[str, Mapping[str, str]] = {}
        self._covered = CoverageReader()
        self._problems: list[str] = []
        self._incomplete = ""

    def read(self, number: int, line: bytes) -> None:
        """Read a line; one that is no record becomes a problem."""
        if self._incomplete:
            self._problems.append(self._incomplete)
            self._incomplete = ""
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise TypeError(f"it is {type(record).__name__}, not an object")  # noqa: TRY301
            self._add(record)
        except FormatError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            words = str(error) if not isinstance(error, KeyError) else f"it has no {error}"
            problem = f"{self._path}:{number}: not a record: {words}; the line is left out"
            if isinstance(error, json.JSONDecodeError) and line.startswith(b'{"record":'):
                return  # the start of a record whose end was lost with its process
            # The last line may be growing.
            if isinstance(error, json.JSONDecodeError) and self._header is not None:
                self._incomplete = problem
            else:
                self._problems.append(problem)

    def _add(self, record: dict[str, Any]) -> None:
        match record.pop("record", None):
            case "run":
                self._require_format(record)
                header = _header(record)
                self._header = replace(self._header or header, versions=header.versions)
                self._now = header.sources
                self._sources |= {digest_of(parts): parts for parts in self._now.values()}
                self._summary = None
            case "start":
                key = (str(record["path"]), str(record["case"]))
                self._results.pop(key, None)
                self._results[key] = _unfinished(record)
            case "case":
                result = CaseResult.from_json(record)
                self._results[(result.path, result.case)] = result
            case "plan":
                for path, ids in record["cases"].items():
                    self._plan(str(path), ids)
            case "sites":
                self._covered.sites(record)
            case "coverage":
                self._covered.case(record)
            case "summary":
                self._summary = Summary(**fields_of(Summary, record))
            case None:
                raise ValueError("it has no key 'record'")
            case _:
                pass  # a record of a later version

    def _require_format(self, record: Mapping[str, Any]) -> None:
        found = record["format"]
        if found == _FORMAT:
            return
        versions = record.get("versions")
        by = versions.get("tlmatrix") if isinstance(versions, dict) else None
        writer = f"tlmatrix {by}" if by else "another version of tlmatrix"
        raise FormatError(
            f"{self._path}: has results format {found!r}, and this tlmatrix reads {_FORMAT}; "
            f"use {writer}, which wrote it, or run its cases again"
        )

    def _plan(self, path: str, ids: Sequence[str]) -> None:
        """Add the planned cases of a spec; other sources begin a new plan."""
        now = digest_of(self._now.get(path, {}))
        if self._planned_of.setdefault(path, now) != now:
            self._planned_of[path] = now
            self._planned.pop(path, None)
        self._planned.setdefault(path, {}).update(dict.fromkeys(map(str, ids)))

    def records(self) -> RunRecords:
        """The records of the file."""
        header, problems = self._header, list(self._problems)
        if header is None:
            if not self._results:
                reason = f": {problems[0]}" if problems else ""
                raise RecordsError(f"{self._path}: holds no record of a run{reason}")
            problems.insert(
                0, f"{self._path}: has no header of a run; its settings are taken as the defaults"
            )
            paths = tuple(dict.fromkeys(path for path, _ in self._results))
            header = RunHeader("quick", "auto", 0, paths, "", "")
        results = tuple(self._results.values())
        return RunRecords(
            self._path,
            header,
            results,
            self._summary,
            {path: tuple(ids) for path, ids in self._planned.items()},
            self._sources,
            tuple(problems),
            self._covered,
        )


def _header(record: Mapping[str, Any]) -> RunHeader:
    """The header of a record.

    Raises:
        KeyError, TypeError, ValueError: the record is not one.
    """
    found = fields_of(RunHeader, record)
    for name in ("paths", "architectures"):
        found[name] = tuple(found.get(name, ()))
    return RunHeader(**found)


def _unfinished(record: Mapping[str, Any]) -> CaseResult:
    return CaseResult(
        spec=Path(str(record["path"])).stem,
        path=str(record["path"]),
        case=str(record["case"]),
        status=Status.CRASHED,
        findings=(crash_finding(ended="run"),),
    )


def _ends_mid_line(path: Path) -> bool:
    size = path.stat().st_size
    if size == 0:
        return False
    with path.open("rb") as file:
        file.seek(size - 1)
        return file.read(1) != b"\n"


# Resumed runs ------------------------------------------------------------------------------------


def reusable(
    earlier: RunRecords, roots: Iterable[Path], *, seed: int, backend: str
) -> tuple[frozenset[tuple[str, str]], tuple[str, ...]]:
    """The passed cases of a run whose sources, seed and backend are those of the resumed one.

    Args:
        earlier: the run to resume.
        roots: folders, besides those of specs, from which entries are imported.
        seed: the seed of the resumed run.
        backend: its backend, as the user names it.

    Returns:
        (absolute path of the spec, id) of each such case; and a line for each reason why others
        run again.
    """
    watch = SourceWatch(roots)
    folder = Path(earlier.header.folder)
    kept: set[tuple[str, str]] = set()
    again: Counter[str] = Counter()
    for result in earlier.results:
        if result.status is not Status.PASSED:
            continue
        path = (folder / result.path).resolve()
        if not os.path.isfile(path):  # noqa: PTH113 - False for a name that no file can have
            continue
        reason = _reason(earlier, result, watch, path, seed, backend)
        if reason:
            again[reason] += 1
        else:
            kept.add((str(path), result.case))
    words = [
        f"{number:,} case{'s' if number > 1 else ''} run again: {reason}"
        for reason, number in again.items()
    ]
    return frozenset(kept), tuple(words)


def _reason(
    earlier: RunRecords, result: CaseResult, watch: SourceWatch, path: Path, seed: int, backend: str
) -> str:
    """Why a passed case runs again; empty if it need not."""
    if result.seed != seed:
        return f"the seed is {seed}, was {result.seed}"
    if result.requested != backend:
        return f"the backend is {backend}, was {result.requested}"
    now = watch.of(path)
    if result.sources == now.digest:
        return ""
    before = earlier.sources.get(result.sources)
    if before is None:
        return "the results file does not say from which sources their results are"
    return f"{differences(before, now.parts)} since"
