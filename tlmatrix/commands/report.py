"""`tlmatrix report`: writes the report of runs, searches and benchmarks as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.commands.results import open_results
from tlmatrix.exit_codes import ExitCode, UsageError, writing
from tlmatrix.report.text import count
from tlmatrix.results_file import shown_path

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from tlmatrix.config import Config


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
    text = render(runs, bench)
    path = Path(arguments.output)
    with writing("-o", path):
        path.write_text(text, encoding="utf-8", errors="replace")
    cases = sum(len(run.results) for run in runs)
    print(f"{shown_path(path)}: {count(cases, 'case')}, {len(text) / 1e6:.1f} MB")
    return ExitCode.OK


def _bench(path: Path) -> Mapping[str, Any]:
    from tlmatrix.bench.results import BenchFileError, read_bench

    try:
        return read_bench(path).to_json()
    except (OSError, BenchFileError) as error:
        raise UsageError(f"report {path}: {error}") from error
