"""Runs pytest for commands: builds its arguments, and replaces its report by that of a command."""

from __future__ import annotations

import io
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from rich.console import Console

from tlmatrix.exit_codes import ExitCode
from tlmatrix.options.table import COMMANDS, TIER
from tlmatrix.run.events import CaseFinished, RunFinished, RunStarted
from tlmatrix.run.limits import Interrupted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tlmatrix.run.events import Event


def pytest_arguments(
    arguments: argparse.Namespace, paths: Sequence[str], tier: str, workers: str
) -> list[str]:
    """The arguments of pytest that run cases of specs with the `arguments` of a command."""
    words = list(paths)
    # The project's own options (coverage, verbosity, warnings as errors) are for its own tests.
    words += ["-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:warnings", "--assert=plain"]
    # Hypothesis's plugin is slow to import; pytest-benchmark warns about workers.
    words += ["-p", "no:hypothesispytest", "-p", "no:benchmark", "-n", workers]
    # It collects garbage five times at the end: up to a second, for warnings that are not shown.
    words += ["-p", "no:unraisableexception"]
    given = {**vars(arguments), TIER.name: tier}
    for option in COMMANDS["run"].options:
        if option.flag_of_pytest:
            words += option.words(given.get(option.name))
    return words


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
            console = Console(file=file, width=120)
        yield console


class Listener(Protocol):
    """A report that receives the events of a run."""

    def handle(self, event: Event) -> None:
        """Handle an event."""

    def note(self, text: str) -> None:
        """Print a note for the user."""


@dataclass(frozen=True)
class Ending:
    """The outcome of a pytest session; it can be sent to another process.

    Attributes:
        status: the exit status of pytest.
        missing: the number of cases without a result.
        interrupted: whether Ctrl-C ended the session.
        passed_before: whether cases were left out because they passed in the resumed run.
        resume: the command that continues the run; None if no case ran.
        errors: the errors of specs that could not be collected.
        output: the output of pytest itself.
        unrecorded: why the results file lacks results; empty if it has all.
    """

    status: int
    missing: int = 0
    interrupted: bool = False
    passed_before: bool = False
    resume: str | None = None
    errors: tuple[str, ...] = ()
    output: str = ""
    unrecorded: str = ""


class Engine:
    """A pytest plugin that mutes pytest's own report and sends events to that of a command.

    Args:
        report: receives the events.
        finished: cases that the session leaves out because they have results: (absolute path of
            the spec, id).
        sources: the sources with which the run began (`RunHeader.sources`), if it began before.
        on_start: called with the path and id of every case before it runs. If given, another
            process continues the run if a case ends this one.
    """

    def __init__(
        self,
        report: Listener,
        *,
        finished: frozenset[tuple[str, str]] = frozenset(),
        sources: Mapping[str, Mapping[str, str]] | None = None,
        on_start: Callable[[str, str], None] | None = None,
    ) -> None:
        self._report = report
        self._finished = finished
        self._sources = {str(Path(path).resolve()): p for path, p in (sources or {}).items()}
        self._on_start = on_start
        self._muted = io.StringIO()
        self._interrupted = False
        self._errors: list[str] = []
        self._passed_before = False
        self._resume: str | None = None
        self._missing = 0
        self._unrecorded = ""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Mute pytest's reporter before pytest-xdist uses it."""
        from tlmatrix.plugin.state import state_of

        reporter = config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter._tw = type(reporter._tw)(self._muted)  # noqa: SLF001 - no public way
        state = state_of(config)
        state.expendable = state.is_worker or self._on_start is not None
        state.words = ["tlmatrix", *sys.argv[1:]]
        if self._finished:
            known = state.settings.passed_before | self._finished
            state.settings = replace(state.settings, passed_before=known, sources=self._sources)

    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Call `on_start`."""
        if self._on_start is not None:
            self._on_start(str(item.path), item.name)

    def pytest_tlmatrix_event(self, event: Event) -> None:
        """Count results, and pass the event on."""
        match event:
            case RunStarted():
                self._missing = sum(event.cases.values())
                self._unrecorded = ""
            case CaseFinished():
                self._missing -= 1
            case RunFinished():
                self._unrecorded = event.unrecorded
        self._report.handle(event)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep the error of a spec that could not be collected."""
        if report.failed and str(report.longrepr) not in self._errors:
            self._errors.append(str(report.longrepr))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note Ctrl-C. pytest also calls this if the run stops early (`-x`)."""
        self._interrupted = excinfo.type in (KeyboardInterrupt, Interrupted)
        if self._interrupted:
            self._report.note("interrupted; stopping the running cases")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Keep the command that continues the run."""
        from tlmatrix.plugin.state import state_of

        state = state_of(session.config)
        self._unrecorded = self._unrecorded or state.unrecorded
        self._resume = state.resume_command() if state.running else None
        self._passed_before = bool(state.settings.passed_before)

    def ending(self, status: int) -> Ending:
        """The outcome of the session, for which pytest returned `status`."""
        return Ending(
            status=status,
            missing=self._missing,
            interrupted=self._interrupted,
            passed_before=self._passed_before,
            resume=self._resume,
            errors=tuple(self._errors),
            output=self._muted.getvalue(),
            unrecorded=self._unrecorded,
        )


def exit_code(ending: Ending, console: Console) -> ExitCode:
    """The exit code of a command for a session; prints errors and how to continue."""

    def show(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show_resume_command() -> None:
        if ending.resume is not None:
            show(f"to continue this run: {ending.resume}")

    for error in ending.errors:
        show(error)
    if ending.interrupted:
        show_resume_command()
        return ExitCode.INTERRUPTED
    if ending.unrecorded:
        return ExitCode.INTERNAL
    match ending.status:
        case pytest.ExitCode.OK if ending.missing > 0:
            show_resume_command()
            return ExitCode.FINDINGS
        case pytest.ExitCode.OK:
            return ExitCode.OK
        case pytest.ExitCode.TESTS_FAILED:
            if ending.missing > 0:
                show_resume_command()
            return ExitCode.FINDINGS
        case pytest.ExitCode.INTERRUPTED if not ending.errors:
            # Stopped early by -x, or because the GPU was lost.
            show_resume_command()
            return ExitCode.FINDINGS
        case pytest.ExitCode.INTERRUPTED | pytest.ExitCode.USAGE_ERROR:
            return ExitCode.USAGE
        case pytest.ExitCode.NO_TESTS_COLLECTED if ending.passed_before:
            show("every case passed before; nothing to run")
            return ExitCode.OK
        case pytest.ExitCode.NO_TESTS_COLLECTED:
            show("no case matches -k")
            return ExitCode.USAGE
    # An internal error, which pytest's output shows.
    show(ending.output)
    return ExitCode.INTERNAL
