"""`tlmatrix show`, `diff`, `report`, `coverage`, `history`: recorded runs; and reports for CI."""

from __future__ import annotations

import math
import os
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from tlmatrix.commands.screen import console_on, console_on_output, print_wrapped, screen_width
from tlmatrix.exit_codes import ExitCode, UsageError, writing
from tlmatrix.report.text import count
from tlmatrix.results_file import kept_results, resume_command, shown_path
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.loader import load_spec

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import Console

    from tlmatrix.config import Config
    from tlmatrix.interpreter.coverage import Coverage
    from tlmatrix.report.history import History
    from tlmatrix.run.records import RunRecords


_PROBLEMS = 5
"""Most unusable lines of a results file that are printed."""


def show(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Print the report of a recorded run or search again; `--junitxml`, `--github` also for CI.

    The exit code is 1 if a case failed or has no result.

    Raises:
        UsageError: there is no such results file.
    """
    from tlmatrix.report.terminal import TerminalReport

    records = open_results("show", arguments.results, config)
    with console_on_output() as console:
        report = TerminalReport(console, verbosity=arguments.verbose - arguments.quiet)
        report.show(records, shown_path(records.path))
    publish(records, junitxml=arguments.junitxml, github=arguments.github)
    if records.incomplete and records.planned:
        print(f"to continue this run: {resume_command(records.path)}")
    failed = any(result.failed for result in records.results)
    return ExitCode.FINDINGS if failed or records.incomplete else ExitCode.OK


def diff(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Compare two runs; exit code 1 if a case fails that did not, or is not judged now.

    Raises:
        UsageError: a results file does not exist.
    """
    from tlmatrix.report.compare import Comparison, comparison_lines

    before = open_results("diff", arguments.before, config)
    after = open_results("diff", arguments.after, config)
    found = Comparison(before, after, grown=arguments.grown, slower=arguments.slower)
    most = max(len(before.results), len(after.results)) if arguments.all else 20
    for line in comparison_lines(found, most):
        print(line)
    return ExitCode.FINDINGS if found.worse else ExitCode.OK


def open_results(
    command: str, given: str | None, config: Config, remedy: str = "give a results file"
) -> RunRecords:
    """The records of a results file; by default of the last run or search of the project.

    Raises:
        UsageError: there is no such file, with the `remedy`, or it is not a results file.
    """
    from tlmatrix.run.records import RecordsError, read_records

    if given is None:
        found = kept_results(None, config)
        if not found:
            raise UsageError(f"{command}: no results in {config.results}; {remedy}")
        path = found[0]
    else:
        path = Path(given)
    try:
        records = read_records(path)
    except FileNotFoundError as error:
        raise UsageError(f"{command}: no such file: {path}") from error
    except (OSError, RecordsError) as error:
        raise UsageError(f"{command} {path}: {error}") from error
    for problem in records.problems[:_PROBLEMS]:
        print_wrapped(f"tlmatrix: {problem}", sys.stderr)
    if len(records.problems) > _PROBLEMS:
        print(f"tlmatrix: {len(records.problems) - _PROBLEMS} more lines", file=sys.stderr)
    return records


def last_run(given: str | None, config: Config) -> RunRecords | None:
    """The last recorded run in the project's folder, or in the `given` folder or file.

    Raises:
        UsageError: this version does not read the format of its file.
    """
    from tlmatrix.run.records import FormatError, RecordsError, read_records

    for path in kept_results(given, config, "run"):
        try:
            return read_records(path)
        except FormatError as error:
            raise UsageError(str(error)) from error
        except (OSError, RecordsError):
            continue  # It has just begun, or is not a results file.
    return None


def recent_runs(
    given: str | None, config: Config, *, at_most: float = math.inf
) -> Iterator[RunRecords]:
    """The recorded runs, the newest first, while their files have up to `at_most` bytes."""
    from tlmatrix.run.records import RecordsError, read_records

    for path in kept_results(given, config, "run"):
        at_most -= path.stat().st_size
        if at_most < 0:
            return
        try:
            yield read_records(path)
        except (OSError, RecordsError):
            continue  # It has just begun, is not a results file, or has another format.


def publish(records: RunRecords, *, junitxml: str | None, github: bool) -> None:
    """Write JUnit XML to a file, and with `github` annotations and the job summary.

    Raises:
        OutputError: a file cannot be written.
    """
    from tlmatrix.report.ci import error_annotations, job_summary, junit_xml

    if junitxml is not None:
        path = Path(junitxml)
        with writing("--junitxml", path):
            path.write_text(junit_xml(records), encoding="utf-8")
    if not github:
        return
    root = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd())
    for line in error_annotations(records, root):
        print(line)
    sys.stdout.flush()
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        path = Path(summary)
        with writing("GITHUB_STEP_SUMMARY", path), path.open("ab") as file:
            file.write(job_summary(records).encode(errors="replace"))


# report -----------------------------------------------------------------------------------------


