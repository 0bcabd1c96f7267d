"""Runs of an entry for checks, in this process, on a device or on ranks, and those of a case."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from tlmatrix.check.finding import Finding
from tlmatrix.check.guards import guarded, lead_of
from tlmatrix.check.memory import as_row, extent_of
from tlmatrix.check.numeric import describe_mismatch, deviations
from tlmatrix.check.sanitizers import SanitizerSession
from tlmatrix.check.tolerance import ReferenceBounds
from tlmatrix.problem.tensors import on_cpu
from tlmatrix.tracebacks import unwinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tlmatrix.matrix.listed_cases import Case
    from tlmatrix.problem.model import Problem, Tensors
    from tlmatrix.spec.model.spec import Spec

_ON_STREAMS = (
    "an entry that asks for the current stream gets another in each of these calls, and nothing "
    "but its context orders them"
)
_ROUNDED_FACTORS = 8.0
"""Most that rounding factors moves a result, in units roundoff of the largest sum of |terms|."""

_FORWARD = "of an entry without a backward pass, `checks: {without: [gradients]}` says so"


class Results(dict[str, torch.Tensor]):
    """Outputs and gradients by name.

    Attributes:
        absent: the reason for each missing gradient, by name.
        parts: [parts, ...] terms of those results that are sums over ranks, by name.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        absent: Mapping[str, str] | None = None,
        parts: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        super().__init__(tensors)
        self.absent = dict(absent or {})
        self.parts = dict(parts or {})

    def inconsistencies(self, _bounds: ReferenceBounds, *, exact: bool) -> list[Finding]:
        """Findings between several copies of one result, of which one process has none.

        Copies agree in every bit if `exact`, otherwise within the sum of their error bounds.
        """
        del exact
        return []


def history_result(call: int, name: str) -> str:
    """The name of a result of one of the calls of a history."""
    return f"{call}:{name}"


def results_of_call(results: Mapping[str, torch.Tensor], call: int) -> dict[str, torch.Tensor]:
    """The results of one of the calls of a history, by their own names."""
    begin = history_result(call, "")
    return {
        name.removeprefix(begin): each for name, each in results.items() if name.startswith(begin)
    }


class OnDevice:
    """Runs an entry on a device, and copies tensors of problems that are on the CPU to it.

    Every tensor of a problem keeps its copy, which a later call refills: to the entry, a tensor
    that the caller refills stays the same one. Results come back to the CPU; if a later call
    overwrites the memory of an earlier result, that result changes there too.
    """

    def __init__(self, run: Callable[[Problem], Tensors], device: torch.device) -> None:
        self._run, self._device = run, device
        self._copies: Any = WeakIdKeyDictionary()  # from tensors of problems to their copies
        self._returned: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Results on the device, each with its copy on the CPU."""

    def __call__(self, problem: Problem) -> Tensors:
        """The results of one call, on the device of the problem's tensors."""
        if self.holds(problem):
            return self._run(problem)
        return self.to_host(self._run(self.to_device(problem)))

    def holds(self, problem: Problem) -> bool:
        """Whether the problem's tensors are on the device of the entry."""
        return all(each.device.type == self._device.type for each in problem.inputs.values())

    def to_device(self, problem: Problem) -> Problem:
        """The problem with copies of its tensors, of the same sizes, strides and alignment."""
        return problem.map_tensors(self._copied)

    def to_host(self, results: Tensors) -> Tensors:
        """The results on the CPU."""
        copies = dict(zip(results, on_cpu(list(results.values())), strict=True))
        memory = {tensor.untyped_storage().data_ptr() for tensor in results.values()}
        for earlier, copy in self._returned:
            if earlier.untyped_storage().data_ptr() in memory:
                copy.copy_(earlier)
        self._returned += [(results[name], copy) for name, copy in copies.items()]
        return Results(copies, results.absent) if isinstance(results, Results) else copies

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu":
            return tensor
        lead = lead_of(tensor)
        copy: torch.Tensor | None = self._copies.get(tensor)
        if copy is None:
            memory = torch.empty(lead + extent_of(tensor), dtype=tensor.dtype, device=self._device)
            copy = memory.as_strided(tensor.shape, tensor.stride(), lead)
            self._copies[tensor] = copy
        # Without a wait for the GPU: the memory is not pinned, so it is read before this returns.
        as_row(copy, lead).copy_(as_row(tensor, lead), non_blocking=True)
        return copy


