"""`tlmatrix fuzz`: searches specs for failing cases that their axes do not list, and saves them."""

from __future__ import annotations

import os
import shlex
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.backend import backend_class
from tlmatrix.backend.gpus import GpuAssignment, assignment_for
from tlmatrix.commands.compile_ahead import compiling_ahead, job_of
from tlmatrix.commands.results import open_results, publish
from tlmatrix.commands.screen import console_on_output, show
from tlmatrix.commands.specs import check_fuzzing, plan_all, spec_paths
from tlmatrix.engine.pool import CtrlC, LocalProcesses, Pool
from tlmatrix.engine.searches import (
    Searches,
    SearchSettings,
    Target,
    job_sizes,
    jobs_per_configuration,
)
from tlmatrix.engine.selection import processors
from tlmatrix.engine.settings import require_backend
from tlmatrix.engine.worker import WorkerSettings
from tlmatrix.exit_codes import ExitCode, OutputError, UsageError
from tlmatrix.fuzz.search import examples_of
from tlmatrix.options.table import BACKEND, COVERAGE, SEED, TIER, TIMEOUT
from tlmatrix.report.fuzz import FuzzReporter
from tlmatrix.report.text import count
from tlmatrix.results_file import PACKAGES, make_folder, new_results, shown_path, versions
from tlmatrix.run.events import RunHeader
from tlmatrix.run.records import RecordsWriter
from tlmatrix.run.sources import sources_of
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.packed import packed_axes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tlmatrix.config import Config
    from tlmatrix.engine.ray import RayCluster
    from tlmatrix.fuzz.search import FuzzFailure
    from tlmatrix.matrix import Case
    from tlmatrix.run.kernel_plan import KernelJob
    from tlmatrix.run.plan import Plan
    from tlmatrix.spec.model.spec import Spec

_MOST_PLANNED = 512
"""Most cases of a tier from which the kernels of a search are taken."""
_PER_KEY = 3
"""Cases of one compile key that are traced for their kernels."""


