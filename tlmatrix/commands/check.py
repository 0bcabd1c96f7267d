"""`tlmatrix check`: prints the errors of specs without running them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.commands.specs import check_fuzzing, plan_all, spec_paths
from tlmatrix.exit_codes import ExitCode
from tlmatrix.problem.floor_lint import lint_floors
from tlmatrix.report.text import count

if TYPE_CHECKING:
    import argparse

    from tlmatrix.config import Config


def check(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Load and expand specs, and check that fuzz cases can be generated.

    Raises:
        UsageError: a spec does not exist.
        SpecError: all errors of all specs.
    """
    paths = spec_paths(arguments.paths, config)
    plans = plan_all(paths, arguments.tier or config.tier, roots=[config.root])
    check_fuzzing(plans)
    for each in plans:
        for warning in lint_floors(each.spec):
            print(f"warning: {warning}")
    print(f"{count(len(plans), 'spec')}, no errors")
    return ExitCode.OK
