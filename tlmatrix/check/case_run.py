"""The calls of one case: the first one, with guards, poison and sanitizers, and later ones."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tlmatrix.check.finding import Finding
from tlmatrix.check.numeric import describe_mismatch
from tlmatrix.check.running import Results, SeveralRanks, run_guarded
from tlmatrix.check.sanitizers import SanitizerSession
from tlmatrix.check.tolerance import ReferenceBounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tlmatrix.matrix.case import Case
    from tlmatrix.problem.model import Problem, Tensors
    from tlmatrix.spec.model.spec import Spec


@dataclass
class CaseRun:
    """What the checks of a case share; `judge` describes most of the fields.

    Attributes:
        results: those of the first call that can be compared.
        bounds: the error bounds of the first call.
        stable: whether equal calls gave equal results, as far as they were compared.
        misused_memory: whether the first call misused memory; later ones are guarded then.
        masks_accesses: whether sanitizers skip accesses at which later calls would end.
        races: findings of sanitizers in later calls on several ranks.
    """

    spec: Spec
    case: Case
    problem: Problem
    execute: Callable[[Problem], Tensors]
    checks: frozenset[str]
    arch: str
    deterministic: bool
    on_check: Callable[[str], object] = str
    on_error_ratio: Callable[[float], None] | None = None
    results: Tensors = field(default_factory=dict)
    stable: bool = True
    misused_memory: bool = False
    masks_accesses: bool = False
    races: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bounds = ReferenceBounds(self.problem, self.spec.tolerance, self.arch)
        self.sanitizers = None
        if "sanitizers" in self.checks:
            demanded = self.deterministic and "determinism" in self.checks
            self.sanitizers = SanitizerSession(self.spec, self.problem, deterministic=demanded)

    def check_of(self, name: str) -> str:
        """The check that compares a result with its reference."""
        return "gradients" if name in self.problem.gradient_of else "numeric"

    def checks_values(self, name: str) -> bool:
        """Whether a check compares this result with its reference."""
        return self.check_of(name) in self.checks or "poison" in self.checks

    def bounds_of(self, problem: Problem, results: Tensors) -> ReferenceBounds:
        """The error bounds of the results of a call."""
        parts = results.parts if isinstance(results, Results) else {}
        return ReferenceBounds(problem, self.spec.tolerance, self.arch, self.bounds, parts)

    def use_as_reference(self, results: Tensors) -> None:
        """Use results as the reference from now on."""
        exact = {name: results[name].double() for name in self.problem.outputs}
        self.problem = replace(self.problem, reference=lambda: exact, lowp=dict)
        self.bounds = self.bounds_of(self.problem, results)

    # The first call -------------------------------------------------------------------------------

    def first_call(self) -> tuple[Tensors, list[Finding]]:
        """All results of the first call, and the findings of guards.

        Results that can be compared become `results`, and `bounds` are theirs.
        """
        if not self.checks & {"guards", "poison", "sanitizers"}:
            all_results, found = self.execute(self.problem), list[Finding]()
        else:
            # Sanitizers recognize uninitialized memory by its poison.
            poison = bool(self.checks & {"poison", "sanitizers"})
            all_results, found = run_guarded(
                self.execute, self.problem, poison=poison, sanitizers=self.sanitizers
            )
        self.bounds = self.bounds_of(self.problem, all_results)
        return all_results, found if "guards" in self.checks else []

    def unusable(self, results: Tensors) -> list[Finding]:
        """Findings about results that cannot be compared; the others become `results`."""
        found, usable = [], {}
        for name, info in self.problem.outputs.items():
            mismatch = describe_mismatch(name, info, results.get(name))
            if isinstance(results, Results) and name in results.absent:
                mismatch = f"no gradient {name}: {results.absent[name]}"
            if mismatch is None:
                usable[name] = results[name]
            elif name in results or self.checks_values(name):
                found.append(Finding(self.check_of(name), mismatch, tensor=name, pattern="shape"))
        self.results = usable
        return found

    def with_reports(self, results: Tensors, found: list[Finding]) -> list[Finding]:
        """The findings of sanitizers in the first call, then `found`."""
        if self.sanitizers is None:
            return found
        # Simulated ranks are not run again to explain a report.
        rerun = None if isinstance(self.execute, SeveralRanks) else self.execute
        return self.sanitizers.findings(results, found, rerun)

    # Later calls ----------------------------------------------------------------------------------

    @property
    def on_ranks(self) -> bool:
        """Whether later calls run in a row, without a wait between: ranks can confuse them."""
        return isinstance(self.execute, SeveralRanks)

    def again(self, problem: Problem) -> Tensors:
        """Run the entry again; guarded if it misused memory, which could corrupt this process."""
        if not isinstance(self.execute, SeveralRanks):
            if self.misused_memory:
                masking = SanitizerSession(self.spec, problem) if self.masks_accesses else None
                return run_guarded(self.execute, problem, poison=True, sanitizers=masking)[0]
            return self.execute(problem)
        with self._race_detection() as sanitizers:
            if self.misused_memory:
                return self.execute.guarded(problem, poison=True, sanitizers=sanitizers)[0]
            return self.execute.in_a_row([problem], sanitizers=sanitizers)[0]

    def sanitized(self, problem: Problem, sanitizers: SanitizerSession) -> Tensors:
        """Run the entry again with guards, and under these sanitizers if the case has any."""
        session = None if self.sanitizers is None else sanitizers
        if self.masks_accesses:
            session = SanitizerSession(self.spec, problem)
        return run_guarded(self.execute, problem, poison=True, sanitizers=session)[0]

    def in_a_row(
        self, problems: Sequence[Problem], *, captured: bool = False, streams: bool = False
    ) -> list[Tensors]:
        """Run consecutive calls under race detection, above all between a call and the next."""
        assert isinstance(self.execute, SeveralRanks)
        with self._race_detection() as sanitizers:
            if captured:
                return self.execute.captured(problems, sanitizers=sanitizers)
            return self.execute.in_a_row(problems, sanitizers=sanitizers, streams=streams)

    def race_detector(self) -> SanitizerSession | None:
        """The sanitizer of races alone, if the case has sanitizers."""
        if self.sanitizers is None:
            return None
        return SanitizerSession(self.spec, self.problem, only=frozenset({"races"}))

    @contextmanager
    def _race_detection(self) -> Iterator[SanitizerSession | None]:
        """Detect races in a later run on several ranks, which has another interleaving."""
        sanitizers = self.race_detector()
        if sanitizers is None:
            yield None
            return
        try:
            yield sanitizers
        finally:
            known = {finding.pattern for finding in self.races}
            found = sanitizers.findings({}, [], None)
            self.races += [finding for finding in found if finding.pattern not in known]