def fuzz(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Search specs, report every fault once, and with `--save` save the smallest cases.

    Raises:
        UsageError: the arguments are invalid, or no spec has fuzz cases.
        OutputError: the results file cannot be written; nothing has run.
        SpecError: a spec is invalid; nothing has run.
    """
    if arguments.examples is not None and arguments.minutes is not None:
        raise UsageError("--examples and --minutes: give one of them")
    options = config.chosen(arguments)
    tier, backend = options[TIER], options[BACKEND]
    plans = plan_all(spec_paths(arguments.paths, config), tier, roots=[config.root])
    folder = Path.cwd() if arguments.ray is None else config.root
    check_fuzzing(plans)
    targets = _targets(plans, tier, folder, limit=arguments.examples or arguments.minutes)
    if not backend_class(backend).executes:
        raise UsageError(
            f"--backend {backend} does not run kernels; fuzz on the interpreter or a GPU"
        )
    cluster: RayCluster | None = None
    if arguments.ray is not None:
        from tlmatrix.engine.ray import RayCluster, path_on_nodes, require_ray

        require_ray()
        for plan in plans:
            path_on_nodes(plan.spec.path, config)
        cluster = RayCluster(arguments.ray, config, backend)
        backend = cluster.backend
    else:
        require_backend(options)
    if cluster is not None:
        workers = cluster.workers(arguments.workers)
    else:
        workers = processors() if arguments.workers == "auto" else int(arguments.workers)
    settings = SearchSettings(
        options=options.updated({"backend": backend}),
        examples=arguments.examples,
        seconds=None if arguments.minutes is None else 60 * arguments.minutes,
        workers=workers,
    )
    shared = WorkerSettings(
        settings.options.updated({COVERAGE.name: "off"}),  # which guides the search, not all cases
        roots=(config.root,),
        sources=sources_of([each.path for each in targets], folder, (config.root,)),
        timeout=options[TIMEOUT],
    )
    results = new_results(arguments.results, config, "fuzz")
    make_folder(results, config)
    records = _begun(results, settings, shared, targets, folder)
    shown = shown_path(results)
    with console_on_output() as console, CtrlC().deferred() as ctrl_c:
        planned = None
        if settings.seconds is None:
            planned = {each.path: settings.examples or each.examples for each in targets}
        reporter = FuzzReporter(console, planned, settings.seconds)
        gpus = GpuAssignment(()) if cluster is not None else assignment_for(backend)
        reporter.begin(_describe_search(settings, targets, gpus))
        if cluster is not None:
            cluster.watch(reporter.note)
        work = Searches(targets, settings, reporter, gpus=cluster.gpus if cluster else 0)
        executor = cluster or LocalProcesses()
        pool = Pool(work, shared, records, settings.workers, gpus, ctrl_c, executor)
        # On a cluster the nodes compile.
        job = _job(plans, targets, settings, config.root) if cluster is None else None
        interrupted = False
        try:
            with compiling_ahead(job) as kernels:
                pool.run()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            work.close()
            if cluster is not None:
                cluster.close()
        reporter.end(shown, work.stopped, interrupted=interrupted)
        if fixed := [each.path for each in targets if _has_listed_sizes(each.spec)]:
            show(
                console,
                f"{', '.join(fixed)}: no section `fuzz`, so that sizes are the listed ones; add "
                "those to try, such as `fuzz: {axes: {AXIS: 1..300}}`",
            )
        code = ExitCode.FINDINGS if reporter.failed or reporter.nothing_judged else ExitCode.OK
        if interrupted:
            code = ExitCode.INTERRUPTED
        elif work.errors:
            for path, how in work.errors.items():
                console.print(
                    f"{path}: not searched to the end: {how}", markup=False, highlight=False
                )
            code = ExitCode.INTERNAL
        elif work.invalid:
            show(console, str(SpecError(work.invalid)))
            code = ExitCode.USAGE
        else:
            records.summary(reporter.summary(code))
        records.close()
        if str(kernels):
            show(console, str(kernels))
        if records.error:
            console.print(
                f"results are missing in {shown}: {records.error}", markup=False, highlight=False
            )
            code = ExitCode.INTERNAL
        if arguments.save:
            for line in _save(reporter.failures, folder):
                show(console, line)
    if arguments.junitxml or arguments.github:
        recorded = open_results("fuzz", str(results), config)
        publish(recorded, junitxml=arguments.junitxml, github=arguments.github)
    return code


def _job(
    plans: Sequence[Plan], targets: Sequence[Target], settings: SearchSettings, root: Path
) -> KernelJob | None:
    """The kernels of the jobs of a search: each job takes those of another case of the tier."""
    wanted = {each.path: settings.examples or each.examples or 1 for each in targets}
    sizes = job_sizes(wanted, settings.workers)
    cases: dict[Path, list[Case]] = {}
    for plan in plans:
        path = os.path.relpath(plan.spec.path)
        if path not in wanted:
            continue
        configurations = settings.workers
        if settings.seconds is None:
            jobs = -(-wanted[path] // sizes[path])
            configurations = -(-jobs // jobs_per_configuration(sizes[path]))
        by_key: dict[str, list[Case]] = {}
        for case in plan.expansion.some(_MOST_PLANNED):
            by_key.setdefault(plan.family.compile_key(plan.spec, case.values), []).append(case)
        # The same kernels may depend on lengths: a strategy that is chosen by size.
        cases[Path(plan.spec.path)] = [
            case
            for mine in _first(list(by_key.values()), configurations, settings.options[SEED])
            for case in mine
        ]
    backend = settings.options[BACKEND]
    return job_of(cases, roots=[root], backend=backend, relations=False)


def _first(groups: list[list[Case]], count: int, seed: int) -> list[list[Case]]:
    """Some cases of each of the first `count` configurations, numbered from `seed` + 1."""
    chosen = {(seed + 1 + each) % len(groups): None for each in range(count)} if groups else {}
    return [groups[number][:_PER_KEY] for number in chosen]


def _targets(
    plans: Sequence[Plan], tier: str, folder: Path, *, limit: float | None
) -> list[Target]:
    """The specs; without a `limit` those with examples. Their paths are relative to `folder`."""
    found = [
        Target(plan.spec, os.path.relpath(plan.spec.path, folder), examples_of(plan.spec, tier))
        for plan in plans
    ]
    if limit is None:
        found = [target for target in found if target.examples]
    if not found:
        raise UsageError(
            f"no spec here has fuzz cases in the tier {tier}; give --examples 20, or add `fuzz: "
            f"{{examples: {{{tier}: 20}}}}` to one"
        )
    return found


def _has_listed_sizes(spec: Spec) -> bool:
    """Whether a search varies nothing but the combinations of listed values, and numbers."""
    return spec.fuzz is None and not packed_axes(spec)


def _begun(
    results: Path,
    settings: SearchSettings,
    shared: WorkerSettings,
    targets: Sequence[Target],
    folder: Path,
) -> RecordsWriter:
    """The results file of a search, with its header.

    Raises:
        OutputError: it cannot be written.
    """
    records = RecordsWriter(results)
    records.header(
        RunHeader(
            tier=settings.options[TIER],
            backend=settings.options[BACKEND],
            seed=0,
            paths=tuple(target.path for target in targets),
            command=shlex.join(["tlmatrix", *sys.argv[1:]]),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            folder=str(folder),
            versions=versions(*PACKAGES),
            sources=shared.sources,
        )
    )
    if records.error:
        raise OutputError(
            f"{shown_path(results)}: the results cannot be written: {records.error}; "
            "another place is --results PATH"
        )
    return records


def _describe_search(
    settings: SearchSettings, targets: Sequence[Target], gpus: GpuAssignment
) -> str:
    workers = gpus.summary(settings.workers) or count(settings.workers, "worker")
    specs = count(len(targets), "spec")
    if settings.seconds is not None:
        return f"{specs}, {settings.seconds / 60:g} minutes, {workers}"
    total = sum(settings.examples or target.examples for target in targets)
    return f"{count(total, 'example')} of {specs}, {workers}"


def _save(found: Sequence[FuzzFailure], folder: Path) -> list[str]:
    """Save the smallest case of every fault to its spec in `folder`; return lines to print."""
    from tlmatrix.fuzz.corpus import save
    from tlmatrix.matrix import Case

    lines = []
    by_path: dict[str, list[FuzzFailure]] = {}
    for each in found:
        by_path.setdefault(each.smallest.path, []).append(each)
    for path, mine in by_path.items():
        failed = {}
        for each in mine:
            result = each.smallest
            case = Case(result.spec, result.values, "fuzz")
            failed[case] = result.findings[0].summary
        try:
            new = save(folder / path, list(failed), failed=failed, found=date.today())  # noqa: DTZ011 - a day where the user is
        except SpecError as error:
            lines.append(f"not saved: {error}")
            continue
        lines.append(f"saved to {path}: {count(len(new), 'regression')}, run first in every tier")
    return lines
