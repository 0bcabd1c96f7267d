"""Groups of cases as jobs: those that share kernels run in one process."""

from __future__ import annotations

import faulthandler
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tlmatrix.backend.gpus import GpuAssignment, assignment_for
from tlmatrix.check.finding import Finding
from tlmatrix.engine.pool import CtrlC, LocalProcesses, Pool
from tlmatrix.engine.worker import WorkerSettings
from tlmatrix.exit_codes import ExitCode
from tlmatrix.options.table import BACKEND, PERTURB, SEED
from tlmatrix.run.plan import REGRESSIONS
from tlmatrix.run.result import CaseResult, Status, crash_finding
from tlmatrix.spec.model.spec import WORLD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tlmatrix.engine.pool import Loss
    from tlmatrix.engine.ray import RayCluster
    from tlmatrix.engine.run import Run
    from tlmatrix.engine.selection import Seconds, SelectedCases, ShardPlan
    from tlmatrix.engine.worker import Worker
    from tlmatrix.matrix import Case
    from tlmatrix.run.records import RecordsWriter
    from tlmatrix.spec.issues import SpecError

_GRACE = 30.0
"""Seconds after the time limit of a case, which its process applies, until the pool ends it."""
_GUESS = 0.1
"""Estimated seconds of a case that never ran."""
_MAX_FAILURES = 3
"""Processes of a group that may end in a row without running a case."""
_MAX_MACHINES = 2
"""Machines that may be lost while one case runs."""


@dataclass(frozen=True)
class CaseGroup:
    """Cases of one spec, to run in this order.

    Attributes:
        path: the spec's file as the user gave it.
        cases: the cases.
        timeout: the time limit of a case in seconds; 0 for none.
        gpus: the number of GPUs that its process needs on a cluster.
        alone: whether no other job runs meanwhile.
        failures: processes that ended in a row before a case of the group.
    """

    path: str
    cases: tuple[Case, ...]
    timeout: float = 0.0
    gpus: int = 0
    alone: bool = False
    failures: int = 0

    @property
    def limit(self) -> float:
        """See `Job`: the process applies the limit of a case, if it can."""
        return self.timeout + _GRACE if self.timeout else 0.0

    def run(self, worker: Worker) -> None:
        """Run the cases; a case may leave the worker unusable for those after it."""
        if worker.stderr is not None and not faulthandler.is_enabled():
            faulthandler.enable(worker.stderr)
        spec = worker.spec(self.path)
        backend = worker.runner.backend
        for number, case in enumerate(self.cases):
            if worker.over():
                return
            if worker.settings.sharers > 1:
                backend.limit_memory(1 if self.alone else worker.settings.sharers)
            worker.start(case, self.path)
            result = worker.judge.run(spec, case, self.path, self.timeout, alone=self.alone)
            if not worker.expendable:
                continue
            # The CUDA context is lost after a fault, or modules are imported in part.
            worker.unusable = bool(worker.runner.broken_by) or result.status is Status.TIMEOUT
            if worker.unusable:
                return
            if not number:
                worker.settle(self.path)


def without_memory(result: CaseResult) -> bool:
    """Whether a case failed because memory ran out."""
    return result.failed and any(finding.check == "memory" for finding in result.findings)


def grouped(
    selected: Iterable[SelectedCases],
    seconds: Seconds,
    *,
    timeout: float,
    workers: int,
    gpus: bool = False,
) -> list[CaseGroup]:
    """The cases of a run as jobs.

    One worker runs them in their order. Several run first the regressions, then the groups that
    take longest by recorded `seconds`. With `gpus`, a group needs a GPU for each of its ranks.
    """
    if workers <= 1 and not gpus:
        return [CaseGroup(each.shown, tuple(each.cases), timeout) for each in selected]
    members: dict[tuple[str, str], list[Case]] = defaultdict(list)
    work: Counter[tuple[str, str]] = Counter()
    for each in selected:
        for case in each.cases:
            group = (each.shown, each.plan.group(case))
            members[group].append(case)
            work[group] += round(1e6 * seconds.get((each.path, case.id), _GUESS))

    def rank(group: tuple[str, str]) -> tuple[object, ...]:
        return not group[1].endswith(REGRESSIONS), -work[group], group

    return [
        CaseGroup(path, tuple(members[path, name]), timeout, _ranks(members[path, name]) * gpus)
        for path, name in sorted(members, key=rank)
    ]


