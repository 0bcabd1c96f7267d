"""`tlmatrix run`: runs the cases of specs and reports them.

`--resume` and `--lf` take arguments from an earlier run.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.backend import backend_class
from tlmatrix.commands.compile_ahead import compiling_ahead, dry_run_lines, job_of
from tlmatrix.commands.results import last_run, open_results, publish, recent_runs
from tlmatrix.commands.screen import console_on_output, show
from tlmatrix.commands.specs import builtin_paths, check_fuzzing, nodes_of, plan_all, selector_of
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
from tlmatrix.options.table import ARCH, BACKEND, LAST_RUN, SEED, TIER
from tlmatrix.prove.answers import summary
from tlmatrix.report.terminal import TerminalReport
from tlmatrix.report.text import count
from tlmatrix.results_file import shown_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console

    from tlmatrix.config import Config
    from tlmatrix.engine.selection import ShardPlan
    from tlmatrix.run.plan import Plan
    from tlmatrix.run.records import RunRecords


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
        names = [each.spec.name for each in plans if not each.spec.compares_values]
        unjudged = (f"{name}: no value is compared, as there is no reference" for name in names)
        for line in filter(None, (note, *settings.again, *proven, *unjudged)):
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


_SPECS = (".yaml", ".yml")
_PROBLEMS = 5
"""Most lines of a results file that are reported as unusable."""


def with_earlier_run(
    arguments: argparse.Namespace, config: Config
) -> tuple[argparse.Namespace, str]:
    """Complete the arguments of `run` from the run of `--resume` or `--lf`.

    Returns:
        The arguments, and a note for the user, which may be empty.

    Raises:
        UsageError: the run does not exist, or options exclude each other.
    """
    if arguments.resume is not None:
        arguments, found, note = _with_resumed_run(arguments, config)
        notes = [*_shortened(found.problems), note]
        return arguments, "\n".join(filter(None, notes))
    if not arguments.last_failed:
        return arguments, ""
    last = last_run(arguments.results, config)
    if last is None:
        return arguments, "--lf: there is no earlier run; running every case"
    return _with_failed_cases(arguments, last)


def _shortened(problems: Sequence[str]) -> list[str]:
    """The first problems of a results file, and how many more there are."""
    more = len(problems) - _PROBLEMS
    return [*problems[:_PROBLEMS], *([f"{count(more, 'more problem')}"] if more > 0 else [])]


def _with_resumed_run(
    arguments: argparse.Namespace, config: Config
) -> tuple[argparse.Namespace, RunRecords, str]:
    from tlmatrix.run.records import RecordsError, read_records

    if arguments.last_failed:
        raise UsageError("--lf and --resume: give one of them")
    paths, file = list(arguments.paths), arguments.resume
    if file != LAST_RUN and (Path(file).is_dir() or file.partition("::")[0].endswith(_SPECS)):
        paths, file = (
            [file, *paths],
            LAST_RUN,
        )  # `--resume specs/x.yaml`: a spec, not a results file.
    if file == LAST_RUN:
        found = last_run(arguments.results, config)
        if found is None:
            folder = arguments.results or config.results
            raise UsageError(f"--resume: no results in {folder}; give a results file")
        file = shown_path(found.path)
    else:
        try:
            found = read_records(Path(file))
        except (OSError, RecordsError) as error:
            raise UsageError(f"--resume {file}: {error}") from error
    header = found.header
    taken = {
        "resume": file,
        "paths": paths or _nodes(found, header.paths),
        "select": arguments.select or header.select,
        "no_fuzz": arguments.no_fuzz or not header.fuzz,
    }
    note = f"resuming {file}" if arguments.resume == LAST_RUN else ""
    if header.select and not arguments.select:
        note = f"{note or 'resuming'}, with its -k {header.select!r}"
    return argparse.Namespace(**{**vars(arguments), **taken}), found, note


def _with_failed_cases(
    arguments: argparse.Namespace, last: RunRecords
) -> tuple[argparse.Namespace, str]:
    """Select the failed cases of the last run under the given paths; all cases if none failed."""
    shown = shown_path(last.path)
    failed = _nodes(last, [result.node for result in last.results if result.failed])
    if arguments.paths:
        failed = [node for node in failed if any(_contains(path, node) for path in arguments.paths)]
    there = _existing(failed)
    missing = len(failed) - len(there)
    if there:
        paths, words = there, f"--lf: {count(len(there), 'case')} that failed in {shown}"
        if missing:
            words += f"; {missing} more are no longer in a spec"
    else:
        specs = dict.fromkeys(path.partition("::")[0] for path in _nodes(last, last.header.paths))
        paths = arguments.paths or list(specs)
        words = f"--lf: no case failed in {shown}; running every case"
        if missing:
            words = f"--lf: the failed cases of {shown} are no longer in a spec; running every case"
    seed = last.header.seed if arguments.seed is None else arguments.seed
    taken = {"paths": paths, "seed": seed, "tier": arguments.tier or last.header.tier}
    return argparse.Namespace(**{**vars(arguments), **taken}), words


def _nodes(records: RunRecords, nodes: Iterable[str]) -> list[str]:
    """Specs and cases of a run, with paths relative to the working directory."""
    folder = Path(records.header.folder)
    split = [node.partition("::") for node in nodes]
    return [f"{os.path.relpath(folder / path)}{mark}{case}" for path, mark, case in split]


def _contains(given: str, node: str) -> bool:
    """Whether a given folder, spec or case contains a case."""
    path, _, case = given.partition("::")
    file, _, wanted = node.partition("::")
    place, inside = Path(path).resolve(), Path(file).resolve()
    return case in ("", wanted) and (place == inside or place in inside.parents)


def _existing(nodes: Iterable[str]) -> list[str]:
    """The cases that their specs still have, and all of a spec with errors."""
    from tlmatrix.matrix import CaseNotFoundError, find_case
    from tlmatrix.spec.issues import SpecError
    from tlmatrix.spec.loader import load_spec

    load = cache(load_spec)
    found = []
    for node in nodes:
        path, _, case = node.partition("::")
        if not os.path.isfile(path):  # noqa: PTH113 - False for a name that no file can have
            continue
        try:
            find_case(load(path), case)
        except CaseNotFoundError:
            continue
        except SpecError:
            pass
        found.append(node)
    return found
