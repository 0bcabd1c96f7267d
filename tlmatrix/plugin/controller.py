"""The reporting part of the plugin, in the controller of pytest-xdist or without workers.

It turns pytest's reports into events, records the cases of workers that ended, and prints at the
end where the results are and how to resume an interrupted run.
"""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr

from tlmatrix.cache_files import cache_notes
from tlmatrix.options.table import BACKEND, COVERAGE, SEED
from tlmatrix.plugin.crashes import lost_case, unjudged_case
from tlmatrix.plugin.ctrl_c import CtrlC
from tlmatrix.results_file import shown_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from _pytest._io import TerminalWriter
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling
    from xdist.workermanage import WorkerController

    from tlmatrix.plugin.state import State

_NODE = re.compile(r"(?P<path>(?:(?!::).)*\.ya?ml)::(?P<case>.*)")
"""The node id of a case; ids of other tests may have `.yaml::` in a parameter."""


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
        self._interrupt = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send the result of a case, also of one that pytest did not run."""
        self._state.worker_error = self._state.worker_error or getattr(report, "unrecorded", "")
        data = getattr(report, "tlmatrix", None)
        if data is not None:
            from tlmatrix.run.result import CaseResult

            self._state.report_result(CaseResult.from_json(data))
        elif not report.passed and (found := _NODE.match(report.nodeid)):
            self._report_unjudged(found, report)

    def _report_unjudged(self, node: re.Match[str], report: pytest.TestReport) -> None:
        from tlmatrix.matrix import CaseNotFoundError
        from tlmatrix.spec.issues import SpecError

        path = shown_path(self._state.config.rootpath / node["path"])
        if self._state.has_result(path, node["case"]):
            return  # an error of the teardown, which pytest reports
        with suppress(CaseNotFoundError, SpecError):
            result = unjudged_case(
                self._state.records(), path, node["case"], report, self._state.settings
            )
            self._state.report_result(result)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Mark the run as interrupted by Ctrl-C or `pytest.exit`."""
        from tlmatrix.run.limits import Interrupted

        self._state.interrupted = True
        ctrl_c = excinfo.type in (KeyboardInterrupt, Interrupted)
        self._interrupt = "Ctrl-C" if ctrl_c else str(excinfo.value)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        """Handle Ctrl-C until the session has ended, if it has workers or cases."""
        workers = session.config.pluginmanager.getplugin("dsession")
        if workers is not None or self._state.running:
            self._state.ctrl_c = CtrlC(workers, self._state.interrupt)
            self._state.ctrl_c.install()
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Restore the handler of Ctrl-C."""
        self._state.ctrl_c.restore()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """End the run; fail it if it checked no case, a case has no result, or records are lost."""
        alone = session.testscollected == self._state.counts.total()
        green = exitstatus == pytest.ExitCode.OK
        if green and ((alone and self._state.nothing_judged) or self._state.missing > 0):
            session.exitstatus = exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._state.interrupted and green:
            session.exitstatus = exitstatus = pytest.ExitCode.INTERRUPTED
        self._state.end(int(exitstatus), self._stopped(session))
        if self._state.unrecorded:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        reporter = self._state.config.pluginmanager.getplugin("terminalreporter")
        reports = [] if reporter is None else _case_reports(reporter)
        if not self._state.running or not any(report.failed for report in reports):
            return
        if self._state.config.option.verbose <= 0:
            self._show_groups_once(reports)
        for report in reports:
            if report.failed:
                report.longrepr = _CaseRepr(str(report.longrepr), report.nodeid)

    def _stopped(self, session: pytest.Session) -> str:
        """Why the session ended before all cases ran; "" if it is unknown."""
        if self._interrupt == "Ctrl-C":
            return self._interrupt
        reason = session.shouldfail or session.shouldstop
        return str(reason) if isinstance(reason, str) else self._interrupt

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
                state.covered, command, state.options[COVERAGE], state.width
            ):
                terminalreporter.write_line(line)
        if state.unrecorded:
            words = f"results are missing in {state.shown_results}: {state.unrecorded}"
            terminalreporter.write_line(f"tlmatrix: {words}", red=True)
        else:
            terminalreporter.write_line(f"tlmatrix: results in {state.shown_results}")
        for note in cache_notes():
            terminalreporter.write_line(f"tlmatrix: {note}")
        if state.missing > 0 and not state.interrupted:
            words = f"{state.missing} of {state.planned} planned cases did not run"
            terminalreporter.write_line(f"tlmatrix: {words}", yellow=True)
        if state.unsupported:
            from tlmatrix.report.text import unsupported_text

            words = unsupported_text(state.unsupported, nothing=state.nothing_judged)
            terminalreporter.write_line(f"tlmatrix: {words}", yellow=True)
        if state.interrupted:
            terminalreporter.write_line(f"tlmatrix: to continue this run: {state.resume_command()}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config) -> None:
        """Fork the workers of a session of specs from a server that has their imports."""
        from tlmatrix.plugin.forked_workers import fork_workers, only_specs

        if sys.platform == "linux" and only_specs(config.args):
            fork_workers(config.pluginmanager.getplugin("dsession").nodemanager.group)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        """Send the settings to a worker, which parses only the command line itself."""
        if self._state.config.getvalue("dist") == "loadgroup" or self._state.settings.shard:
            self._state.groups_file.create()
        node.workerinput.update(self._state.worker_input(node.gateway.id))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        """Release the GPU of a worker that ended, for its replacement."""
        self._state.gpus.release(node.gateway.id)

    def pytest_report_header(self) -> list[str]:
        """The problems of a resumed results file, and how workers share several GPUs."""
        words = list(self._state.settings.problems)
        if self._state.workers:
            words.append(self._state.gpus.summary(self._state.workers))
        return [f"tlmatrix: {each}" for each in words if each]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Begin the run when workers have collected the cases."""
        root = self._state.config.rootpath
        cases: dict[str, list[str]] = {}
        for match in filter(None, map(_NODE.match, ids)):
            cases.setdefault(shown_path(root / match["path"]), []).append(match["case"])
        if self._state.settings.shard is not None:
            self._state.shard_plan = self._state.groups_file.plan()
        self._state.begin(cases)

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
            self._state.records(),
            path,
            match["case"],
            requested=settings.options[BACKEND],
            seed=settings.options[SEED],
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


def _case_reports(reporter: pytest.TerminalReporter) -> list[pytest.TestReport]:
    """The reports of cases that have a result."""
    return [
        report
        for reports in reporter.stats.values()
        for report in reports
        if getattr(report, "tlmatrix", None) is not None
    ]
