"""`tlmatrix replay`: runs the regressions of specs and retires fixed ones.

pytest runs them like any case, by default in a worker process, because a case that once crashed
its process may do so again.
"""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tlmatrix.commands.engine import Engine, console_on_output, exit_code, pytest_arguments
from tlmatrix.commands.specs import plan_all, spec_paths
from tlmatrix.exit_codes import ExitCode, UsageError
from tlmatrix.fuzz.replay import Verdict, reason, verdict
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
    """Run the regressions of specs, report a verdict on each, and retire the one of `--retire`.

    Raises:
        UsageError: the arguments are invalid.
        SpecError: a spec is invalid, or the regression to retire does not exist or is not fixed.
    """
    if (arguments.retire is None) != (arguments.because is None):
        raise UsageError("--retire ID needs --because REASON, and the reverse")
    if arguments.unfixed and arguments.retire is None:
        raise UsageError("--unfixed needs --retire ID")
    path, _, named = (arguments.retire or "").rpartition("::")
    given = [*arguments.paths, *([path] if path and path not in arguments.paths else [])]
    plans = plan_all(spec_paths(given, config), _TIER, roots=[config.root])
    if named:
        plans = [_plan_with_regression(plans, named)]
    plans = [plan for plan in plans if plan.spec.regressions]
    total = sum(len(plan.spec.regressions) for plan in plans)
    if not total:
        print("no regressions")
        return ExitCode.OK
    nodes = [f"{plan.spec.path}::{named}" if named else str(plan.spec.path) for plan in plans]
    with console_on_output() as console:
        report = _Report(console, plans)
        engine = Engine(report)
        words = pytest_arguments(arguments, nodes, _TIER, arguments.workers)
        status = pytest.main([*words, "--tlmatrix-only", "regressions"], plugins=[engine])
        code = exit_code(engine.ending(int(status)), console)
        report.close()
    if code not in (ExitCode.OK, ExitCode.FINDINGS):
        return code
    if named:
        _retire(plans[0], named, report.results[named], arguments)
        return ExitCode.OK
    unfixed = report.counts[Verdict.FAILED] + report.counts[Verdict.ERROR]
    return ExitCode.FINDINGS if unfixed else ExitCode.OK


def _plan_with_regression(plans: Sequence[Plan], case_id: str) -> Plan:
    """The only plan whose spec has a regression with this id."""
    from tlmatrix.fuzz.corpus import regression_number
    from tlmatrix.spec.issues import SpecError

    found, problems = [], []
    for plan in plans:
        try:
            regression_number(plan.spec, case_id)
            found.append(plan)
        except SpecError as error:
            problems.append(error)
    if len(found) > 1:
        paths = ", ".join(str(plan.spec.path) for plan in found)
        raise UsageError(f"{case_id} is a regression of {paths}; write SPEC.yaml::ID")
    if not found:
        raise SpecError(issue for problem in problems for issue in problem.issues)
    return found[0]


def _retire(plan: Plan, case_id: str, result: CaseResult, arguments: argparse.Namespace) -> None:
    from tlmatrix.fuzz.corpus import regression_number, retire
    from tlmatrix.spec.issues import SpecError

    state = verdict(result)
    if state is not Verdict.FIXED and not arguments.unfixed:
        number = regression_number(plan.spec, case_id)
        words = {
            Verdict.FAILED: "still fails",
            Verdict.ERROR: "ends in an error",
            Verdict.SKIPPED: "could not be judged here",
        }[state]
        message = (
            f"{case_id} {words} ({reason(result)}), and retired cases do not run; fix it first, "
            "or give --unfixed"
        )
        raise SpecError([plan.spec.issue(("regressions", number), message)])
    retire(Path(plan.spec.path), case_id, arguments.because)
    print(f"retired, because {arguments.because}; it is now under `retired` in {plan.spec.path}")


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
        """Print the counts, and how to retire a fixed regression."""
        total = sum(self.counts.values())
        counts = ", ".join(f"{self.counts[each]} {each.lower()}" for each in Verdict)
        self._print(f"{count(total, 'regression')} of {count(self._specs, 'spec')}: {counts}")
        fixed = next((r for r in self.results.values() if verdict(r) is Verdict.FIXED), None)
        if fixed is not None:
            command = f"tlmatrix replay --retire {shlex.quote(fixed.node)} --because REASON"
            self._print(f"fixed regressions still run first in all tiers; to retire one: {command}")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
