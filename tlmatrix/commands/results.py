"""`tlmatrix show`, `diff`: print a recorded run again, and compare two; and reports for CI."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.commands.screen import print_wrapped
from tlmatrix.exit_codes import ExitCode, UsageError, writing
from tlmatrix.results_file import kept_results, resume_command, shown_path

if TYPE_CHECKING:
    import argparse

    from tlmatrix.config import Config
    from tlmatrix.run.records import RunRecords

_PROBLEMS = 5
"""Most unusable lines of a results file that are printed."""


def show(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Print the report of a recorded run or search again; `--junitxml`, `--github` also for CI.

    The exit code is 1 if a case failed or has no result.

    Raises:
        UsageError: there is no such results file.
    """
    from tlmatrix.commands.engine import console_on_output
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


def open_results(command: str, given: str | None, config: Config) -> RunRecords:
    """The records of a results file; by default of the last run or search of the project.

    Raises:
        UsageError: there is no such file, or it is not a results file.
    """
    from tlmatrix.run.records import RecordsError, read_records

    if given is None:
        found = kept_results(None, config)
        if not found:
            raise UsageError(f"{command}: no results in {config.results}; give a results file")
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
