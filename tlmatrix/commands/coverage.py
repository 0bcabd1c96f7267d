"""`tlmatrix coverage`: what the cases of a run exercised of their kernels, from its results."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.commands.screen import screen_width
from tlmatrix.exit_codes import ExitCode, UsageError
from tlmatrix.results_file import kept_results

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from tlmatrix.config import Config
    from tlmatrix.interpreter.coverage import Coverage
    from tlmatrix.run.records import RunRecords

__all__ = ["coverage"]

_LOG_WIDTH = 120
"""Columns where there is no terminal."""


def coverage(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Print the table and the gaps of a run, or with `--source` the annotated kernels.

    Raises:
        UsageError: there are no such results, or nothing was counted in them.
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
    everything = records.coverage()
    if not everything:
        raise UsageError(
            f"coverage {path}: nothing was counted; run the cases on the interpreter "
            "with --coverage"
        )
    wanted = Coverage.merged(
        everything.of(file) for file in everything.files if arguments.file in file
    )
    if not wanted:
        raise UsageError(
            f"--file {arguments.file}: no such kernel file; there are {', '.join(everything.files)}"
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
        place = Path(records.header.folder) / file
        if number:
            yield ""
        yield file
        if not place.is_file():
            yield f"  the source is not here: {place}"
            continue
        if place.stat().st_mtime > began:
            yield "  changed since the run: counts may stand beside other lines"
        source = place.read_text(encoding="utf-8").splitlines()
        yield from annotated_lines(wanted, file, source, width)


def _latest(config: Config) -> Path:
    """The results of the last run."""
    found = kept_results(None, config)
    if not found:
        folder = config.root / config.results
        raise UsageError(f"coverage: no results in {folder}; name a file, or `tlmatrix run` first")
    return found[0]
