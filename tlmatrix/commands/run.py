"""`tlmatrix run`: runs the cases of specs and reports them."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.backend import backend_class
from tlmatrix.commands.compile_ahead import compiling_ahead, dry_run_lines, job_of
from tlmatrix.commands.earlier import with_earlier_run
from tlmatrix.commands.results import open_results, publish, recent_runs
from tlmatrix.commands.screen import console_on_output, show
from tlmatrix.commands.specs import (
    builtin_paths,
    check_fuzzing,
    nodes_of,
    plan_all,
    selector_of,
)
from tlmatrix.engine.cases import run_cases
from tlmatrix.engine.run import Run
from tlmatrix.engine.selection import (
    SelectedCases,
    cases_of,
    mean_seconds,
    recorded_seconds,
    seconds_for_shards,
    shard_of,
    worker_count,
)
from tlmatrix.engine.settings import RunSettings, ShardError
from tlmatrix.exit_codes import ExitCode, UsageError
from tlmatrix.matrix import CaseNotFoundError
from tlmatrix.options.table import ARCH, BACKEND, SEED, TIER
from tlmatrix.prove.answers import summary
from tlmatrix.report.terminal import TerminalReport
from tlmatrix.results_file import shown_path

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from rich.console import Console

    from tlmatrix.config import Config
    from tlmatrix.engine.selection import ShardPlan
    from tlmatrix.run.plan import Plan

_LARGE = 4_000_000
"""Bytes of results files that are read for the durations of cases; more would take long."""


def run(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Run the cases of specs and report them.

    Raises:
        UsageError: the arguments are invalid.
        SpecError: a spec is invalid; nothing has run.
        OutputError: the results file cannot be written; nothing has run.
    """
    arguments.paths = [*arguments.paths, *builtin_paths(arguments.builtin)]
    arguments, note = with_earlier_run(arguments, config)
    settings = RunSettings.of(vars(arguments), config, config.root)
    nodes = nodes_of(arguments.paths, config)
    options = settings.options
    if arguments.ray is not None:
        _require_ray_options(arguments)
    plans = plan_all(nodes, options[TIER], seed=options[SEED] or None, roots=[config.root])
    check_fuzzing(plans)
    selected = list(select(plans, nodes.values(), settings, config.root, arguments.select))
    recent = recent_runs(arguments.resume or arguments.results, config, at_most=_LARGE)
    seconds = recorded_seconds(recent, options[BACKEND])
    job = job_of(
        {each.path: [case for case in each.cases if case.origin != "fuzz"] for each in selected},
        roots=[config.root],
        backend=options[BACKEND],
        architectures=options[ARCH] or (),
    )
    if arguments.dry_run:
        for line in dry_run_lines(selected, options[TIER], job, seconds):
            print(line)
        return ExitCode.OK
    with console_on_output() as console:
        report = TerminalReport(
            console,
            verbosity=arguments.verbose - arguments.quiet,
            earlier=mean_seconds(seconds),
        )
        proven = (summary(each.spec, [config.root]) for each in plans)
        for line in filter(None, (note, *settings.again, *proven)):
            report.note(line)
        session = Run(
            settings,
            config,
            report,
            paths=words_of(nodes),
            command=shlex.join(["tlmatrix", *sys.argv[1:]]),
            select=arguments.select,
            folder=config.root if arguments.ray is not None else None,
        )
        report.announce(f"{options[TIER]} tier; starting")
        chosen, plan = to_run(selected, settings, config.root)
        cluster = None
        if arguments.ray is not None:
            from tlmatrix.engine.ray import RayCluster, path_on_nodes

            chosen = [replace(each, shown=path_on_nodes(each.path, config)) for each in chosen]
            cluster = RayCluster(arguments.ray, config, options[BACKEND])
            cluster.watch(report.note)
            workers = cluster.workers(arguments.workers)
        elif arguments.workers == "auto":
            compiled = backend_class(options[BACKEND]).compiles
            workers = worker_count(chosen, seconds, compiled=compiled)
        else:
            workers = int(arguments.workers)
        try:
            with compiling_ahead(job if cluster is None else None) as kernels:
                code = run_cases(
                    session,
                    chosen,
                    workers=workers,
                    plan=plan,
                    seconds=seconds,
                    exitfirst=arguments.exitfirst,
                    cluster=cluster,
                )
        finally:
            if cluster is not None:
                cluster.close()
            report.close()
        if str(kernels):
            show(console, str(kernels))
        show_ending(session, console)
    if (arguments.junitxml or arguments.github) and settings.results.is_file():
        recorded = open_results("run", str(settings.results), config)
        publish(recorded, junitxml=arguments.junitxml, github=arguments.github)
    return code


def _require_ray_options(arguments: argparse.Namespace) -> None:
    """Check that Ray is installed, and that it supports the options.

    Raises:
        UsageError: it is not, or does not.
    """
    from tlmatrix.engine.ray import require_ray

    for option in ("coverage", "exitfirst", "shard", "compute_sanitizer"):
        if getattr(arguments, option) not in (None, False, "off"):
            raise UsageError(f"--ray: --{option.replace('_', '-')} does not work with it")
    require_ray()


def select(
    plans: Iterable[Plan],
    ids: Iterable[Iterable[str]],
    settings: RunSettings,
    root: Path,
    expression: str = "",
) -> Iterator[SelectedCases]:
    """The cases of each spec that a run selects, of all shards.

    Args:
        plans: the plans of the specs.
        ids: for each spec the cases to select; none for all.
        settings: those of the run.
        root: the folder of the project; names of folders below it match `-k`.
        expression: that of `-k`.

    Raises:
        UsageError: a spec has no case with an id, or -k is invalid.
        SpecError: a spec has too many cases.
    """
    selects = selector_of(expression)
    root = root.resolve()
    for plan, named in zip(plans, ids, strict=True):
        path = Path(plan.spec.path)
        place = path.resolve()
        names = place.relative_to(root).parts if place.is_relative_to(root) else place.parts[-2:]
        try:
            cases = [
                case
                for case in cases_of(plan, sorted(named), settings)
                if selects is None or selects(case, names)
            ]
        except CaseNotFoundError as error:
            raise UsageError(f"{path}: {error}") from error
        yield SelectedCases(plan, place, shown_path(path), cases)


def to_run(
    selected: Iterable[SelectedCases], settings: RunSettings, root: Path
) -> tuple[list[SelectedCases], ShardPlan | None]:
    """The cases of the run's shard that did not pass in the resumed run, and the plan.

    Raises:
        UsageError: there are more shards than cases.
    """
    plan = None
    if settings.shard is not None:
        try:
            recorded = seconds_for_shards(settings.times, root)
            selected, plan = shard_of(list(selected), recorded, settings.shard, root)
        except ShardError as error:
            raise UsageError(f"--shard {error}") from error
    left = [each.without(settings.passed_before) for each in selected]
    return [each for each in left if each.cases], plan


def words_of(nodes: dict[Path, set[str]]) -> list[str]:
    """Specs and cases as arguments of a command."""
    return [
        node
        for path, ids in nodes.items()
        for node in (sorted(f"{path}::{case_id}" for case_id in ids) or [str(path)])
    ]


def show_ending(session: Run, console: Console) -> None:
    """Print why nothing ran, or how to continue a run that did not end."""
    if session.began and session.missing > 0:
        show(console, f"to continue this run: {session.resume_command}")
    elif not session.began and session.settings.passed_before:
        show(console, "every case passed before; nothing to run")
    elif not session.began:
        show(console, "no case matches -k")
