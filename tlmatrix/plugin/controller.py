"""The reporting part of the plugin, in the controller of pytest-xdist or without workers.

It turns pytest's reports into events, records the cases of workers that ended, and prints at the
end where the results are and how to resume an interrupted run.
"""

from __future__ import annotations

import re
import shlex
import signal
import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr

from tlmatrix.plugin.crashes import lost_case
from tlmatrix.results_file import shown_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from _pytest._io import TerminalWriter
    from xdist.dsession import DSession
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling
    from xdist.workermanage import WorkerController

    from tlmatrix.plugin.state import State

__all__ = ["Controller"]

_NODE = re.compile(r"(?P<path>.*?\.ya?ml)::(?P<case>.*)")
"""The node id of a case."""


class _CaseRepr(TerminalRepr):
    """The representation of a failed case, of which pytest's summary shows the first line.

    Of a plain string it shows everything on CI and with `-vv`.
    """

    def __init__(self, text: str, node: str) -> None:
        self._text = text
        self.reprcrash = ReprFileLocation(node, 0, text.partition("\n")[0])

    def toterminal(self, tw: TerminalWriter) -> None:
        """Write the findings."""
        for line in self._text.splitlines():
            tw.line(line)

    def __str__(self) -> str:
        return self._text


class Controller:
    """Turns pytest's reports of one session into events."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._resumable = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send the result of a case."""
        data = getattr(report, "tlmatrix", None)
        if data is not None:
            from tlmatrix.run.result import CaseResult

            self._state.report_result(CaseResult.from_json(data))

    def pytest_keyboard_interrupt(self) -> None:
        """Mark the run as interrupted by Ctrl-C or `pytest.exit`."""
        self._state.interrupted = True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        """With workers, defer Ctrl-C until their current event is handled."""
        workers = session.config.pluginmanager.getplugin("dsession")
        if workers is None or threading.current_thread() is not threading.main_thread():
            return (yield)
        with deferred_interrupt(workers):
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """End the run, and fail it if it had cases but checked none."""
        alone = session.testscollected == self._state.counts.total()
        if exitstatus == pytest.ExitCode.OK and alone and self._state.nothing_judged:
            session.exitstatus = exitstatus = pytest.ExitCode.TESTS_FAILED
        self._state.end(int(exitstatus))
        reporter = self._state.config.pluginmanager.getplugin("terminalreporter")
        reports = [] if reporter is None else _case_reports(reporter)
        if not self._state.running or not any(report.failed for report in reports):
            return
        if self._state.config.option.verbose <= 0:
            self._show_groups_once(reports)
        for report in reports:
            if report.failed:
                report.longrepr = _CaseRepr(str(report.longrepr), report.nodeid)

    def _show_groups_once(self, reports: list[pytest.TestReport]) -> None:
        """Show one case of each group of failures; pytest's summary lists all."""
        from tlmatrix.report.text import describe_group
        from tlmatrix.run.result import CaseResult
        from tlmatrix.triage.groups import group_failures

        by_node = {}
        for report in reports:
            result = CaseResult.from_json(report.tlmatrix)
            by_node[result.node] = (result, report)
        for group in group_failures(result for result, _ in by_node.values()):
            if len(group.results) == 1:
                continue
            for result in group.results:
                _, report = by_node[result.node]
                if result.node == group.example.node:
                    report.longrepr = "\n".join(describe_group(group, width=self._state.width))
                else:
                    # pytest's debugger sets this to omit the section of a failure.
                    report._pdbshown = True  # type: ignore[attr-defined]  # noqa: SLF001

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print where the results are, and how to resume the run."""
        state = self._state
        if not state.running:
            return
        if state.covered is not None:
            from tlmatrix.report.coverage import coverage_lines

            command = f"tlmatrix coverage {shlex.quote(state.shown_results)}"
            for line in coverage_lines(
                state.covered, command, state.settings.coverage, state.width
            ):
                terminalreporter.write_line(line)
        terminalreporter.write_line(f"tlmatrix: results in {state.shown_results}")
        if state.unsupported:
            from tlmatrix.report.text import unsupported_text

            words = unsupported_text(state.unsupported, nothing=state.nothing_judged)
            terminalreporter.write_line(f"tlmatrix: {words}", yellow=True)
        if state.interrupted:
            terminalreporter.write_line(f"tlmatrix: to continue this run: {state.resume_command()}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        """Send the settings to a worker, which parses only the command line itself."""
        if self._state.config.getvalue("dist") == "loadgroup":
            self._state.groups_file.create()
        node.workerinput.update(self._state.worker_input(node.gateway.id))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        """Release the GPU of a worker that ended, for its replacement."""
        self._state.gpus.release(node.gateway.id)

    def pytest_report_header(self) -> list[str]:
        """The line about how workers share GPUs, if there are several."""
        if not self._state.workers:
            return []
        words = self._state.gpus.summary(self._state.workers)
        return [f"tlmatrix: {words}"] if words else []

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Begin the run when workers have collected the cases."""
        found = [match for match in map(_NODE.match, ids) if match]
        root = self._state.config.rootpath
        counts = Counter(match["path"] for match in found)
        self._state.begin({shown_path(root / path): count for path, count in counts.items()})

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """Record and report the case that a worker ran when it ended."""
        from tlmatrix.run.result import Status

        match = _NODE.match(crashitem)
        if match is None:
            return
        path = shown_path(self._state.config.rootpath / match["path"])
        settings = self._state.settings
        result = lost_case(
            settings.results_path, path, match["case"], asked=settings.backend, seed=settings.seed
        )
        report.longrepr = self._state.describe(result)
        if result.status is Status.KNOWN_BUG:
            report.outcome, report.wasxfail = "skipped", result.message
        report.tlmatrix = result.to_json()  # type: ignore[attr-defined]

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_make_scheduler(
        self, config: pytest.Config, log: Producer
    ) -> Scheduling | None:
        """Use `CaseScheduling` unless the user selected another scheduler."""
        if config.getvalue("dist") != "loadgroup":
            return None
        from tlmatrix.plugin.scheduler import CaseScheduling

        return CaseScheduling(config, log, self._state.groups_file.read)


@contextmanager
def deferred_interrupt(workers: DSession) -> Iterator[None]:
    """Raise the first Ctrl-C between two events of workers, and a second one at once.

    At any other point it may leave the lock of the event queue held, and pytest-xdist ends with an
    internal error. An ignored SIGINT, as in background jobs of a script, stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return

    def raise_interrupt() -> NoReturn:
        raise KeyboardInterrupt

    def enqueue(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        # In a thread, because this one may hold the lock of the queue.
        event: tuple[str, dict[str, object]] = ("tlmatrix_interrupted", {})
        threading.Thread(target=workers.queue.put, args=(event,), daemon=True).start()

    workers.worker_tlmatrix_interrupted = raise_interrupt
    before = signal.signal(signal.SIGINT, enqueue)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _case_reports(reporter: pytest.TerminalReporter) -> list[pytest.TestReport]:
    """The reports of cases that have a result."""
    return [
        report
        for reports in reporter.stats.values()
        for report in reports
        if getattr(report, "tlmatrix", None) is not None
    ]
