"""The part of the plugin that reports: in the controller of pytest-xdist, or without workers.

It turns pytest's reports into events, records what a worker could not record because it is gone,
and says at the end where the results are and how an interrupted run goes on.
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
"""A case as pytest names it."""


class _Told(TerminalRepr):
    """What a failed case prints.

    pytest's summary shows the whole of a text on CI and at `-vv`; of this it shows the headline.
    """

    def __init__(self, text: str, node: str) -> None:
        self._text = text
        self.reprcrash = ReprFileLocation(node, 0, text.partition("\n")[0])

    def toterminal(self, tw: TerminalWriter) -> None:
        """The findings, as they are."""
        for line in self._text.splitlines():
            tw.line(line)

    def __str__(self) -> str:
        return self._text


class Controller:
    """Reads pytest's reports for one session."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._resumable = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A case has its result."""
        data = getattr(report, "tlmatrix", None)
        if data is not None:
            from tlmatrix.run.result import CaseResult

            self._state.finished(CaseResult.from_json(data))

    def pytest_keyboard_interrupt(self) -> None:
        """Ctrl-C, or `pytest.exit`: what ran is on record, the rest is not."""
        self._state.interrupted = True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        """With workers, Ctrl-C waits for its turn among what they say."""
        workers = session.config.pluginmanager.getplugin("dsession")
        if workers is None or threading.current_thread() is not threading.main_thread():
            return (yield)
        with interrupted_in_turn(workers):
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Nothing more will run; a run of cases that judged none is no success."""
        alone = session.testscollected == self._state.counts.total()
        if exitstatus == pytest.ExitCode.OK and alone and self._state.nothing_judged:
            session.exitstatus = exitstatus = pytest.ExitCode.TESTS_FAILED
        self._state.end(int(exitstatus))
        reporter = self._state.config.pluginmanager.getplugin("terminalreporter")
        reports = [] if reporter is None else _case_reports(reporter)
        if not self._state.running or not any(report.failed for report in reports):
            return
        if self._state.config.option.verbose <= 0:
            self._tell_groups_once(reports)
        for report in reports:
            if report.failed:
                report.longrepr = _Told(str(report.longrepr), report.nodeid)

    def _tell_groups_once(self, reports: list[pytest.TestReport]) -> None:
        """Of cases that fail alike, leave one to be shown; pytest's summary lists them all."""
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
                    # What pytest's debugger sets on a failure it has shown: no section of its own.
                    report._pdbshown = True  # type: ignore[attr-defined]  # noqa: SLF001

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Where the results are, and how to go on."""
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
        if state.refused:
            from tlmatrix.report.text import refused_words

            words = refused_words(state.refused, nothing=state.nothing_judged)
            terminalreporter.write_line(f"tlmatrix: {words}", yellow=True)
        if state.interrupted:
            terminalreporter.write_line(
                f"tlmatrix: to go on where this stopped: {state.resume_command()}"
            )

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        """What a worker must know: it reads the command line again, but not what became of it."""
        if self._state.config.getvalue("dist") == "loadgroup":
            self._state.sharing.ask()
        node.workerinput.update(self._state.for_worker(node.gateway.id))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        """A worker ended; the one in its place gets its GPU."""
        self._state.gpus.release(node.gateway.id)

    def pytest_report_header(self) -> list[str]:
        """Say how workers share GPUs, where there are several."""
        if not self._state.workers:
            return []
        words = self._state.gpus.summary(self._state.workers)
        return [f"tlmatrix: {words}"] if words else []

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """With workers: cases are known, the run is about to begin."""
        found = [match for match in map(_NODE.match, ids) if match]
        root = self._state.config.rootpath
        counts = Counter(match["path"] for match in found)
        self._state.begin({shown_path(root / path): count for path, count in counts.items()})

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """A worker is gone, and with it the case it was running: say so in its place."""
        from tlmatrix.run.result import Status

        match = _NODE.match(crashitem)
        if match is None:
            return
        path = shown_path(self._state.config.rootpath / match["path"])
        settings = self._state.settings
        result = lost_case(
            settings.results_path,
            path,
            match["case"],
            requested=settings.backend,
            seed=settings.seed,
        )
        report.longrepr = self._state.describe(result)
        if result.status is Status.KNOWN_BUG:
            report.outcome, report.wasxfail = "skipped", result.message
        report.tlmatrix = result.to_json()  # type: ignore[attr-defined]

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_make_scheduler(
        self, config: pytest.Config, log: Producer
    ) -> Scheduling | None:
        """Cases that share kernels stay together, and one that crashed is not run again."""
        if config.getvalue("dist") != "loadgroup":
            return None
        from tlmatrix.plugin.scheduler import CaseScheduling

        return CaseScheduling(config, log, self._state.sharing.read)


@contextmanager
def interrupted_in_turn(workers: DSession) -> Iterator[None]:
    """Inside, Ctrl-C is raised between two events of workers, and at once when it comes again.

    Raised anywhere, it also falls between the lock of the queue and its release, and pytest-xdist
    ends in an internal error. Where it is ignored, as in a script's background jobs, it stays so.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return

    def raise_it() -> NoReturn:
        raise KeyboardInterrupt

    def tell(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        # A thread: this one may hold the queue's lock.
        event: tuple[str, dict[str, object]] = ("tlmatrix_interrupted", {})
        threading.Thread(target=workers.queue.put, args=(event,), daemon=True).start()

    workers.worker_tlmatrix_interrupted = raise_it
    before = signal.signal(signal.SIGINT, tell)
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
