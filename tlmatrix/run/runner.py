"""Runs cases: the one driver of pytest items, the Python API, fuzz workers and commands."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from tlmatrix.backend import backend_named
from tlmatrix.cache_files import prepare_caches
from tlmatrix.interpreter.coverage import Recorder
from tlmatrix.options.table import (
    ARCH,
    BACKEND,
    COVERAGE,
    DEFAULTS,
    KEEP_GOING,
    PERTURB,
    SEED,
    UNSUPPORTED,
)
from tlmatrix.run.compilation import compile_case
from tlmatrix.run.execution import JudgeOptions, execute_case
from tlmatrix.run.harness import Harness
from tlmatrix.run.limits import CaseTimeout, Interrupts, TimeLimit, out_of_time
from tlmatrix.run.measurements import Measurements, counted
from tlmatrix.run.outcome import Outcome, error_outcome, outdated_sources, spec_error_outcome
from tlmatrix.run.result import CaseResult, SkipReason, Status
from tlmatrix.spec.issues import SpecError
from tlmatrix.tracebacks import unwinds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from tlmatrix.backend import Backend
    from tlmatrix.backend.assembly import Keep
    from tlmatrix.check.registry import Reruns
    from tlmatrix.matrix import Case
    from tlmatrix.options.table import RunOptions
    from tlmatrix.problem import Problem, Tensors
    from tlmatrix.run.records import RecordsWriter
    from tlmatrix.run.sources import SourceWatch
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

UNUSABLE = 70
"""Exit status of a process that a case left unusable."""


def run_case(
    spec: Spec, case: Case, backend: Backend | str = "auto", *, seed: int = 0
) -> CaseResult:
    """Run and judge one case in this process.

    Raises:
        BackendUnavailableError: the backend cannot run here. Other errors are in the result.
    """
    with Runner(backend, seed=seed) as runner:
        return runner.run(spec, case)


class Runner:
    """Runs cases one after another in this process.

    Pytest items, the Python API, fuzz workers and commands all run a case with `run`, which
    applies a time limit and records the result; errors of the code under test are findings.

    Attributes:
        backend: where kernels run.
        options: the options of the run.
        requested: the backend as the user named it, such as `auto`.
        coverage: measure kernel coverage, if the backend can.
        checks: the only checks to make; None makes those of each spec.
        keep_compared: keep the tensors that findings compared (`Finding.compared`).
        broken_by: the case that left the backend unusable in this process; later ones are skipped.
        outdated: what changed in the sources of the last case since the run began.
    """

    def __init__(
        self,
        backend: Backend | str | None = None,
        options: RunOptions = DEFAULTS,
        *,
        seed: int | None = None,
        roots: Sequence[Path] = (),
        rank_seconds: float = 120.0,
        keep: Keep | None = None,
        records: RecordsWriter | None = None,
        worker: str = "main",
        sources: SourceWatch | None = None,
    ) -> None:
        """Create the backend; nothing runs yet.

        Args:
            backend: a backend or its name, by default that of the options.
            options: the options of the run.
            seed: seed of the run, by default that of the options; 0 gives every case its own
                inputs.
            roots: folders, besides the spec's own, from which entries are imported.
            rank_seconds: time limit of a call on several ranks, after which they count as hung.
            keep: what the backend `compile` keeps of compiled kernels, and where.
            records: the results file that `run` writes to.
            worker: the name of this process in the results file.
            sources: the sources of specs; a case is not judged if they changed since the run began.

        Raises:
            BackendUnavailableError: the backend cannot run here.
            ValueError: there is no such backend.
        """
        if note := prepare_caches():
            logging.getLogger(__name__).warning(note)
        if backend is None:
            backend = options[BACKEND]
        if isinstance(backend, str):
            self.backend = backend_named(backend, options[ARCH], options[PERTURB])
            self.requested = backend
        else:
            self.backend = backend
            self.requested = backend.name
        self.options = options
        self.seed = options[SEED] if seed is None else seed
        self.roots = tuple(roots)
        self.coverage = options[COVERAGE] != "off"
        self.checks: Collection[str] | None = None
        self.keep_compared = False
        self.broken_by = ""
        self.outdated = ""
        self._strict = options[UNSUPPORTED] == "fail"
        self._records = records
        self._worker = worker
        self._sources = sources
        self._harness = Harness(self.backend, self.roots, rank_seconds, keep)

    def prepare(self) -> None:
        """Import what every case needs, which would otherwise count as time of the first."""
        from tlmatrix.check import judge  # noqa: F401

        with self.backend.active():
            pass

    def run(
        self,
        spec: Spec,
        case: Case,
        *,
        path: str | None = None,
        reruns: Reruns = "all",
        time_limit: float | None = None,
        refine: Callable[[CaseResult], CaseResult] | None = None,
        explained: bool = True,
    ) -> CaseResult:
        """Run and judge a case, and record its start and its result.

        Args:
            spec: the spec of the case.
            case: the case.
            path: the spec's file as the user named it.
            reruns: which checks that run the code again are made: `all`, one that the case's
                seed picks (`rotate`, for fuzz cases), or those of these names (`{"isolation"}`,
                for shrinking). Unless `all`, the result names those that ran.
            time_limit: seconds after which the result is a timeout. If the case never returns to
                Python, this process ends.
            refine: replaces the result, within the time limit and before it is recorded.
            explained: as for `judge`.

        Raises:
            KeyboardInterrupt: Ctrl-C, also if the code under test caught it; nothing is recorded.
        """
        path = path or str(spec.path)
        result = unfinished = self.unfinished(case, path)
        if self._outdated(spec):
            return self._recorded(spec, unfinished)
        interrupts = Interrupts()
        limit = TimeLimit(time_limit, lambda frames: self._end_process(unfinished, frames))
        with suppress(CaseTimeout), interrupts.watch(), limit.enforce():
            # Inside, so that a Ctrl-C ends each case of which the start is on disk.
            if self._records is not None:
                self._records.start(path, case.id, self._worker)
            judged = self.judge(spec, case, path=path, reruns=reruns, explained=explained)
            result = judged if refine is None else refine(judged)
        if interrupts.received:
            raise KeyboardInterrupt
        if limit.expired:
            result = _timed_out(unfinished, limit.frames)
        return self._recorded(spec, result)

    def _outdated(self, spec: Spec) -> bool:
        """Whether the sources of a spec changed since the run began."""
        self.outdated = self._sources.changes(spec.path) if self._sources is not None else ""
        return bool(self.outdated)

    def _recorded(self, spec: Spec, result: CaseResult) -> CaseResult:
        """Record a result; that of sources which changed while the case ran is an error."""
        if self._sources is not None:
            if self._outdated(spec):
                finding = outdated_sources(self.outdated)
                result = replace(result, status=Status.ERROR, findings=(finding,))
            result = replace(result, sources=self._sources.of(spec.path).digest)
        if self._records is not None:
            self._records.case(result)
        return result

    def judge(
        self,
        spec: Spec,
        case: Case,
        *,
        path: str | None = None,
        reruns: Reruns = "all",
        masked: bool = False,
        explained: bool = False,
    ) -> CaseResult:
        """Run and judge a case without a record: an attempt of shrinking, or a second pass.

        With `masked`, only the checks run that an earlier finding stopped, as if it did not exist.
        With `explained`, findings about values name options and blocks, which takes more runs, and
        a failure on a concurrent backend says whether the case passes when it runs again.
        """
        counts = self.coverage and self.backend.measures_coverage
        measurements = Measurements(Recorder() if counts else None)
        path = path or str(spec.path)
        judging = JudgeOptions(
            self.seed,
            reruns,
            self.checks,
            self._strict,
            self.options[KEEP_GOING],
            masked,
            self.keep_compared,
            explained,
        )
        try:
            outcome = self._outcome(spec, case, path, judging, measurements)
            if explained and self.backend.concurrent and outcome.status is Status.FAILED:
                again = replace(judging, explained=False)
                second = self._outcome(spec, case, path, again, Measurements(None))
                if second.status is Status.PASSED:
                    outcome = _failed_by_chance(outcome)
        finally:
            self._harness.end_case()
        if any(finding.check == "memory" for finding in outcome.findings):
            self.backend.release()
        if not self.broken_by and self.backend.broken():
            self.broken_by = f"{path}::{case.id}"
        seconds, phases = measurements.times()
        return replace(
            self.unfinished(case, path),
            status=outcome.status,
            reason=outcome.reason,
            message=outcome.message,
            findings=outcome.findings,
            seconds=seconds,
            phases=phases,
            elements=measurements.elements,
            error_ratio=measurements.error_ratio,
            coverage=counted(measurements.recorder),
            kernels=outcome.kernels,
            relations=() if reruns == "all" else tuple(measurements.relations),
            distribution=measurements.distribution,
        )

    def unfinished(self, case: Case, path: str) -> CaseResult:
        """The result of a case that has not ended; its status is `crashed` until it has."""
        return CaseResult.of(
            case,
            path,
            Status.CRASHED,
            backend=self.backend.name,
            arch=self.backend.arch,
            requested=self.requested,
            seed=self.seed,
            perturb=self.options[PERTURB],
        )

    def outputs(
        self, spec: Spec, case: Case, *, seed: int | None = None
    ) -> tuple[Problem, Tensors]:
        """The problem of a case and the outputs of the code under test, not judged.

        Raises:
            EntryError: the code under test raised.
        """
        problem, run_entry = self.prepared(spec, case, seed=seed)
        return problem, run_entry(problem)

    def prepared(
        self, spec: Spec, case: Case, *, seed: int | None = None
    ) -> tuple[Problem, Callable[[Problem], Tensors]]:
        """A new problem of a case, and the function that runs the code under test on it.

        `seed` replaces the runner's.
        """
        bound = self._harness.bind_case(spec, case)
        problem = self._harness.problem(bound, spec, case, self.seed if seed is None else seed)
        return problem, self._harness.entry(bound.binding)

    def kernel_edges(self, spec: Spec, cases: Sequence[Mapping[str, Value]]) -> list[int]:
        """The numbers that kernels of cases combine sizes with; none on other backends."""
        from tlmatrix.run.traced_options import kernel_edges

        return kernel_edges(self._harness, spec, cases)

    def close(self) -> None:
        """End the processes that cases started."""
        self._harness.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _end_process(self, unfinished: CaseResult, frames: list[str]) -> None:
        """Record a timeout and end this process, as the case does not return to Python."""
        if self._records is not None:
            self._records.case(_timed_out(unfinished, frames))
        os.write(2, f"\n{unfinished.node}: hangs; its process is ended\n".encode())
        os._exit(UNUSABLE)

    def _outcome(
        self,
        spec: Spec,
        case: Case,
        path: str,
        options: JudgeOptions,
        measurements: Measurements,
    ) -> Outcome:
        if self.broken_by:
            message = (
                f"this process lost the GPU to a fault of {self.broken_by}; `--resume` runs the "
                "remaining cases, and with workers (`-n 1`) another process runs them"
            )
            return Outcome(Status.SKIPPED, reason=SkipReason.DEVICE, message=message)
        # An invalid input must raise before any kernel is launched, so it runs on any backend.
        executes = self.backend.executes or case.origin == "invalid"
        judge_case = execute_case if executes else compile_case
        try:
            return judge_case(self._harness, spec, case, options, measurements)
        except SpecError as error:
            return spec_error_outcome(error, path, _reference_location(spec))
        except BaseException as error:
            if unwinds(error):
                raise
            return error_outcome(error, self.backend, measurements, strict=self._strict)


def _failed_by_chance(outcome: Outcome) -> Outcome:
    """The outcome of a case that passed when it ran again."""
    first, *rest = outcome.findings
    note = (
        "the case passed when it ran again: what is wrong depends on the timing of threads, or on "
        "memory that nothing sets"
    )
    noted = replace(first, detail="\n".join(filter(None, [note, first.detail])))
    return replace(outcome, findings=(noted, *rest))


def _timed_out(unfinished: CaseResult, frames: list[str]) -> CaseResult:
    return replace(unfinished, status=Status.TIMEOUT, findings=(out_of_time(frames),))


def _reference_location(spec: Spec) -> tuple[int, int] | None:
    """Line and column of the reference of a declared problem."""
    if isinstance(spec.problem, str) or spec.problem.reference is None:
        return None
    issue = spec.issue(("problem", "reference"), "")
    return issue.line, issue.column
