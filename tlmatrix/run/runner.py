"""Runs one case: the single way from a case to its `CaseResult`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tlmatrix.backend import backend_named
from tlmatrix.interpreter.recorder import Recorder
from tlmatrix.run.compilation import compile_case
from tlmatrix.run.coverage import counted
from tlmatrix.run.execution import JudgeOptions, execute_case
from tlmatrix.run.harness import Harness
from tlmatrix.run.measurements import Measurements
from tlmatrix.run.outcome import Outcome, error_outcome, spec_error_outcome
from tlmatrix.run.result import CaseResult, SkipReason, Status
from tlmatrix.spec.issues import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from tlmatrix.backend import Backend
    from tlmatrix.check.rerun_checks import Reruns
    from tlmatrix.matrix import Case
    from tlmatrix.problem import Problem, Tensors
    from tlmatrix.spec.model.spec import Spec

__all__ = ["Runner", "run_case"]


def run_case(
    spec: Spec, case: Case, backend: Backend | str = "auto", *, seed: int = 0
) -> CaseResult:
    """Run and judge one case in this process.

    Raises:
        BackendUnavailableError: the backend cannot run here. Other errors are in the result.
    """
    name = backend if isinstance(backend, str) else backend.name
    found = backend_named(backend) if isinstance(backend, str) else backend
    runner = Runner(found, seed=seed, asked=name)
    try:
        return runner.run(spec, case)
    finally:
        runner.close()


@dataclass
class Runner:
    """Runs cases one after another in this process; `run` never raises.

    Attributes:
        backend: where kernels run.
        seed: seed of the run; 0 gives every case its own inputs.
        roots: folders, besides the spec's own, from which entries are imported.
        asked: the backend as the user named it.
        coverage: measure kernel coverage, if the backend can.
        strict: a kernel that the interpreter does not model is an error, not skipped.
        keep_going: also make checks that would fail for the reason of an earlier finding.
        checks: the only checks to make; None makes those of each spec.
        rank_seconds: time limit of a call on several ranks, after which they count as hung.
        lost: the case that left the backend unusable in this process; later ones are skipped.
    """

    backend: Backend
    seed: int = 0
    roots: tuple[Path, ...] = ()
    asked: str = "auto"
    coverage: bool = False
    strict: bool = False
    keep_going: bool = False
    checks: Collection[str] | None = None
    rank_seconds: float = 120.0
    lost: str = ""
    harness: Harness = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.harness = Harness(self.backend, self.roots, self.rank_seconds)

    def prepare(self) -> None:
        """Import what every case needs, which would otherwise count as time of the first."""
        import torch

        from tlmatrix.check import judge  # noqa: F401

        with self.backend.active():
            # The first gradient of a process imports sympy.
            one = torch.ones(1, requires_grad=True)
            torch.autograd.grad(2 * one, one, torch.ones(1))

    def run(
        self, spec: Spec, case: Case, *, path: str | None = None, reruns: Reruns = "all"
    ) -> CaseResult:
        """Run and judge a case.

        Args:
            spec: the spec of the case.
            case: the case.
            path: the spec's file as the user named it.
            reruns: which checks that run the code again are made: `all`, one that the case's
                seed picks (`rotate`, for fuzz cases), or those of these names (`{"isolation"}`,
                for shrinking). Unless `all`, the result names those that ran.
        """
        counts = self.coverage and self.backend.measures_coverage
        measurements = Measurements(Recorder() if counts else None)
        shown = path or str(spec.path)
        options = JudgeOptions(self.seed, reruns, self.checks, self.strict, self.keep_going)
        try:
            outcome = self._outcome(spec, case, shown, options, measurements)
        finally:
            self.harness.end_case()
        if any(finding.check == "memory" for finding in outcome.findings):
            self.backend.release()
        if not self.lost and self.backend.broken():
            self.lost = f"{shown}::{case.id}"
        seconds, phases = measurements.times()
        return CaseResult(
            spec=spec.name,
            path=shown,
            case=case.id,
            key=case.key,
            values=case.values,
            origin=case.origin,
            status=outcome.status,
            reason=outcome.reason,
            message=outcome.message,
            findings=outcome.findings,
            seconds=seconds,
            phases=phases,
            backend=self.backend.name,
            arch=self.backend.arch,
            asked=self.asked,
            seed=self.seed,
            elements=measurements.elements,
            closeness=measurements.error_ratio,
            coverage=counted(measurements.recorder),
            kernels=outcome.kernels,
            relations=() if reruns == "all" else tuple(measurements.relations),
            distribution=measurements.distribution,
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
        bound = self.harness.bind(spec)
        problem = self.harness.problem(bound, spec, case, self.seed if seed is None else seed)
        return problem, self.harness.entry(bound.binding)

    def close(self) -> None:
        """End the processes that cases started."""
        self.harness.close()

    def _outcome(
        self,
        spec: Spec,
        case: Case,
        path: str,
        options: JudgeOptions,
        measurements: Measurements,
    ) -> Outcome:
        if self.lost:
            words = (
                f"this process lost the GPU to a fault of {self.lost}; `--resume` runs what is "
                "left, and with workers (-n 1) nothing would be"
            )
            return Outcome(Status.SKIPPED, reason=SkipReason.DEVICE, message=words)
        # An invalid input must raise before any kernel is launched, so it runs on any backend.
        executes = self.backend.executes or case.origin == "invalid"
        judge_case = execute_case if executes else compile_case
        try:
            return judge_case(self.harness, spec, case, options, measurements)
        except SpecError as error:
            return spec_error_outcome(error, path, _reference_location(spec))
        except Exception as error:  # noqa: BLE001 - the result reports any error
            return error_outcome(error, self.backend, measurements, strict=self.strict)


def _reference_location(spec: Spec) -> tuple[int, int] | None:
    """Line and column of the reference of a declared problem."""
    if isinstance(spec.problem, str) or spec.problem.reference is None:
        return None
    issue = spec.issue(("problem", "reference"), "")
    return issue.line, issue.column
