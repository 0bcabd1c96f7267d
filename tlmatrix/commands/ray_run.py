"""`tlmatrix run --ray`: runs groups of cases as tasks of a Ray cluster.

A task streams the start and the result of each of its cases to this process, which writes the
results file. If a node or a process ends, the cases without a result run again in new tasks; the
case that was running does so alone, and once: a second loss is a finding of the case.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.backend import backend_class
from tlmatrix.check.finding import Finding
from tlmatrix.commands.engine import console_on_output
from tlmatrix.commands.ray_cluster import connect, path_on_nodes, require_ray
from tlmatrix.commands.ray_waiting import Resources, Waiting
from tlmatrix.exit_codes import ExitCode, OutputError, UsageError
from tlmatrix.options.table import BACKEND, SEED, TIER, TIMEOUT
from tlmatrix.plugin.group_task import run_group
from tlmatrix.report.terminal import TerminalReport
from tlmatrix.results_file import (
    PACKAGES,
    make_folder,
    new_results,
    resume_command,
    shown_path,
    versions,
)
from tlmatrix.run.events import CaseFinished, RunFinished, RunHeader, RunStarted, Summary
from tlmatrix.run.limits import out_of_time
from tlmatrix.run.records import RecordsWriter
from tlmatrix.run.result import FAILURES, CaseResult, Status, crash_finding
from tlmatrix.run.sources import sources_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from tlmatrix.commands.workers import SelectedCases
    from tlmatrix.config import Config
    from tlmatrix.matrix import Case
    from tlmatrix.options.run_options import RunOptions

_TICK = 1.0
"""Most seconds to wait for an event."""
_MAX_FAILURES = 3
"""Tasks of a group that may fail in a row without running a case."""


@dataclass(frozen=True)
class _Group:
    """Cases that share kernels; `path` is that of their spec, relative to the project's root."""

    path: str
    cases: tuple[str, ...]
    gpus: float = 0.0
    failures: int = 0

    @property
    def needs(self) -> Resources:
        """What a node must have to run the group."""
        return Resources(gpus=self.gpus)


@dataclass
class _Task:
    group: _Group
    finished: set[str] = field(default_factory=set)
    running: str = ""
    since: float = 0.0

    @property
    def begun(self) -> bool:
        """Whether it has begun a case."""
        return bool(self.running or self.finished)


def run_on_ray(
    arguments: argparse.Namespace,
    config: Config,
    selected: Iterable[SelectedCases],
    passed: frozenset[tuple[str, str]],
    seconds: Mapping[tuple[Path, str], float],
) -> ExitCode:
    """Run the selected cases on a Ray cluster and report them.

    Args:
        arguments: those of `run`.
        config: the project's configuration.
        selected: the cases of each spec.
        passed: cases that passed in the resumed run: (absolute path of the spec, id).
        seconds: recorded durations of cases; the longest groups run first.

    Raises:
        UsageError: Ray is not installed or the cluster cannot be reached, or an option does not
            work with Ray.
    """
    for option in ("coverage", "exitfirst", "shard", "compute_sanitizer"):
        if getattr(arguments, option) not in (None, False, "off"):
            raise UsageError(f"--ray: --{option.replace('_', '-')} does not work with it")
    require_ray()
    import ray

    options = config.chosen(arguments)
    backend, seed = options[BACKEND], options[SEED]
    compiled = backend_class(backend).compiles
    cases, groups = _grouped(selected, passed, config, seconds, seed, compiled=compiled)
    if arguments.resume is None:
        results = new_results(arguments.results, config, "run")
    else:
        results = Path(arguments.resume).resolve()
    make_folder(results, config)
    connect(arguments.ray, config)
    on_gpu = backend == "cuda" or (backend == "auto" and ray.cluster_resources().get("GPU", 0) > 0)
    options = options.updated({"backend": "cuda" if on_gpu else backend})
    if not on_gpu:
        groups = [replace(group, gpus=0.0) for group in groups]
    header = RunHeader(
        tier=options[TIER],
        backend=backend,
        seed=seed,
        paths=tuple(arguments.paths) or tuple(sorted({path for path, _ in cases})),
        command=shlex.join(["tlmatrix", *sys.argv[1:]]),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        folder=str(config.root),
        select=arguments.select,
        fuzz=not arguments.no_fuzz,
        versions=versions(*PACKAGES),
        sources=sources_of({path for path, _ in cases}, config.root, (config.root,)),
    )
    with console_on_output() as console:
        report = TerminalReport(console, verbosity=arguments.verbose - arguments.quiet)
        engine = _RayRun(cases, options, RecordsWriter(results), header, report)
        try:
            code = engine.run(groups, shown_path(results))
        finally:
            report.close()
            ray.shutdown()
        if engine.missing:
            console.print(
                f"to continue this run: {resume_command(results)}", markup=False, highlight=False
            )
    return code


