"""`tlmatrix list`: counts the cases of specs, and explains why a case is in a tier."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tlmatrix.commands.screen import print_wrapped
from tlmatrix.commands.specs import plan_all, spec_paths
from tlmatrix.exit_codes import ExitCode, UsageError
from tlmatrix.matrix import CaseNotFoundError, explain
from tlmatrix.options.table import TIER
from tlmatrix.problem import family_for
from tlmatrix.report.listing import explain_lines, list_lines
from tlmatrix.report.text import count
from tlmatrix.spec.loader import load_spec

if TYPE_CHECKING:
    import argparse

    from tlmatrix.config import Config


def list_cases(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Print the number of cases of each spec; with `--explain`, why one case is in its tiers.

    Raises:
        UsageError: the spec or case does not exist.
        SpecError: a spec is invalid.
    """
    if arguments.explain:
        return _explain_case(arguments, config)
    tier = config.chosen(arguments)[TIER]
    paths = spec_paths(arguments.paths, config)
    plans = plan_all(paths, tier, seed=arguments.seed, roots=[config.root])
    for plan in plans:
        for line in list_lines(plan, cases=arguments.cases):
            print_wrapped(line)
    total = sum(plan.count() for plan in plans)
    known = [plan.configurations() for plan in plans]
    compiled = "" if None in known else f", compiled for {sum(filter(None, known))} configurations"
    print(f"{count(total, 'case')} of {count(len(plans), 'spec')} in the tier {tier}{compiled}")
    return ExitCode.OK


def _explain_case(arguments: argparse.Namespace, config: Config) -> ExitCode:
    path, _, case_id = arguments.explain.rpartition("::")
    reasons = []
    for found in spec_paths([path] if path else arguments.paths, config):
        try:
            spec = load_spec(found)
            explanation = explain(spec, case_id, partial(family_for(spec).compile_key, spec))
        except CaseNotFoundError as error:
            reasons.append(f"{found}: {error}")
            continue
        for line in explain_lines(explanation):
            print_wrapped(line)
        return ExitCode.OK
    raise UsageError("\n".join(reasons))
