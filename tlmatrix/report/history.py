"""Recorded runs over time, in an SQLite database beside their results files.

`runs` has a row for each results file and `cases` a row for each of its cases. A file is read again
only if its size or its time changed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.run.records import RecordsError, read_records
from tlmatrix.run.result import FAILURES, Status

if TYPE_CHECKING:
    from tlmatrix.run.records import RunRecords

DATABASE = "history.sqlite"
_FORMAT = 1
_TABLES = """
CREATE TABLE runs (
    run INTEGER PRIMARY KEY, file TEXT UNIQUE, size INTEGER, changed INTEGER, started TEXT,
    command TEXT, tier TEXT, backend TEXT, seed INTEGER, version TEXT, finished INTEGER,
    seconds REAL, cases INTEGER, failed INTEGER, problem TEXT);
CREATE TABLE cases (
    run INTEGER REFERENCES runs ON DELETE CASCADE, path TEXT, spec TEXT, case_id TEXT, status TEXT,
    failed INTEGER, seconds REAL, error_ratio REAL, arch TEXT, finding TEXT);
CREATE INDEX cases_by_name ON cases (path, case_id);
CREATE INDEX cases_by_run ON cases (run);
"""


class HistoryError(ValueError):
    """The database cannot be written, or a query is invalid."""


class History:
    """The runs of a folder; a database that cannot be written is kept in memory.

    Raises:
        HistoryError: the file is not a database of this program.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self._db = _opened(str(folder / DATABASE))
        except sqlite3.OperationalError:
            self._db = _opened(":memory:")
        except sqlite3.DatabaseError as error:
            raise HistoryError(f"{folder / DATABASE}: {error}; remove the file") from error

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def update(self) -> int:
        """Read new and changed results files, forget removed ones; returns how many were read."""
        known = {
            name: (size, changed, run)
            for name, size, changed, run in self._db.execute(
                "SELECT file, size, changed, run FROM runs"
            )
        }
        read = 0
        with self._db:
            for path in sorted(self.folder.glob("*.jsonl")):
                facts = path.stat()
                stamp = (facts.st_size, facts.st_mtime_ns)
                before = known.pop(path.name, None)
                if before is not None and before[:2] == stamp:
                    continue
                if before is not None:
                    self._db.execute("DELETE FROM runs WHERE run = ?", (before[2],))
                self._add(path, *stamp)
                read += 1
            for _size, _changed, run in known.values():
                self._db.execute("DELETE FROM runs WHERE run = ?", (run,))
        return read

    def _add(self, path: Path, size: int, changed: int) -> None:
        try:
            records = read_records(path)
        except (RecordsError, OSError) as error:
            self._db.execute(
                "INSERT INTO runs (file, size, changed, problem) VALUES (?, ?, ?, ?)",
                (path.name, size, changed, str(error)),
            )
            return
        run = self._db.execute(
            "INSERT INTO runs (file, size, changed, started, command, tier, backend, seed, version,"
            " finished, seconds, cases, failed) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (path.name, size, changed, *_run_row(records)),
        ).lastrowid
        self._db.executemany(
            "INSERT INTO cases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            ((run, *row) for row in _case_rows(records)),
        )

    def runs(self, last: int) -> list[sqlite3.Row]:
        """The last runs, the newest last."""
        rows = self._db.execute(
            "SELECT * FROM runs WHERE problem IS NULL ORDER BY started DESC, run DESC LIMIT ?",
            (last,),
        ).fetchall()
        return rows[::-1]

    def unreadable(self) -> list[tuple[str, str]]:
        """(file, problem) of files that are no results files."""
        query = "SELECT file, problem FROM runs WHERE problem IS NOT NULL ORDER BY file"
        return [(name, problem) for name, problem in self._db.execute(query)]

    def case(self, name: str, last: int) -> list[sqlite3.Row]:
        """The results of the case `SPEC.yaml::ID`, or with an id alone; the newest last."""
        path, _, case_id = name.rpartition("::")
        query = (
            "SELECT runs.file, runs.started, cases.* FROM cases JOIN runs USING (run) "
            "WHERE case_id = ? AND (? = '' OR path = ? OR path LIKE '%/' || ?) "
            "ORDER BY started DESC, run DESC LIMIT ?"
        )
        return self._db.execute(query, (case_id, path, path, path, last)).fetchall()[::-1]

    def unstable(self, last: int) -> list[sqlite3.Row]:
        """Cases whose outcome changed more than once in the last runs, the most changes first.

        A case that fails until it is fixed changes once; a second change is a case that came back,
        or one that depends on chance.
        """
        query = """
            WITH recent AS (SELECT run, started FROM runs WHERE problem IS NULL
                            ORDER BY started DESC, run DESC LIMIT ?),
            steps AS (SELECT path, case_id, failed, started, LAG(failed) OVER (
                          PARTITION BY path, case_id ORDER BY started, run) AS before
                      FROM cases JOIN recent USING (run)
                      WHERE failed OR status = 'passed')
            SELECT path, case_id, COUNT(*) AS runs, SUM(failed) AS failed,
                   SUM(before IS NOT NULL AND before != failed) AS changes
            FROM steps GROUP BY path, case_id HAVING changes > 1
            ORDER BY changes DESC, path, case_id"""
        return self._db.execute(query, (last,)).fetchall()

    def query(self, text: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The columns and rows of a query of the user, which cannot change the database.

        Raises:
            HistoryError: the query is invalid.
        """
        self._db.execute("PRAGMA query_only = ON")
        try:
            with closing(self._db.execute(text)) as found:
                columns = [each[0] for each in found.description or ()]
                return columns, [tuple(row) for row in found]
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise HistoryError(str(error)) from error
        finally:
            self._db.execute("PRAGMA query_only = OFF")


@contextmanager
def opened(folder: Path) -> Iterator[History]:
    """The history of a folder, brought up to date."""
    history = History(folder)
    try:
        history.update()
        yield history
    finally:
        history.close()


def _opened(name: str) -> sqlite3.Connection:
    db = sqlite3.connect(name)
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA foreign_keys = ON")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version != _FORMAT:
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        tables = {row[0] for row in db.execute(query)}
        if tables and tables != {"runs", "cases"}:
            raise sqlite3.DatabaseError("not a history of runs")
        db.executescript("DROP TABLE IF EXISTS cases; DROP TABLE IF EXISTS runs;")
        db.executescript(_TABLES)
        db.execute(f"PRAGMA user_version = {_FORMAT}")
    return db


def _run_row(records: RunRecords) -> Sequence[Any]:
    header = records.header
    backends = sorted({result.backend for result in records.results if result.backend})
    seconds = sum(result.seconds for result in records.results)
    return (
        header.started,
        header.command,
        header.tier,
        ", ".join(backends) or header.backend,
        header.seed,
        header.versions.get("tlmatrix", ""),
        int(records.summary is not None),
        records.summary.seconds if records.summary is not None else seconds,
        len(records.results),
        sum(result.failed for result in records.results),
    )


def _case_rows(records: RunRecords) -> Iterator[Sequence[Any]]:
    for result in records.results:
        finding = result.findings[0] if result.findings else None
        yield (
            result.path,
            result.spec,
            result.case,
            str(result.status),
            int(result.status in FAILURES),
            result.seconds,
            result.ratio,
            result.arch,
            finding.summary if finding and result.status is not Status.PASSED else result.message,
        )
