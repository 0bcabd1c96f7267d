"""The last line of a run counts all cases, also those that did not run."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

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
def test_cases_that_did_not_run_are_counted(run: int, interrupted: bool, words: str) -> None:
    text = io.StringIO()
    report = TerminalReport(Console(file=text, width=100))
    report.handle(RunStarted({"x.yaml": 3}, None))
    for number in range(run):
        result = CaseResult(spec="x", path="x.yaml", case=f"n={number}", status=Status.PASSED)
        report.handle(CaseFinished(result))
    report.handle(RunFinished({Status.PASSED: run}, 1.0, interrupted))
    assert text.getvalue().rstrip().endswith(words)
