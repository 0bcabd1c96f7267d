"""pytest as the engine of commands: what it is called with, and our report in place of its own."""

from __future__ import annotations

import io
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import pytest
from rich.console import Console

from tlmatrix.exit_codes import ExitCode
from tlmatrix.run.events import CaseFinished, RunStarted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from tlmatrix.run.events import Event

__all__ = ["Ending", "Engine", "Listener", "console_on_output", "exit_code", "pytest_arguments"]


def pytest_arguments(
    arguments: argparse.Namespace, paths: Sequence[str], tier: str, workers: str
) -> list[str]:
    """What pytest is called with, to run cases of specs as `arguments` of a command ask."""
    words = list(paths)
    # A project's own default options (coverage, verbosity, warnings as errors) are meant for
    # its own tests, and its assertions are not ours to rewrite.
    words += ["-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:warnings", "--assert=plain"]
    # The summary of the one takes most of a second to import; the other warns of workers.
    words += ["-p", "no:hypothesispytest", "-p", "no:benchmark", "-n", workers]
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


@dataclass(frozen=True)
class Ending:
    """How a session of pytest ended, as data that another process can be sent."""

    status: int
    """What pytest returned."""
    missing: int = 0
    """Cases that were to run and have no result."""
    interrupted: bool = False
    """Whether it was Ctrl-C that ended it."""
    passed_before: bool = False
    """Whether cases were left out because they passed in the run that is resumed."""
    resume: str | None = None
    """The command that goes on, where there is something to go on with."""
    errors: tuple[str, ...] = ()
    """Of specs that could not be collected."""
    output: str = ""
    """What pytest itself printed."""


class Engine:
    """A pytest plugin that mutes pytest's own report and feeds ours.

    `judged` are cases, as (absolute path of the spec, id), that the session leaves out because the
    run has their results already. `on_start` is called with the path and id of a case that is about
    to run; where it is given, another process goes on with the run if a case ends this one.
    """

    def __init__(
        self,
        report: Listener,
        *,
        judged: frozenset[tuple[str, str]] = frozenset(),
        on_start: Callable[[str, str], None] | None = None,
    ) -> None:
        self._report = report
        self._judged = judged
        self._on_start = on_start
        self._muted = io.StringIO()
        self._interrupted = False
        self._errors: list[str] = []
        self._passed_before = False
        self._resume: str | None = None
        self._missing = 0

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Runs after pytest made its reporter, and before pytest-xdist takes hold of it."""
        from tlmatrix.plugin.state import state_of

        reporter = config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter._tw = type(reporter._tw)(self._muted)  # noqa: SLF001 - no public way
        state = state_of(config)
        state.expendable = state.is_worker or self._on_start is not None
        if self._judged:
            known = state.settings.passed_before | self._judged
            state.settings = replace(state.settings, passed_before=known)

    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """A case is about to run."""
        if self._on_start is not None:
            self._on_start(str(item.path), item.name)

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
            self._report.note("interrupted; ending what runs")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Say how to go on, when the results file is known."""
        from tlmatrix.plugin.state import state_of

        state = state_of(session.config)
        self._resume = state.resume_command() if state.running else None
        self._passed_before = bool(state.settings.passed_before)

    def ending(self, status: int) -> Ending:
        """How the session ended, when pytest has returned `status`."""
        return Ending(
            status=status,
            missing=self._missing,
            interrupted=self._interrupted,
            passed_before=self._passed_before,
            resume=self._resume,
            errors=tuple(self._errors),
            output=self._muted.getvalue(),
        )


def exit_code(ending: Ending, console: Console) -> ExitCode:
    """What the end of a session means for a command; prints what its report could not know."""

    def tell(words: str) -> None:
        console.print(words, markup=False, highlight=False, soft_wrap=True)

    def tell_how_to_go_on() -> None:
        if ending.resume is not None:
            tell(f"to go on where this stopped: {ending.resume}")

    for error in ending.errors:
        tell(error)
    if ending.interrupted:
        tell_how_to_go_on()
        return ExitCode.INTERRUPTED
    match ending.status:
        case pytest.ExitCode.OK:
            return ExitCode.OK
        case pytest.ExitCode.TESTS_FAILED:
            if ending.missing > 0:
                tell_how_to_go_on()
            return ExitCode.FINDINGS
        case pytest.ExitCode.INTERRUPTED if not ending.errors:
            # Stopped early: -x, or a GPU that is gone.
            tell_how_to_go_on()
            return ExitCode.FINDINGS
        case pytest.ExitCode.INTERRUPTED | pytest.ExitCode.USAGE_ERROR:
            return ExitCode.USAGE
        case pytest.ExitCode.NO_TESTS_COLLECTED if ending.passed_before:
            tell("every case passed before; none is left to run")
            return ExitCode.OK
        case pytest.ExitCode.NO_TESTS_COLLECTED:
            tell("no case matches -k")
            return ExitCode.USAGE
    # pytest's own words are all there is to go by.
    tell(ending.output)
    return ExitCode.INTERNAL
