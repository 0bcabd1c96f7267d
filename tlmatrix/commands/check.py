"""`tlmatrix check`: prints the errors of specs without running them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tlmatrix.backend.axes import unsampled_options, unvaried_options
from tlmatrix.commands.specs import check_fuzzing, plan_all, spec_paths
from tlmatrix.exit_codes import ExitCode
from tlmatrix.options.table import TIER
from tlmatrix.problem.floor_lint import lint_floors
from tlmatrix.report.text import count
from tlmatrix.run.plan import plan
from tlmatrix.spec import SpecError, find_specs, load_spec

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from tlmatrix.config import Config
    from tlmatrix.run.plan import Plan


def check(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Load and expand specs, and check that fuzz cases can be generated.

    Raises:
        UsageError: a spec does not exist.
        SpecError: all errors of all specs.
    """
    paths = spec_paths(arguments.paths, config)
    plans = plan_all(paths, config.chosen(arguments)[TIER], roots=[config.root])
    check_fuzzing(plans)
    for each in plans:
        for warning in lint_floors(each.spec):
            print(f"warning: {warning}")
    named = {each.spec.path.resolve() for each in plans}
    together = [*plans, *_beside(plans)]
    for warning in unvaried_options([(each.spec, each.family) for each in together]):
        if warning.path.resolve() in named:
            print(f"warning: {warning}")
    for each in plans:
        if each.expansion.strategy.startswith("sample"):
            cases = (case.values for case in each.expansion.cases)
            for warning in unsampled_options(each.spec, each.tier, cases):
                print(f"warning: {warning}")
    print(f"{count(len(plans), 'spec')}, no errors")
    return ExitCode.OK


def _beside(plans: Sequence[Plan]) -> Iterator[Plan]:
    """Plans of the other specs in the folders of `plans` that have one of their entries."""
    named = {each.spec.path.resolve() for each in plans}
    entries = {each.spec.entry for each in plans if each.spec.entry is not None}
    with suppress(SpecError):
        for path in find_specs({path.parent for path in named}):
            text = path.read_text(encoding="utf-8", errors="replace")
            if path.resolve() not in named and any(entry in text for entry in entries):
                with suppress(SpecError):  # of a spec that was not named
                    yield plan(load_spec(path))