def _grouped(
    selected: Iterable[SelectedCases],
    passed: frozenset[tuple[str, str]],
    config: Config,
    seconds: Mapping[tuple[Path, str], float],
    seed: int,
    *,
    compiled: bool,
) -> tuple[dict[tuple[str, str], Case], list[_Group]]:
    """The cases by path and id, and their groups, the longest first.

    Raises:
        UsageError: a spec is outside of the project's root, which travels to the nodes.
    """
    from tlmatrix.fuzz.search import tier_fuzz_cases

    cases: dict[tuple[str, str], Case] = {}
    members: dict[tuple[str, str], list[str]] = defaultdict(list)
    gpus: Counter[tuple[str, str]] = Counter()
    work: Counter[tuple[str, str]] = Counter()
    for each in selected:
        path = path_on_nodes(each.path, config)
        own = list(each.cases)
        if each.fuzz_cases:
            ids = [case.id for case in own]
            own += tier_fuzz_cases(
                each.plan.spec, each.plan.tier, ids, seed=seed, compiled=compiled
            )
        for case in own:
            if (str(each.path), case.id) in passed:
                continue
            group = (path, each.plan.group(case))
            cases[path, case.id] = case
            members[group].append(case.id)
            world = case.values.get("world", 1)
            gpus[group] = max(gpus[group], world if isinstance(world, int) else 1)
            work[group] += round(1e6 * seconds.get((each.path, case.id), 0.1))
    longest = sorted(members, key=lambda group: (-work[group], group))
    return cases, [_Group(group[0], tuple(members[group]), gpus[group]) for group in longest]


