"""`tlmatrix history`: the runs of a folder over time, from an SQLite database beside them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tlmatrix.exit_codes import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from tlmatrix.config import Config
    from tlmatrix.report.history import History

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
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console = Console(file=sys.stdout, width=160)
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