def report(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Write the report.

    Raises:
        UsageError: a file cannot be read, or is not a results file.
        OutputError: the report cannot be written.
    """
    from tlmatrix.report.html import render

    runs, bench = [], []
    for given in arguments.results or [None]:
        if given is not None and given.endswith(".json"):
            bench.append(_bench(Path(given)))
        else:
            runs.append(open_results("report", given, config))
    paths = dict.fromkeys(result.path for run in runs for result in run.results)
    text = render(runs, bench, list(_proven(paths, config)))
    path = Path(arguments.output)
    with writing("-o", path):
        path.write_text(text, encoding="utf-8", errors="replace")
    cases = sum(len(run.results) for run in runs)
    print(f"{shown_path(path)}: {count(cases, 'case')}, {len(text) / 1e6:.1f} MB")
    return ExitCode.OK


def _proven(paths: Iterable[str], config: Config) -> Iterator[str]:
    """What was proven of specs whose files are here, and have not changed since."""
    from tlmatrix.prove.answers import summary

    for path in paths:
        with suppress(OSError, SpecError):
            if line := summary(load_spec(Path(path)), [config.root]):
                yield line


def _bench(path: Path) -> Mapping[str, Any]:
    from tlmatrix.bench.results import BenchFileError, read_bench

    try:
        return read_bench(path).to_json()
    except (OSError, BenchFileError) as error:
        raise UsageError(f"report {path}: {error}") from error


# coverage ---------------------------------------------------------------------------------------

_LOG_WIDTH = 120
"""Width of the output if it is not a terminal."""


def coverage(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Print the table and the gaps of a run, or with `--source` the annotated kernels.

    Raises:
        UsageError: the results file does not exist, or has no coverage.
    """
    from tlmatrix.interpreter.coverage import Coverage
    from tlmatrix.report.coverage import gap_lines, table_lines

    remedy = "give a file, or run `tlmatrix run --coverage`"
    records = open_results("coverage", arguments.results, config, remedy)
    everything = records.coverage()
    if not everything:
        raise UsageError(
            f"coverage {records.path}: the file has no coverage; run the cases with --backend "
            "interpreter --coverage"
        )
    wanted = Coverage.merged(
        everything.of(file) for file in everything.files if arguments.file in file
    )
    if not wanted:
        raise UsageError(
            f"--file {arguments.file}: no such kernel file; known: {', '.join(everything.files)}"
        )
    width = screen_width(_LOG_WIDTH)
    if arguments.source:
        lines = _sources(wanted, records, width)
    else:
        lines = iter([*table_lines(wanted, width), "", *gap_lines(wanted, width)])
    for line in lines:
        print(line)
    return ExitCode.OK


def _sources(wanted: Coverage, records: RunRecords, width: int) -> Iterator[str]:
    from tlmatrix.report.coverage import annotated_lines

    began = datetime.fromisoformat(records.header.started).timestamp()
    for number, file in enumerate(wanted.files):
        source_path = Path(records.header.folder) / file
        if number:
            yield ""
        yield file
        if not source_path.is_file():
            yield f"  source not found: {source_path}"
            continue
        if source_path.stat().st_mtime > began:
            yield "  the file changed since the run: counts may be at the wrong lines"
        source = source_path.read_text(encoding="utf-8").splitlines()
        yield from annotated_lines(wanted, file, source, width)


# history ----------------------------------------------------------------------------------------

_UNSTABLE = 20
"""Most cases with changing outcomes that are printed."""


def history(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Print the last runs of a folder, a case in all of them, or the rows of a query.

    Raises:
        UsageError: the folder does not exist or has no runs, or the query is invalid.
    """
    from tlmatrix.report.history import HistoryError, opened

    folder = Path(arguments.folder) if arguments.folder else config.results
    if not folder.is_dir():
        raise UsageError(f"history: no such folder: {folder}")
    console = console_on(sys.stdout, 160)
    try:
        with opened(folder) as found:
            if arguments.sql:
                columns, rows = found.query(arguments.sql)
                console.print(_table(columns, rows))
            elif arguments.case:
                _print_case(found, arguments.case, arguments.last, console)
            else:
                _print_runs(found, arguments.last, console)
    except HistoryError as error:
        raise UsageError(f"history: {error}") from error
    return ExitCode.OK


def _print_runs(found: History, last: int, console: Console) -> None:
    runs = found.runs(last)
    if not runs:
        raise UsageError(f"history: no results files in {found.folder}")
    columns = ("started", "tier", "backend", "cases", "failed", "seconds", "results")
    rows = [
        (
            _time(run["started"]),
            run["tier"],
            run["backend"],
            f"{run['cases']:,}",
            Text(f"{run['failed']:,}", style="bold red" if run["failed"] else ""),
            f"{run['seconds']:,.1f}{'' if run['finished'] else ' (unfinished)'}",
            run["file"],
        )
        for run in runs
    ]
    console.print(_table(columns, rows, right={"cases", "failed", "seconds"}))
    unstable = found.unstable(last)
    if unstable:
        console.print(f"\noutcomes that changed more than once in these runs: {len(unstable)}")
    for row in unstable[:_UNSTABLE]:
        words = f"  {row['path']}::{row['case_id']}  failed {row['failed']} of {row['runs']}"
        console.print(words, markup=False, highlight=False, soft_wrap=True)
    if len(unstable) > _UNSTABLE:
        console.print(f"  … and {len(unstable) - _UNSTABLE} more")
    for name, problem in found.unreadable():
        console.print(f"not read: {name}: {problem}", markup=False, highlight=False, style="yellow")


def _print_case(found: History, name: str, last: int, console: Console) -> None:
    results = found.case(name, last)
    if not results:
        raise UsageError(f"--case {name}: no run in {found.folder} has this case")
    columns = ("started", "status", "seconds", "error ratio", "arch", "finding")
    rows = [
        (
            _time(row["started"]),
            Text(row["status"], style="bold red" if row["failed"] else ""),
            f"{row['seconds']:.2f}",
            "-" if row["error_ratio"] is None else f"{row['error_ratio']:.3g}",
            row["arch"],
            row["finding"],
        )
        for row in results
    ]
    console.print(_table(columns, rows, right={"seconds", "error ratio"}))


def _table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[str] = ()
) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(each if isinstance(each, Text) else Text(_text(each)) for each in row))
    return table


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _time(started: str) -> str:
    """`2026-11-23 15:08`, in UTC."""
    return started[:16].replace("T", " ")
