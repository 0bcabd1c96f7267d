"""`tlmatrix fuzz`: searches specs for failing cases that their axes do not list, and saves them."""

from __future__ import annotations

import os
import shlex
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.backend.gpus import assignment_for
from tlmatrix.commands.engine import console_on_output
from tlmatrix.commands.specs import plan_all, spec_paths
from tlmatrix.exit_codes import ExitCode, UsageError
from tlmatrix.fuzz.job import Settings
from tlmatrix.fuzz.pool import Target, WorkerPool, WorkerPoolError
from tlmatrix.fuzz.search import examples_of
from tlmatrix.report.fuzz import FuzzReporter
from tlmatrix.report.text import count
from tlmatrix.results_file import make_folder, new_results, shown_path
from tlmatrix.run.records import RecordsWriter
from tlmatrix.spec.model.packed import packed_axes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tlmatrix.backend.gpus import GpuAssignment
    from tlmatrix.config import Config
    from tlmatrix.fuzz.search import FuzzFailure
    from tlmatrix.run.plan import Plan

__all__ = ["fuzz"]


def fuzz(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Search specs, report every fault once, and with `--save` save the smallest cases.

    Raises:
        UsageError: the arguments are invalid, or no spec has fuzz cases.
        SpecError: a spec is invalid; nothing has run.
    """
    from tlmatrix.backend import BackendUnavailableError, backend_class, backend_named

    if arguments.examples is not None and arguments.minutes is not None:
        raise UsageError("--examples and --minutes: give one of them")
    tier = arguments.tier or config.tier
    plans = plan_all(spec_paths(arguments.paths, config), tier, roots=[config.root])
    targets = _targets(plans, tier, limit=arguments.examples or arguments.minutes)
    backend = arguments.backend or config.backend
    if not backend_class(backend).executes:
        raise UsageError(
            f"--backend {backend} does not run kernels; fuzz on the interpreter or a GPU"
        )
    try:
        backend_named(backend)
    except BackendUnavailableError as error:
        raise UsageError(str(error)) from error
    settings = Settings(
        tier=tier,
        backend=backend,
        examples=arguments.examples,
        seconds=None if arguments.minutes is None else 60 * arguments.minutes,
        seed=arguments.seed if arguments.seed is not None else config.seed,
        workers=_workers(arguments.workers),
        timeout=arguments.timeout if arguments.timeout is not None else config.timeout,
        results=new_results(arguments.results, config, "fuzz"),
        strict=(arguments.unsupported or config.unsupported) == "fail",
        roots=(config.root,),
    )
    make_folder(settings.results, config)
    _write_header(settings, targets)
    with console_on_output() as console:
        reporter = FuzzReporter(console)
        gpus = assignment_for(settings.backend)
        reporter.begin(_describe_search(settings, targets, gpus))
        shown = shown_path(settings.results)
        try:
            WorkerPool(targets, settings, reporter, gpus).run()
        except KeyboardInterrupt:
            reporter.end(shown, interrupted=True)
            code = ExitCode.INTERRUPTED
        except WorkerPoolError as error:
            reporter.end(shown, interrupted=True)
            console.print(str(error), markup=False, highlight=False)
            code = ExitCode.INTERNAL
        else:
            reporter.end(shown)
            bad = reporter.failed or reporter.nothing_judged
            code = ExitCode.FINDINGS if bad else ExitCode.OK
            records = RecordsWriter(settings.results)
            records.summary(reporter.summary(code))
            records.close()
        if arguments.save:
            for line in _save(reporter.failures):
                console.print(line, markup=False, highlight=False, soft_wrap=True)
    return code


def _targets(plans: Sequence[Plan], tier: str, *, limit: float | None) -> list[Target]:
    """The specs with a section `fuzz` or packed axes; without a `limit` those with examples."""
    found = [
        Target(plan.spec, os.path.relpath(plan.spec.path), examples_of(plan.spec, tier))
        for plan in plans
        if plan.spec.fuzz is not None or packed_axes(plan.spec)
    ]
    if limit is None:
        found = [target for target in found if target.examples]
    if not found:
        raise UsageError(
            f"no spec here has fuzz cases in the tier {tier}; add `fuzz: "
            f"{{examples: {{{tier}: 20}}}}` to one, or give --examples 20 for specs with packed "
            "axes"
        )
    return found


def _workers(given: str) -> int:
    if given == "auto":
        return len(os.sched_getaffinity(0))
    if not given.isdigit() or not int(given):
        raise UsageError(f"-n {given}: must be a number of processes, at least 1, or auto")
    return int(given)


def _write_header(settings: Settings, targets: Sequence[Target]) -> None:
    from tlmatrix.run.events import RunHeader

    records = RecordsWriter(settings.results)
    records.header(
        RunHeader(
            tier=settings.tier,
            backend=settings.backend,
            seed=0,
            paths=tuple(target.path for target in targets),
            command=shlex.join(["tlmatrix", *sys.argv[1:]]),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            folder=str(Path.cwd()),
        )
    )
    records.close()


def _describe_search(settings: Settings, targets: Sequence[Target], gpus: GpuAssignment) -> str:
    workers = gpus.summary(settings.workers) or count(settings.workers, "worker")
    specs = count(len(targets), "spec")
    if settings.seconds is not None:
        return f"{specs}, {settings.seconds / 60:g} minutes, {workers}"
    total = sum(settings.examples or target.examples for target in targets)
    return f"{count(total, 'example')} of {specs}, {workers}"


def _save(found: Sequence[FuzzFailure]) -> list[str]:
    """Save the smallest case of every fault to its spec; return lines to print."""
    from tlmatrix.fuzz.corpus import save
    from tlmatrix.matrix import Case
    from tlmatrix.spec.issues import SpecError

    lines = []
    by_path: dict[str, list[FuzzFailure]] = {}
    for each in found:
        by_path.setdefault(each.smallest.path, []).append(each)
    for path, mine in by_path.items():
        failed = {}
        for each in mine:
            result = each.smallest
            case = Case(result.spec, result.values, "fuzz")
            failed[case] = f"{result.findings[0].check}: {result.findings[0].title}"
        try:
            new = save(Path(path), list(failed), failed=failed, found=date.today())  # noqa: DTZ011 - a day where the user is
        except SpecError as error:
            lines.append(f"not saved: {error}")
            continue
        lines.append(f"saved to {path}: {count(len(new), 'regression')}, run first in every tier")
    return lines
