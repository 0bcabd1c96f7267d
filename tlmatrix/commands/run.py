"""`tlmatrix run`: runs cases with pytest and prints tlmatrix's report.

The plugin runs the same items as under `pytest specs`; only the output differs.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tlmatrix.backend import backend_class
from tlmatrix.commands.child import can_fork, run_in_child
from tlmatrix.commands.compile_ahead import compiling_ahead, dry_run_lines, job_of
from tlmatrix.commands.earlier import kept_cases, recent_runs, with_earlier_run
from tlmatrix.commands.engine import Engine, console_on_output, exit_code, pytest_arguments
from tlmatrix.commands.results import open_results, publish
from tlmatrix.commands.specs import builtin_paths, check_fuzzing, nodes_of, plan_all
from tlmatrix.commands.workers import (
    SelectedCases,
    mean_seconds,
    recorded_seconds,
    worker_count,
)
from tlmatrix.exit_codes import ExitCode, UsageError
from tlmatrix.matrix import CaseNotFoundError, find_case
from tlmatrix.options.table import BACKEND, TIER
from tlmatrix.plugin.keywords import KeywordError, selector
from tlmatrix.report.terminal import TerminalReport
from tlmatrix.results_file import new_results
from tlmatrix.run.shards import Shard, ShardError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tlmatrix.config import Config
    from tlmatrix.run.plan import Plan

_LARGE = 4_000_000
"""Bytes of results files that are read for the durations of cases; more would take long."""


def run(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Run the cases of specs and report them.

    Raises:
        UsageError: the arguments are invalid.
        SpecError: a spec is invalid; nothing has run.
    """
    if arguments.shard:
        try:
            Shard.parse(arguments.shard)
        except ShardError as error:
            raise UsageError(f"--shard: {error}") from error
    arguments.paths = [*arguments.paths, *builtin_paths(arguments.builtin)]
    arguments, earlier, note = with_earlier_run(arguments, config)
    nodes = nodes_of(arguments.paths, config)
    tier = arguments.tier or (earlier.header.tier if earlier else config[TIER])
    # Errors in specs, in ids of cases and in -k are reported before any process starts.
    plans = plan_all(nodes, tier, seed=arguments.seed, roots=[config.root])
    check_fuzzing(plans)
    selected = list(_selected(plans, nodes.values(), arguments))
    workers = arguments.workers
    backend = config.chosen(arguments)[BACKEND]
    recent = recent_runs(arguments.resume or arguments.results, config, at_most=_LARGE)
    seconds = recorded_seconds(recent, backend)
    if arguments.ray is not None:
        from tlmatrix.commands.ray_run import run_on_ray

        passed: frozenset[tuple[str, str]] = frozenset()
        if arguments.resume is not None and earlier is not None:
            passed, _ = kept_cases(arguments, earlier, config)
        return run_on_ray(arguments, config, selected, passed, seconds)
    if workers == "auto":
        workers = worker_count(selected, seconds, compiled=backend_class(backend).compiles)
    alone = workers == "0" != arguments.workers
    again = _selected(plans, nodes.values(), arguments)
    job = job_of(
        {each.path: each.cases for each in again},
        roots=[config.root],
        backend=backend,
        architectures=arguments.arch or (),
    )
    if arguments.dry_run:
        chosen = _selected(plans, nodes.values(), arguments)
        for line in dry_run_lines(chosen, tier, job, seconds):
            print(line)
        return ExitCode.OK
    if arguments.resume is None:
        results = new_results(arguments.results, config, "run")
        arguments = argparse.Namespace(**{**vars(arguments), "results": str(results)})
    else:
        results = Path(arguments.resume).resolve()
    if alone and not can_fork():
        alone, workers = False, "1"
    called = partial(pytest_arguments, arguments, _pytest_nodes(nodes), tier)
    with console_on_output() as console:
        report = TerminalReport(
            console,
            verbosity=arguments.verbose - arguments.quiet,
            earlier=mean_seconds(seconds),
        )
        if note:
            report.note(note)

        def announce() -> None:
            report.announce(f"{tier} tier; starting")

        with compiling_ahead(job) as kernels:
            try:
                if alone:
                    ending = run_in_child(
                        called, results, report, announce=announce, stop=arguments.exitfirst
                    )
                else:
                    announce()
                    engine = Engine(report)
                    ending = engine.ending(int(pytest.main(called(workers), plugins=[engine])))
            finally:
                report.close()
        if str(kernels):
            console.print(str(kernels), markup=False, highlight=False, soft_wrap=True)
        code = exit_code(ending, console)
    if (arguments.junitxml or arguments.github) and results.is_file():
        recorded = open_results("run", str(results), config)
        publish(recorded, junitxml=arguments.junitxml, github=arguments.github)
    return code


def _selected(
    plans: Iterable[Plan], ids: Iterable[Iterable[str]], arguments: argparse.Namespace
) -> Iterable[SelectedCases]:
    """The cases of each spec that the arguments select, without fuzz cases.

    Raises:
        UsageError: a spec has no case with an id, or -k is invalid.
    """
    try:
        selects = selector(arguments.select) if arguments.select else None
    except KeywordError as error:
        raise UsageError(str(error)) from error
    for plan, named in zip(plans, ids, strict=True):
        path = Path(plan.spec.path)
        try:
            cases = [find_case(plan.spec, case_id) for case_id in sorted(named)]
        except CaseNotFoundError as error:
            raise UsageError(f"{path}: {error}") from error
        fuzz_cases = 0
        if not named and plan.spec.fuzz is not None and not arguments.no_fuzz:
            fuzz_cases = plan.spec.fuzz.examples.get(plan.tier, 0)
        chosen = (
            case
            for case in cases or plan.cases()
            if selects is None or selects(case, (path.name, path.parent.name))
        )
        yield SelectedCases(plan, path.resolve(), chosen, fuzz_cases)


def _pytest_nodes(nodes: dict[Path, set[str]]) -> list[str]:
    """Specs and cases as arguments of pytest."""
    return [
        node
        for path, ids in nodes.items()
        for node in (sorted(f"{path}::{case_id}" for case_id in ids) or [str(path)])
    ]