def _ranks(cases: Iterable[Case]) -> int:
    """The most ranks of a case."""
    worlds = [case.values.get(WORLD, 1) for case in cases]
    return max(world if isinstance(world, int) else 1 for world in worlds)


class Cases:
    """The groups of a run as the work of a pool (`tlmatrix.engine.pool.Work`).

    Args:
        groups: the groups, in running order.
        settings: those of the workers.
        records: the results file.
        report: called with each result that counts.
        exitfirst: stop at the first failure.
    """

    def __init__(
        self,
        groups: Iterable[CaseGroup],
        settings: WorkerSettings,
        records: RecordsWriter,
        report: Callable[[CaseResult], object],
        *,
        exitfirst: bool = False,
    ) -> None:
        self._waiting = deque(groups)
        self._settings = settings
        self._records = records
        self._report = report
        self._exitfirst = exitfirst
        self._alone: deque[CaseGroup] = deque()
        self._running = 0
        self._machines: Counter[tuple[str, str]] = Counter()
        self.over = False
        """Whether a failure stopped the run."""

    def next_job(self) -> CaseGroup | None:
        """The next group; those that need all memory come last, one at a time."""
        if self._waiting:
            self._running += 1
            return self._waiting.popleft()
        if self._alone and not self._running:
            self._running += 1
            return self._alone.popleft()
        return None

    def ended(self, job: CaseGroup, result: CaseResult) -> bool:
        """Report a result, unless the case runs again with all of the memory."""
        if without_memory(result) and self._settings.sharers > 1 and not job.alone:
            case = next(each for each in job.cases if each.id == result.case)
            self._alone.append(replace(job, cases=(case,), alone=True, failures=0))
            return False
        self._report(result)
        self.over |= self._exitfirst and result.failed
        return True

    def message(self, _job: CaseGroup, kind: str, _content: object) -> None:
        """Refuse other messages, which groups do not send."""
        raise AssertionError(kind)

    def done(self, _job: CaseGroup, _report: object) -> None:
        """Count a job that ended."""
        self._running -= 1

    def broken(self, job: CaseGroup, done: int, _report: object) -> None:
        """Run the rest of a group in another process."""
        self._running -= 1
        self._requeue(job, done)

    def failed(self, job: CaseGroup, done: int, error: SpecError | str) -> None:
        """Report the rest of a group as errors."""
        self._running -= 1
        text = str(error)
        last = text.strip().splitlines()[-1]
        self._fail(job, done, f"tlmatrix could not run the case: {last}", detail=text)

    def lost(self, job: CaseGroup, loss: Loss, result: CaseResult | None) -> None:
        """Run the rest of a group again, unless no process can."""
        self._running -= 1
        if loss.refused:
            self._fail(job, loss.done, loss.words, hint="add such a node, or run it elsewhere")
        elif loss.running is not None:
            self._run_again(job, loss)
        elif result is None and not loss.done and job.failures + 1 >= _MAX_FAILURES:
            words = f"its process ended {_MAX_FAILURES} times before the case began ({loss.words})"
            self._fail(job, 0, words, hint="it ends when it imports tlmatrix or the entry")
        else:
            failures = 0 if loss.done else job.failures + 1
            self._requeue(replace(job, failures=failures), loss.done)

    def _run_again(self, job: CaseGroup, loss: Loss) -> None:
        """Run a case again whose machine was lost, alone; the second loss is its finding."""
        case, rest = job.cases[loss.done], job.cases[loss.done + 1 :]
        self._machines[job.path, case.id] += 1
        if rest:
            self._waiting.append(replace(job, cases=rest, failures=0))
        if self._machines[job.path, case.id] < _MAX_MACHINES:
            self._waiting.append(replace(job, cases=(case,), failures=0))
            return
        finding = crash_finding("with its machine, twice", detail=loss.words)
        self._add(job, case, Status.CRASHED, finding)

    def _requeue(self, job: CaseGroup, done: int) -> None:
        if rest := job.cases[done:]:
            self._waiting.appendleft(replace(job, cases=rest))

    def _fail(
        self, job: CaseGroup, done: int, title: str, *, hint: str = "", detail: str = ""
    ) -> None:
        """Report the rest of a group as errors that are not of the code under test."""
        finding = Finding(
            check="internal",
            title=title,
            hint=hint or "an error of the spec in a process that starts later, or of tlmatrix",
            detail=detail or None,
            pattern=title,
        )
        for case in job.cases[done:]:
            self._add(job, case, Status.ERROR, finding)

    def _add(self, job: CaseGroup, case: Case, status: Status, finding: Finding) -> None:
        """Record the result of a case that no process has judged."""
        options = self._settings.options
        run = {"requested": options[BACKEND], "seed": self._settings.seed}
        run["perturb"] = options[PERTURB]
        result = CaseResult.of(case, job.path, status, findings=(finding,), **run)
        if self.ended(job, result):
            self._records.case(result)

    def tick(self) -> None:
        """Do nothing."""


