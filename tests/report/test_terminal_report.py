"""The last line of a run counts all cases, also those that did not run."""

import io
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from report.synthetic import case, many
from tlmatrix.report.terminal import TerminalReport
from tlmatrix.run import CaseResult, Status
from tlmatrix.run.events import CaseFinished, RunFinished, RunStarted


@pytest.mark.parametrize(
    ("run", "interrupted", "words"),
    [
        (3, False, "3 passed"),
        (2, True, "2 passed; stopped early, 1 not run"),
        (2, False, "2 passed; 1 not run"),
    ],
)
def test_cases_that_did_not_run_are_counted(run, interrupted, words):
    text = io.StringIO()
    report = TerminalReport(Console(file=text, width=100))
    report.handle(RunStarted({"x.yaml": 3}, None))
    for number in range(run):
        result = CaseResult(spec="x", path="x.yaml", case=f"n={number}", status=Status.PASSED)
        report.handle(CaseFinished(result))
    report.handle(RunFinished({Status.PASSED: run}, 1.0, interrupted))
    assert text.getvalue().rstrip().endswith(words)


def _printed(console, results):
    report = TerminalReport(console)
    report.handle(RunStarted(Counter(result.path for result in results), "results.jsonl"))
    for result in results:
        report.handle(CaseFinished(result))
    report.handle(RunFinished(Counter(r.status for r in results), 1.0, interrupted=False))


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("terminal", [True, False])
def test_lines_fit_the_width_but_for_commands(width, terminal):
    text = io.StringIO()
    console = Console(file=text, width=width, force_terminal=terminal, color_system=None)
    _printed(console, list(many(300)))
    lines = text.getvalue().replace("\r", "\n").splitlines()
    plain = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in lines]
    copied = ("repro", "-k '", "found as")
    long = [line for line in plain if len(line.rstrip()) > width]
    assert all(any(word in line for word in copied) for line in long), long
    assert any("300 cases in 1.0 s" in line for line in plain)


def test_a_pipe_gets_no_control_codes_and_few_lines(monkeypatch):
    text = io.StringIO()
    _printed(Console(file=text, width=120), [case(n) for n in range(5000)])
    assert "\x1b" not in text.getvalue()
    assert len(text.getvalue().splitlines()) < 12
    monkeypatch.setenv("NO_COLOR", "1")
    text = io.StringIO()
    _printed(Console(file=text, width=80, force_terminal=True), [case(1, Status.FAILED)])
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", text.getvalue())  # bold may stay


def test_the_report_keeps_up_with_2000_records_a_second():
    results = [case(n) for n in range(5000)]
    for terminal in (True, False):
        console = Console(file=io.StringIO(), width=80, force_terminal=terminal)
        report = TerminalReport(console)
        report.handle(RunStarted({"specs/x.yaml": len(results)}, None))
        begin = time.monotonic()
        for result in results:
            report.handle(CaseFinished(result))
        spent = time.monotonic() - begin
        report.close()
        assert spent < len(results) / 2000


def test_the_time_left_is_printed_while_cases_run(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("tlmatrix.report.terminal.time.monotonic", lambda: now[0])
    text = io.StringIO()
    path = Path("specs/x.yaml").resolve()
    report = TerminalReport(Console(file=text, width=120), earlier={path: 2.0})
    report.handle(RunStarted({"specs/x.yaml": 100}, None))
    for number in range(20):
        now[0] += 2.0
        report.handle(CaseFinished(case(number, seconds=2.0)))
    assert "16/100  x  32 s  3 min left" in text.getvalue()
