"""`tlmatrix replay`: runs the regressions of specs.

They run like any case, by default in a worker process, because a case that once crashed its process
may do so again.
"""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from typing import TYPE_CHECKING

from tlmatrix.commands.run import select, show_ending
from tlmatrix.commands.screen import console_on_output
from tlmatrix.commands.specs import plan_all, spec_paths
from tlmatrix.engine.cases import run_cases
from tlmatrix.engine.run import Run
from tlmatrix.engine.selection import processors
from tlmatrix.engine.settings import RunSettings
from tlmatrix.exit_codes import ExitCode
from tlmatrix.fuzz.corpus import Verdict, reason, verdict
from tlmatrix.options.table import ONLY, TIER
from tlmatrix.report.text import count
from tlmatrix.run.events import CaseFinished

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rich.console import Console

    from tlmatrix.config import Config
    from tlmatrix.run.events import Event
    from tlmatrix.run.plan import Plan
    from tlmatrix.run.result import CaseResult
    from tlmatrix.spec.model.spec import Regression

_TIER = "smoke"
"""Every tier runs the regressions; this one is planned fastest."""


def replay(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Run the regressions of specs, and report a verdict on each.

    Raises:
        UsageError: a path does not exist.
        SpecError: a spec is invalid.
    """
    plans = plan_all(spec_paths(arguments.paths, config), _TIER, roots=[config.root])
    plans = [plan for plan in plans if plan.spec.regressions]
    total = sum(len(plan.spec.regressions) for plan in plans)
    if not total:
        print("no regressions")
        return ExitCode.OK
    chosen = {**vars(arguments), TIER.name: _TIER, ONLY.name: "regressions"}
    settings = RunSettings.of(chosen, config, config.root)
    selected = list(select(plans, [()] * len(plans), settings, config.root))
    workers = processors() if arguments.workers == "auto" else int(arguments.workers)
    with console_on_output() as console:
        report = _Report(console, plans)
        paths = [str(plan.spec.path) for plan in plans]
        command = shlex.join(["tlmatrix", *sys.argv[1:]])
        session = Run(settings, config, report, paths=paths, command=command)
        code = run_cases(session, selected, workers=workers)
        show_ending(session, console)
        report.close()
    if code not in (ExitCode.OK, ExitCode.FINDINGS):
        return code
    unfixed = report.counts[Verdict.FAILED] + report.counts[Verdict.ERROR]
    return ExitCode.FINDINGS if unfixed else ExitCode.OK


class _Report:
    """Prints a verdict for each regression as it ends; counts and advice at the end."""

    def __init__(self, console: Console, plans: Sequence[Plan]) -> None:
        self._console = console
        self._regressions: dict[str, dict[str, Regression]] = {}
        self._specs = len(plans)
        self.results: dict[str, CaseResult] = {}
        self.counts: Counter[Verdict] = Counter()
        for plan in plans:
            ids = [case.id for case in plan.cases() if case.origin == "regression"]
            entries = zip(ids, plan.spec.regressions, strict=False)
            self._regressions[str(plan.spec.path)] = dict(entries)

    def handle(self, event: Event) -> None:
        """Print the verdict of a case that ended; ignore other events."""
        if not isinstance(event, CaseFinished):
            return
        result = event.result
        state = verdict(result)
        self.results[result.case] = result
        self.counts[state] += 1
        self._print(f"{state:<8}{result.node}")
        entry = self._regressions.get(result.path, {}).get(result.case)
        if entry is not None and (entry.failed or entry.issue):
            origin = ", ".join(part for part in (entry.issue, entry.failed) if part)
            self._print(f"{'':8}found with: {origin}")
        if text := reason(result):
            self._print(f"{'':8}{text}")
        if state in (Verdict.FAILED, Verdict.ERROR):
            self._print(f"{'':8}{result.command}")

    def note(self, text: str) -> None:
        """Print a note."""
        self._print(text)

    def close(self) -> None:
        """Print the counts."""
        total = sum(self.counts.values())
        counts = ", ".join(f"{self.counts[each]} {each.lower()}" for each in Verdict)
        self._print(f"{count(total, 'regression')} of {count(self._specs, 'spec')}: {counts}")
        if self.counts[Verdict.FIXED]:
            self._print("fixed regressions still run first in all tiers; delete those of no use")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
