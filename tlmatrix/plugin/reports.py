"""What a session reports, in the controller of pytest-xdist or without workers.

It counts results, records the cases of workers that ended, and prints at the
end where the results are and how to resume an interrupted run.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr

from tlmatrix.cache_files import cache_notes
from tlmatrix.options.table import COVERAGE
from tlmatrix.plugin.session import NODE

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from _pytest._io import TerminalWriter
    from xdist.workermanage import WorkerController

    from tlmatrix.plugin.session import Session


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


class Reports:
    """The hooks of the reporting process of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the result of a case, also of one that pytest did not run."""
        run = self._session.run
        run.unrecorded = run.unrecorded or getattr(report, "unrecorded", "")
        data = getattr(report, "tlmatrix", None)
        if data is not None:
            from tlmatrix.run.result import CaseResult

            run.add(CaseResult.from_json(data))
        elif not report.passed and (found := NODE.match(report.nodeid)):
            self._report_unjudged(found, report)

    def _report_unjudged(self, node: re.Match[str], report: pytest.TestReport) -> None:
        from tlmatrix.matrix import CaseNotFoundError
        from tlmatrix.spec.issues import SpecError

        path, case = self._session.shown(node), node["case"]
        if self._session.run.has_result(path, case):
            return  # an error of the teardown, which pytest reports
        with suppress(CaseNotFoundError, SpecError):
            self._session.run.add(self._session.record_unjudged(path, case, report))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note that Ctrl-C or `pytest.exit` interrupted the session."""
        ctrl_c = issubclass(excinfo.type, KeyboardInterrupt)
        self._session.interrupted = "Ctrl-C" if ctrl_c else str(excinfo.value)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """End the run; fail it if it checked no case, a case has no result, or records are lost."""
        run = self._session.run
        if not run.began:
            return
        alone = session.testscollected == run.counts.total()
        green = exitstatus == pytest.ExitCode.OK
        if green and ((alone and run.nothing_judged) or run.missing > 0):
            session.exitstatus = exitstatus = pytest.ExitCode.TESTS_FAILED
        interrupted = self._session.interrupted
        reason = session.shouldfail or session.shouldstop
        stopped = interrupted or (reason if isinstance(reason, str) else "")
        run.end(int(exitstatus), interrupted=bool(interrupted), stopped=stopped)
        if run.unrecorded:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        reporter = self._session.config.pluginmanager.getplugin("terminalreporter")
        reports = [] if reporter is None else _case_reports(reporter)
        if not any(report.failed for report in reports):
            return
        if self._session.config.option.verbose <= 0:
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
                    report.longrepr = "\n".join(describe_group(group, width=self._session.width))
                else:
                    # pytest's debugger sets this to omit the section of a failure.
                    report._pdbshown = True  # type: ignore[attr-defined]  # noqa: SLF001

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print where the results are, and how to resume the run."""
        run = self._session.run
        if not run.began:
            return
        if run.covered is not None:
            from tlmatrix.report.coverage import coverage_lines

            command = f"tlmatrix coverage {shlex.quote(run.shown_results)}"
            detail = run.settings.options[COVERAGE]
            for line in coverage_lines(run.covered, command, detail, self._session.width):
                terminalreporter.write_line(line)
        if run.unrecorded:
            words = f"results are missing in {run.shown_results}: {run.unrecorded}"
            terminalreporter.write_line(f"tlmatrix: {words}", red=True)
        else:
            terminalreporter.write_line(f"tlmatrix: results in {run.shown_results}")
        for note in cache_notes():
            terminalreporter.write_line(f"tlmatrix: {note}")
        if run.missing > 0 and not self._session.interrupted:
            words = f"{run.missing} of {run.planned} planned cases did not run"
            terminalreporter.write_line(f"tlmatrix: {words}", yellow=True)
        if run.unsupported:
            from tlmatrix.report.text import unsupported_text

            words = unsupported_text(run.unsupported, nothing=run.nothing_judged)
            terminalreporter.write_line(f"tlmatrix: {words}", yellow=True)
        if self._session.interrupted:
            terminalreporter.write_line(f"tlmatrix: to continue this run: {run.resume_command}")

    def pytest_report_header(self) -> list[str]:
        """The problems of a resumed results file, and how workers share several GPUs."""
        session = self._session
        words = [*session.settings.problems, *session.settings.again]
        if session.workers:
            words.append(session.gpus.summary(session.workers))
        return [f"tlmatrix: {each}" for each in words if each]

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        """Send the settings to a worker, which parses only the command line itself."""
        node.workerinput["tlmatrix"] = self._session.worker_input(node.gateway.id)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        """Release the GPU of a worker that ended, for its replacement."""
        self._session.gpus.release(node.gateway.id)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Begin the run when workers have collected the cases."""
        cases: dict[str, list[str]] = {}
        for match in filter(None, map(NODE.match, ids)):
            cases.setdefault(self._session.shown(match), []).append(match["case"])
        self._session.begin(cases)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """Record and report the case that a worker ran when it ended."""
        from tlmatrix.run.result import Status

        match = NODE.match(crashitem)
        if match is None:
            return
        result = self._session.record_lost(self._session.shown(match), match["case"])
        report.longrepr = self._session.describe(result)
        if result.status is Status.KNOWN_BUG:
            report.outcome, report.wasxfail = "skipped", result.message
        report.tlmatrix = result.to_json()  # type: ignore[attr-defined]


def _case_reports(reporter: pytest.TerminalReporter) -> list[pytest.TestReport]:
    """The reports of cases that have a result."""
    return [
        report
        for reports in reporter.stats.values()
        for report in reports
        if getattr(report, "tlmatrix", None) is not None
    ]
