"""`tlmatrix run`: pytest with our own report in place of its.

The same plugin runs the same items as under `pytest specs`; only what is printed differs.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from rich.console import Console

from tlmatrix.commands.specs import plan_all, spec_paths
from tlmatrix.exit_codes import ExitCode, UsageError
from tlmatrix.report.terminal import TerminalReport
from tlmatrix.run.events import CaseFinished, RunStarted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from tlmatrix.config import Config
    from tlmatrix.run.events import Event
    from tlmatrix.run.records import RunRecords

__all__ = ["Engine", "console_on_output", "pytest_arguments", "run"]


def run(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Run the cases of specs and report them.

    Raises:
        UsageError: the arguments make no sense.
        SpecError: a spec is wrong; nothing has run.
    """
    records = _records(arguments.resume)
    given = arguments.paths or ([] if records is None else _paths_of(records))
    paths = spec_paths(given, config)
    tier = arguments.tier or (records.header.tier if records else config.tier)
    # Errors in specs are told before any worker starts.
    plan_all(paths, tier, seed=arguments.seed, roots=[config.root])
    with console_on_output() as console:
        report = TerminalReport(console)
        report.announce(f"{tier} tier; starting")
        engine = Engine(report)
        try:
            status = pytest.main(pytest_arguments(arguments, paths, tier), plugins=[engine])
        finally:
            report.close()
        return engine.exit_code(int(status), console)


def pytest_arguments(
    arguments: argparse.Namespace, paths: Sequence[Path | str], tier: str
) -> list[str]:
    """What pytest is called with, to run cases of specs as `arguments` of a command ask."""
    words = [str(path) for path in paths]
    # A project's own default options (coverage, verbosity, warnings as errors) are meant for
    # its own tests, and its assertions are not ours to rewrite.
    words += ["-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:warnings", "--assert=plain"]
    # The summary of the one takes most of a second to import; the other warns of workers.
    words += ["-p", "no:hypothesispytest", "-p", "no:benchmark", "-n", arguments.workers]
    words += ["--tlmatrix-tier", tier]
    for option, value in (
        ("--tlmatrix-backend", arguments.backend),
        ("--tlmatrix-seed", arguments.seed),
        ("--tlmatrix-results", arguments.results),
        ("--tlmatrix-resume", arguments.resume),
        ("--tlmatrix-coverage", arguments.coverage),
        ("--tlmatrix-unsupported", arguments.unsupported),
        ("--timeout", arguments.timeout),
        ("--junitxml", arguments.junitxml),
    ):
        if value is not None:
            words += [option, str(value)]
    for arch in arguments.arch or ():
        words += ["--tlmatrix-arch", arch]
    if arguments.select:
        words += ["-k", arguments.select]
    if getattr(arguments, "keep_going", False):
        words.append("--tlmatrix-keep-going")
    if arguments.no_fuzz:
        words.append("--tlmatrix-no-fuzz")
    if arguments.exitfirst:
        words.append("-x")
    return words


def _records(path: str | None) -> RunRecords | None:
    if path is None:
        return None
    from tlmatrix.run.records import RecordsError, read_records

    try:
        return read_records(Path(path))
    except (OSError, RecordsError) as error:
        raise UsageError(f"--resume {path}: {error}") from error


def _paths_of(records: RunRecords) -> list[str]:
    folder = Path(records.header.folder)
    return [os.path.relpath(folder / path.split("::")[0]) for path in records.header.paths]


@contextmanager
def console_on_output() -> Iterator[Console]:
    """A console on the real output: pytest captures file descriptor 1 while a case runs."""
    try:
        descriptor = os.dup(sys.stdout.fileno())
    except (OSError, ValueError):
        yield Console(file=sys.stdout)
        return
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        console = Console(file=file)
        if not console.is_terminal:
            # Nobody folds lines in a log.
            console = Console(file=file, width=120)
        yield console


class Listener(Protocol):
    """A report that hears of a run while it goes on."""

    def handle(self, event: Event) -> None:
        """Something happened."""

    def note(self, words: str) -> None:
        """Something to know in between."""


class Engine:
    """A pytest plugin that mutes pytest's own report and feeds ours."""

    def __init__(self, report: Listener) -> None:
        self._report = report
        self._muted = io.StringIO()
        self._interrupted = False
        self._errors: list[str] = []
        self._passed_before = False
        self._resume: str | None = None
        self._missing = 0

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Runs after pytest made its reporter, and before pytest-xdist takes hold of it."""
        reporter = config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter._tw = type(reporter._tw)(self._muted)  # noqa: SLF001 - no public way

    def pytest_tlmatrix_event(self, event: Event) -> None:
        """Something happened."""
        match event:
            case RunStarted():
                self._missing = sum(event.cases.values())
            case CaseFinished():
                self._missing -= 1
        self._report.handle(event)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A spec that could not be collected."""
        if report.failed and str(report.longrepr) not in self._errors:
            self._errors.append(str(report.longrepr))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Ctrl-C; or the run stops early (`-x`), which pytest tells in the same way."""
        self._interrupted = excinfo.type is KeyboardInterrupt
        if self._interrupted:
            self._report.note("interrupted; ending the workers")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Say how to go on, when the results file is known."""
        from tlmatrix.plugin.state import state_of

        state = state_of(session.config)
        self._resume = state.resume_command() if state.running else None
        self._passed_before = bool(state.settings.passed_before)

    def _tell_how_to_go_on(self, console: Console) -> None:
        if self._resume is not None:
            console.print(f"to go on where this stopped: {self._resume}", soft_wrap=True)

    def exit_code(self, status: int, console: Console) -> ExitCode:
        """What pytest's exit status means here; prints what the report could not know."""
        for error in self._errors:
            console.print(error, markup=False, highlight=False, soft_wrap=True)
        if self._interrupted:
            self._tell_how_to_go_on(console)
            return ExitCode.INTERRUPTED
        match status:
            case pytest.ExitCode.OK:
                return ExitCode.OK
            case pytest.ExitCode.TESTS_FAILED:
                if self._missing > 0:
                    self._tell_how_to_go_on(console)
                return ExitCode.FINDINGS
            case pytest.ExitCode.INTERRUPTED if not self._errors:
                # Stopped early: -x, or a GPU that is gone.
                self._tell_how_to_go_on(console)
                return ExitCode.FINDINGS
            case pytest.ExitCode.INTERRUPTED | pytest.ExitCode.USAGE_ERROR:
                return ExitCode.USAGE
            case pytest.ExitCode.NO_TESTS_COLLECTED if self._passed_before:
                console.print("every case passed before; none is left to run")
                return ExitCode.OK
            case pytest.ExitCode.NO_TESTS_COLLECTED:
                console.print("no case matches -k")
                return ExitCode.USAGE
        # pytest's own words are all there is to go by.
        console.print(self._muted.getvalue(), markup=False, highlight=False, soft_wrap=True)
        return ExitCode.INTERNAL
