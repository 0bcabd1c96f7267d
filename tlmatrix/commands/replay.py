"""`tlmatrix replay`: are the regressions of specs fixed? `--retire` takes one out, with a reason.

pytest runs them as it runs every case, in a worker of its own by default: what once crashed a
process may crash it again.
"""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tlmatrix.commands.run import Engine, console_on_output, pytest_arguments
from tlmatrix.commands.specs import plan_all, spec_paths
from tlmatrix.exit_codes import ExitCode, UsageError
from tlmatrix.fuzz.replay import Verdict, reason, verdict
from tlmatrix.report.text import count
from tlmatrix.run.events import CaseFinished

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from tlmatrix.config import Config
    from tlmatrix.run.events import Event
    from tlmatrix.run.plan import Plan
    from tlmatrix.run.result import CaseResult
    from tlmatrix.spec.models import Regression

__all__ = ["replay"]

_TIER = "smoke"
"""Every tier runs the regressions; this one is the soonest planned."""


def replay(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Run the regressions of specs and say how each stands; then retire the one that is named.

    Raises:
        UsageError: the arguments make no sense.
        SpecError: a spec is wrong, or the regression to retire is not there, or not fixed.
    """
    if (arguments.retire is None) != (arguments.because is None):
        raise UsageError("--retire ID goes with --because REASON")
    if arguments.unfixed and arguments.retire is None:
        raise UsageError("--unfixed goes with --retire ID")
    path, _, named = (arguments.retire or "").rpartition("::")
    given = [*arguments.paths, *([path] if path and path not in arguments.paths else [])]
    plans = plan_all(spec_paths(given, config), _TIER, roots=[config.root])
    if named:
        plans = [_holder(plans, named)]
    plans = [plan for plan in plans if plan.spec.regressions]
    total = sum(len(plan.spec.regressions) for plan in plans)
    if not total:
        print("no regressions")
        return ExitCode.OK
    nodes = [f"{plan.spec.path}::{named}" if named else str(plan.spec.path) for plan in plans]
    with console_on_output() as console:
        report = _Report(console, plans)
        engine = Engine(report)
        words = pytest_arguments(_for_run(arguments), nodes, _TIER)
        status = pytest.main([*words, "--tlmatrix-only", "regressions"], plugins=[engine])
        code = engine.exit_code(int(status), console)
        report.close()
    if code not in (ExitCode.OK, ExitCode.FINDINGS):
        return code
    if named:
        _retire(plans[0], named, report.results[named], arguments)
        return ExitCode.OK
    unfixed = report.counts[Verdict.FAILED] + report.counts[Verdict.ERROR]
    return ExitCode.FINDINGS if unfixed else ExitCode.OK


def _holder(plans: Sequence[Plan], case_id: str) -> Plan:
    """The one spec that has a regression of that id."""
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


def _for_run(arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments as `tlmatrix run` has them; what it alone takes is not given."""
    absent: dict[str, object] = dict.fromkeys(
        ("resume", "arch", "coverage", "junitxml", "unsupported")
    )
    absent |= {"select": "", "exitfirst": False, "no_fuzz": True}
    return argparse.Namespace(**{**absent, **vars(arguments)})


def _retire(plan: Plan, case_id: str, result: CaseResult, arguments: argparse.Namespace) -> None:
    from tlmatrix.fuzz.corpus import regression_number, retire
    from tlmatrix.spec.issues import SpecError

    stands = verdict(result)
    if stands is not Verdict.FIXED and not arguments.unfixed:
        number = regression_number(plan.spec, case_id)
        words = {
            Verdict.FAILED: "still fails",
            Verdict.ERROR: "ends in an error",
            Verdict.SKIPPED: "could not be judged here",
        }[stands]
        message = (
            f"{case_id} {words} ({reason(result)}), and a retired case runs no more; fix it first, "
            "or say --unfixed"
        )
        raise SpecError([plan.spec.issue(("regressions", number), message)])
    retire(Path(plan.spec.path), case_id, arguments.because)
    print(f"retired, because {arguments.because}; it stands under `retired` in {plan.spec.path}")


class _Report:
    """A line a regression, as it is known; counts and what to do at the end."""

    def __init__(self, console: Console, plans: Sequence[Plan]) -> None:
        self._console = console
        self._kept: dict[str, dict[str, Regression]] = {}
        self._specs = len(plans)
        self.results: dict[str, CaseResult] = {}
        self.counts: Counter[Verdict] = Counter()
        for plan in plans:
            ids = [case.id for case in plan.cases() if case.origin == "regression"]
            entries = zip(ids, plan.spec.regressions, strict=False)
            self._kept[str(plan.spec.path)] = dict(entries)

    def handle(self, event: Event) -> None:
        """Something happened in the run."""
        if not isinstance(event, CaseFinished):
            return
        result = event.result
        stands = verdict(result)
        self.results[result.case] = result
        self.counts[stands] += 1
        self._print(f"{stands:<8}{result.node}")
        entry = self._kept.get(result.path, {}).get(result.case)
        if entry is not None and (entry.failed or entry.issue):
            told = ", ".join(part for part in (entry.issue, entry.failed) if part)
            self._print(f"{'':8}found with: {told}")
        if words := reason(result):
            self._print(f"{'':8}{words}")
        if stands in (Verdict.FAILED, Verdict.ERROR):
            self._print(f"{'':8}{result.command}")

    def note(self, words: str) -> None:
        """Something to know in between."""
        self._print(words)

    def close(self) -> None:
        """The counts, and how a fixed one is retired."""
        total = sum(self.counts.values())
        told = ", ".join(f"{self.counts[each]} {each.lower()}" for each in Verdict)
        self._print(f"{count(total, 'regression')} of {count(self._specs, 'spec')}: {told}")
        fixed = next((r for r in self.results.values() if verdict(r) is Verdict.FIXED), None)
        if fixed is not None:
            command = f"tlmatrix replay --retire {shlex.quote(fixed.node)} --because REASON"
            self._print(f"a fixed one goes on being run first; to take it out: {command}")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