def run_cases(
    run: Run,
    selected: Sequence[SelectedCases],
    *,
    workers: int,
    plan: ShardPlan | None = None,
    seconds: Seconds | None = None,
    exitfirst: bool = False,
    cluster: RayCluster | None = None,
) -> ExitCode:
    """Run cases, record them, and send the events of the run.

    Args:
        run: the run, which has not begun.
        selected: the cases of each spec.
        workers: the number of processes; 0 for this one.
        plan: the plan of which the cases are a shard.
        seconds: recorded durations of cases.
        exitfirst: stop at the first failure.
        cluster: where the workers run; None for this machine.

    Raises:
        UsageError: the backend or a tool is not available.
        OutputError: the results file cannot be written.
    """
    settings = run.settings
    if not selected and plan is None:
        return ExitCode.OK if settings.passed_before else ExitCode.USAGE
    options, timeout = settings.options, settings.timeout
    if cluster is None:
        settings.require()
        gpus = assignment_for(options[BACKEND])
        place = gpus.summary(workers)
    else:
        options = options.updated({BACKEND.name: cluster.backend})
        gpus, place = GpuAssignment(()), cluster.place
    cases = {each.shown: [case.id for case in each.cases] for each in selected}
    run.begin(cases, plan, place=place)
    shared = WorkerSettings(
        options,
        seed=options[SEED],
        roots=run.roots,
        sources=run.sources,
        timeout=timeout,
        keep=settings.keep,
        compute_sanitizer=settings.compute_sanitizer,
        sharers=gpus.sharers(workers) if cluster is None else 1,
    )
    groups = grouped(
        selected,
        seconds or {},
        timeout=timeout,
        workers=workers,
        gpus=cluster is not None and bool(cluster.gpus),
    )
    work = Cases(groups, shared, run.records, run.add, exitfirst=exitfirst)
    interrupted, code = False, ExitCode.OK
    with CtrlC().deferred() as ctrl_c:
        pool = Pool(work, shared, run.records, workers, gpus, ctrl_c, cluster or LocalProcesses())
        try:
            pool.run()
        except KeyboardInterrupt:
            ctrl_c.note()
            interrupted = True
            run.note("interrupted; stopping the running cases")
        if run.failed or run.nothing_judged or run.missing > 0:
            code = ExitCode.FINDINGS
        stopped = "Ctrl-C" if interrupted else "stopped at the first failure" if work.over else ""
        run.end(code, interrupted=interrupted, stopped=stopped)
        run.close()
    if interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.INTERNAL if run.unrecorded else code
