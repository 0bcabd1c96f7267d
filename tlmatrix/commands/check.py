"""`tlmatrix check`: everything that is wrong with specs, found without running any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.commands.specs import check_draws, plan_all, spec_paths
from tlmatrix.exit_codes import ExitCode
from tlmatrix.problem.floor_lint import lint_floors
from tlmatrix.report.text import count

if TYPE_CHECKING:
    import argparse

    from tlmatrix.config import Config

__all__ = ["check"]


def check(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Read and expand specs, and settle what their random cases are drawn from.

    Raises:
        UsageError: there is no such spec.
        SpecError: everything that is wrong with any of them.
    """
    paths = spec_paths(arguments.paths, config)
    plans = plan_all(paths, arguments.tier or config.tier, roots=[config.root])
    check_draws(plans)
    for each in plans:
        for warning in lint_floors(each.spec):
            print(f"warning: {warning}")
    print(f"{count(len(plans), 'spec')}, no errors")
    return ExitCode.OK