class SeveralRanks(ABC):
    """Runs an entry on several ranks, each with its own memory."""

    @abstractmethod
    def run(
        self,
        problems: Sequence[Problem],
        sanitizers: SanitizerSession | None = None,
        *,
        poison: bool | None = None,
        streams: bool = False,
        captured: bool = False,
    ) -> tuple[Sequence[Tensors], list[Finding]]:
        """The whole results of consecutive calls on one context, and findings about them.

        Args:
            problems: the problem of each call; there is no wait between calls.
            sanitizers: collects reports.
            poison: put canaries around every buffer, of which the findings are; fresh memory holds
                NaN, or zeros with False.
            streams: make each call on a stream of its own.
            captured: capture the first call to a CUDA graph, and replay it with each problem.
        """

    def __call__(self, problem: Problem) -> Tensors:
        """The whole results of one call."""
        return self.run([problem])[0][0]

    @abstractmethod
    def advanced(
        self,
        problems: Sequence[Problem],
        *,
        far: bool,
        sanitizers: SanitizerSession | None = None,
    ) -> list[Tensors]:
        """The results of two consecutive calls after very many, or some, that are not made.

        They are made again for each flag that passes 2^31, or 2^32.

        Raises:
            InapplicableError: what the context counts does not grow by a constant.
        """


def run_guarded(
    execute: Callable[[Problem], Tensors],
    problem: Problem,
    *,
    poison: bool,
    sanitizers: SanitizerSession | None = None,
) -> tuple[Tensors, list[Finding]]:
    """The results of a call with canaries around every buffer, and the guards' findings.

    Fresh memory holds NaN with `poison`, otherwise zeros; `sanitizers` collects reports.
    """
    if isinstance(execute, SeveralRanks):
        (results,), found = execute.run([problem], sanitizers, poison=poison)
        return results, found
    if isinstance(execute, OnDevice) and not execute.holds(problem):
        results, found = run_guarded(
            execute, execute.to_device(problem), poison=poison, sanitizers=sanitizers
        )
        return execute.to_host(results), found
    with guarded(problem, poison=poison) as (inside, guards):
        if sanitizers is None:
            results = execute(inside)
        else:
            with sanitizers.enabled(inside):
                results = execute(inside)
    return results, guards.findings(results)


# Cases --------------------------------------------------------------------------------------------


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
            hint = None
            if isinstance(results, Results) and name in results.absent:
                mismatch = f"no gradient {name}: {results.absent[name]}"
                hint = _FORWARD if "does not require grad" in mismatch else None
            if mismatch is None:
                usable[name] = results[name]
            elif name in results or self.checks_values(name):
                check = self.check_of(name)
                found.append(Finding(check, mismatch, tensor=name, pattern="shape", hint=hint))
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
            poison = True if self.misused_memory else None
            return self.execute.run([problem], sanitizers, poison=poison)[0][0]

    def is_rounded_factor(
        self,
        problem: Problem,
        wrong: Mapping[str, torch.Tensor],
        fails: Callable[[Tensors], object],
        execute: Callable[[Problem], Tensors] | None = None,
    ) -> bool:
        """Whether results of a call are beyond their bounds for the rounding of factors alone.

        Tensor cores take factors in 16 bits, so a right kernel rounds those it computes, which the
        bound knows of products in the reference only. The call is made again with kernels that do
        not round them: then no result may fail, nor be wrong by more than half of its bound, and
        the wrong ones moved no further than such rounding moves a sum. One that overflows moves
        them further.

        Args:
            problem: of the call.
            wrong: the results that are beyond their bounds.
            fails: whether results of the call are beyond their bounds.
            execute: runs the entry; by default as the case does.
        """
        from tlmatrix.interpreter import unrounded_factors

        if not wrong or problem.operands is None or self.on_ranks or self.misused_memory:
            return False
        try:
            with unrounded_factors(str(problem.operands)[6:]):
                again = (execute or self.again)(problem)
        except BaseException as error:
            if unwinds(error):
                raise
            return False  # a kernel that cannot run so
        unit = _ROUNDED_FACTORS * torch.finfo(problem.operands).eps / 2
        for name, got in wrong.items():
            # Of the whole tensor: what products cancel inside, its own terms do not show.
            magnitude = problem.outputs[name].magnitude
            moved = (got.double() - again[name].double()).abs_()
            if magnitude is None or not bool((moved <= magnitude().max() * unit).all()):
                return False
        exact = self.bounds_of(problem, again)
        doubled = {
            name: torch.where(got == exact.reference[name], got, 2 * got - exact.reference[name])
            for name, got in ((name, again[name].double()) for name in wrong)
        }
        return not (fails(again) or deviations(doubled, exact))

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
        with self._race_detection(*[_ON_STREAMS] * streams) as sanitizers:
            run = self.execute.run(problems, sanitizers, captured=captured, streams=streams)
            return list(run[0])

    def race_detector(self) -> SanitizerSession | None:
        """The sanitizer of races alone, if the case has sanitizers."""
        if self.sanitizers is None:
            return None
        return SanitizerSession(self.spec, self.problem, only=frozenset({"races"}))

    @contextmanager
    def _race_detection(self, *notes: str) -> Iterator[SanitizerSession | None]:
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
            new = [finding for finding in found if finding.pattern not in known]
            self.races += [finding.with_notes(*notes) for finding in new]