class _RayRun:
    """One run: the groups that wait and run, and the results so far."""

    def __init__(
        self,
        cases: Mapping[tuple[str, str], Case],
        options: RunOptions,
        records: RecordsWriter,
        header: RunHeader,
        report: TerminalReport,
    ) -> None:
        self._cases = cases
        self._options = options
        self._records = records
        self._header = header
        self._report = report
        self._results: dict[tuple[str, str], CaseResult] = {}
        self._lost: Counter[tuple[str, str]] = Counter()
        self._tasks: dict[Any, _Task] = {}
        self._waiting: deque[_Group] = deque()
        self._watch = Waiting(report.note)

    @property
    def missing(self) -> int:
        """The number of cases without a result."""
        return len(self._cases) - len(self._results)

    def run(self, groups: Sequence[_Group], results: str) -> ExitCode:
        """Run groups until every case has a result; Ctrl-C stops."""
        import ray

        begin = time.monotonic()
        self._records.header(self._header)
        if self._records.error:
            raise OutputError(f"{results}: the results cannot be written: {self._records.error}")
        counts = Counter(path for path, _ in self._cases)
        nodes = sum(node["Alive"] for node in ray.nodes())
        place = f"{nodes} Ray nodes" if nodes != 1 else "1 Ray node"
        self._report.handle(RunStarted(dict(counts), results, place=place, header=self._header))
        self._waiting.extend(groups)
        interrupted = False
        try:
            while self._waiting or self._tasks:
                self._step()
        except KeyboardInterrupt:
            interrupted = True
        seconds = time.monotonic() - begin
        by_status = Counter(result.status for result in self._results.values())
        if self._records.error or self._records.removed:
            self._records.complete(self._header, self._results.values())
        bad = any(by_status[status] for status in FAILURES) or self.missing > 0
        code = ExitCode.FINDINGS if bad else ExitCode.OK
        if not interrupted:
            plain = {str(status): number for status, number in by_status.items()}
            self._records.summary(Summary(plain, round(seconds, 3), code))
        error = self._records.error
        self._records.close()
        stopped = "Ctrl-C" if interrupted else ""
        self._report.handle(
            RunFinished(by_status, seconds, interrupted, stopped=stopped, unrecorded=error)
        )
        if interrupted:
            return ExitCode.INTERRUPTED
        return ExitCode.INTERNAL if error else code

    def _step(self) -> None:
        """Submit waiting groups, and handle the next event of each task."""
        import ray

        while self._waiting:
            group = self._waiting.popleft()
            task = ray.remote(run_group).options(
                num_cpus=group.needs.cpus, num_gpus=group.needs.gpus, max_retries=0,
                num_returns="streaming",
            )  # fmt: skip
            stream = task.remote(group.path, list(group.cases), self._options)
            self._tasks[stream] = _Task(group)
        ready, _ = ray.wait(list(self._tasks), num_returns=1, timeout=_TICK)
        for stream in ready:
            task = self._tasks[stream]
            try:
                self._handle(task, *ray.get(next(stream)))
            except StopIteration:
                del self._tasks[stream]
            except KeyboardInterrupt:
                raise
            except Exception as error:  # noqa: BLE001 - Ray's errors, and those of the task
                del self._tasks[stream]
                self._on_lost(task, error)
        self._give_up_impossible()

    def _give_up_impossible(self) -> None:
        """Say what waiting tasks need, and fail the cases of those that no node can run."""
        import ray

        idle = {stream: task for stream, task in self._tasks.items() if not task.begun}
        if len(idle) < len(self._tasks):
            self._watch.busy()
        in_vain = self._watch.in_vain({task.group.needs for task in idle.values()})
        for stream, task in idle.items():
            if (why := in_vain.get(task.group.needs)) is None:
                continue
            ray.cancel(stream, force=True)
            del self._tasks[stream]
            finding = Finding(
                check="internal",
                title=why,
                hint="add such a node, or run the case elsewhere",
                pattern=why,
            )
            for case in task.group.cases:
                self._add(self._unfinished(task.group.path, case, Status.ERROR, finding))

    def _handle(self, task: _Task, kind: str, case: str, data: dict[str, Any] | None) -> None:
        if kind == "start":
            task.running, task.since = case, time.monotonic()
            self._records.start(task.group.path, case, "ray")
            return
        assert data is not None
        task.finished.add(case)
        task.running = ""
        self._add(CaseResult.from_json(data))

    def _add(self, result: CaseResult) -> None:
        """Record and report a result, the first of its case."""
        if (result.path, result.case) not in self._results:
            self._results[result.path, result.case] = result
            self._records.case(result)
            self._report.handle(CaseFinished(result))

    def _on_lost(self, task: _Task, error: Exception) -> None:
        """Run the cases of a lost task again, or report them if that was tried before."""
        group = task.group
        left = [case for case in group.cases if case not in task.finished]
        if task.running:
            left.remove(task.running)
            self._retry_alone(task, error)
        elif group.failures + 1 >= _MAX_FAILURES:
            words = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            finding = Finding(
                check="internal",
                title=f"no Ray task could run the case: {words}",
                hint="the nodes need tlmatrix and what the entry imports",
                detail=str(error),
                pattern=words,
            )
            for case in left:
                self._add(self._unfinished(group.path, case, Status.ERROR, finding))
            return
        if left:
            failures = 0 if task.finished or task.running else group.failures + 1
            self._waiting.append(replace(group, cases=tuple(left), failures=failures))

    def _retry_alone(self, task: _Task, error: Exception) -> None:
        """Run the case that was running when its process ended alone; report its second loss."""
        path, case = task.group.path, task.running
        limit = self._options[TIMEOUT]
        if limit and time.monotonic() - task.since >= limit:
            self._add(self._unfinished(path, case, Status.TIMEOUT, out_of_time()))
            return
        self._lost[path, case] += 1
        if self._lost[path, case] == 1:
            self._waiting.append(replace(task.group, cases=(case,), failures=0))
            return
        words = f"twice, {type(error).__name__}"
        finding = crash_finding(words, detail=str(error).partition("\n")[0])
        self._add(self._unfinished(path, case, Status.CRASHED, finding))

    def _unfinished(self, path: str, case: str, status: Status, finding: Finding) -> CaseResult:
        return CaseResult.of(
            self._cases[path, case],
            path,
            status,
            findings=(finding,),
            requested=self._options[BACKEND],
            seed=self._options[SEED],
        )
