"""`tlmatrix coverage`: shows the kernel coverage of a run from its results file."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.commands.screen import print_wrapped, screen_width
from tlmatrix.exit_codes import ExitCode, UsageError
from tlmatrix.results_file import kept_results

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from tlmatrix.config import Config
    from tlmatrix.interpreter.coverage import Coverage
    from tlmatrix.run.records import RunRecords

_LOG_WIDTH = 120
"""Width of the output if it is not a terminal."""


def coverage(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Print the table and the gaps of a run, or with `--source` the annotated kernels.

    Raises:
        UsageError: the results file does not exist, or has no coverage.
    """
    from tlmatrix.interpreter.coverage import Coverage
    from tlmatrix.report.coverage import gap_lines, table_lines
    from tlmatrix.run.records import RecordsError, read_records

    path = Path(arguments.results) if arguments.results else _latest(config)
    try:
        records = read_records(path)
    except FileNotFoundError as error:
        raise UsageError(f"coverage: no such file: {path}") from error
    except (OSError, RecordsError) as error:
        raise UsageError(f"coverage {path}: {error}") from error
    for problem in records.problems:
        print_wrapped(problem, sys.stderr)
    everything = records.coverage()
    if not everything:
        raise UsageError(
            f"coverage {path}: the file has no coverage; run the cases with --backend interpreter "
            "--coverage"
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


def _latest(config: Config) -> Path:
    """The results of the last run."""
    found = kept_results(None, config)
    if not found:
        raise UsageError(
            f"coverage: no results in {config.results}; give a file, or run `tlmatrix run "
            "--coverage`"
        )
    return found[0]
