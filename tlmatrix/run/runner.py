"""Runs one case: makes its problem, calls the code under test, judges, and never raises.

A `Runner` keeps what cases of a process share: the backend, and for each spec the code it names
and the kernels already made.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tlmatrix.backend import (
    CompileBackend,
    backend_named,
    bind,
    execute,
    refuse_unknown_axes,
)
from tlmatrix.interpreter.recorder import Recorder
from tlmatrix.matrix.case import seed_from
from tlmatrix.run.coverage import counted, counting
from tlmatrix.run.invalid_inputs import check_invalid_input, invalid_problem
from tlmatrix.run.outcome import (
    Outcome,
    bug_words,
    error_outcome,
    spec_error_outcome,
    together,
    with_bug,
)
from tlmatrix.run.result import CaseResult, SkipReason, Status
from tlmatrix.run.returned import narrowed
from tlmatrix.run.watch import Watch
from tlmatrix.spec.importing import make_importable
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.sharding import has_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tlmatrix.backend import Backend, Binding
    from tlmatrix.backend.assembly import Assembler
    from tlmatrix.backend.ranks.executors import RankExecutor
    from tlmatrix.check.finding import Finding
    from tlmatrix.check.further import Relations
    from tlmatrix.matrix import Case
    from tlmatrix.problem import Family, Problem, Tensors
    from tlmatrix.spec.model.invalid_inputs import InvalidInput
    from tlmatrix.spec.model.spec import KnownBug, Spec
    from tlmatrix.spec.values import Value

__all__ = ["Runner", "case_seed", "run_case"]


def case_seed(case: Case, seed: int = 0) -> int:
    """The seed of a case's inputs; 0 is the case's own, any other gives other inputs."""
    seed = seed or case.run_seed
    if not seed:
        return case.seed
    return seed_from(f"{seed}:{case.key}")


def run_case(
    spec: Spec, case: Case, backend: Backend | str = "auto", *, seed: int = 0
) -> CaseResult:
    """Run and judge one case in this process.

    Raises:
        BackendUnavailableError: the backend cannot run here. Everything else is in the result.
    """
    name, place = (
        (backend, backend_named(backend)) if isinstance(backend, str) else (backend.name, backend)
    )
    runner = Runner(place, seed=seed, asked=name)
    try:
        return runner.run(spec, case)
    finally:
        runner.close()


@dataclass
class _Bound:
    binding: Binding
    family: Family
    returned: tuple[str, ...] | None = None


@dataclass
class Runner:
    """Runs cases one after the other in this process.

    `roots` are folders, besides the spec's own, that entries are imported from; `asked` is the
    backend as the user named it; `coverage` says whether results have theirs, where the backend
    can count it. With `strict`, a kernel that the interpreter does not model is an error.
    """

    backend: Backend
    seed: int = 0
    roots: tuple[Path, ...] = ()
    asked: str = "auto"
    coverage: bool = False
    strict: bool = False
    keep_going: bool = False
    """Whether checks are made that would fail for the same reason as an earlier one."""
    lost: str = ""
    """The case that left the backend unusable in this process; later ones are not run."""
    rank_seconds: float = 120.0
    """How long ranks may take for a call, or calls in a row, before they count as hung."""
    _bound: dict[tuple[Path, str, int | None], _Bound] = field(default_factory=dict)
    _assembler: Assembler | None = None
    _places: dict[str, RankExecutor] = field(default_factory=dict)

    def prepare(self) -> None:
        """Import what every case needs, so that the first one is not charged for it."""
        import torch

        from tlmatrix.check import judge  # noqa: F401

        with self.backend.active():
            # The first gradient of a process imports the whole of sympy.
            one = torch.ones(1, requires_grad=True)
            torch.autograd.grad(2 * one, one, torch.ones(1))

    def run(
        self, spec: Spec, case: Case, *, path: str | None = None, relations: Relations = "all"
    ) -> CaseResult:
        """Run and judge a case. `path` is how the user calls the spec's file.

        `relations` says which of the checks are made that run the code again: `all`, one that
        the case's seed picks (`rotate`: what a fuzz run does), or those of these names
        (`{"isolation"}`: what shrinking does). Where not all, the result says which were.
        """
        covers = self.coverage and self.backend.name == "interpreter"
        watch = Watch(Recorder() if covers else None, relations)
        shown = path or str(spec.path)
        try:
            outcome = self._outcome(spec, case, shown, watch)
        finally:
            for place in self._places.values():
                place.end()
        if any(finding.check == "memory" for finding in outcome.findings):
            self.backend.release()
        if not self.lost and self.backend.broken():
            self.lost = f"{shown}::{case.id}"
        total = watch.total()
        spent = sum(watch.phases.values())
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
            seconds=total,
            phases={**watch.phases, "judge": total - spent},
            backend=self.backend.name,
            arch=self.backend.arch,
            asked=self.asked,
            seed=self.seed,
            elements=watch.elements,
            closeness=watch.closeness,
            coverage=counted(watch.recorder),
            kernels=outcome.kernels,
            relations=() if relations == "all" else tuple(watch.made),
            distribution=watch.distribution,
        )

    def close(self) -> None:
        """End the processes that the backend may have started."""
        if self._assembler is not None:
            self._assembler.close()
            self._assembler = None
        for place in self._places.values():
            place.close()
        self._places = {}

    def outputs(self, spec: Spec, case: Case) -> tuple[Problem, Tensors]:
        """The problem of a case and what the code under test makes of it, not judged.

        Raises whatever the code under test raises, as EntryError.
        """
        problem, run = self.prepared(spec, case)
        return problem, run(problem)

    def prepared(self, spec: Spec, case: Case) -> tuple[Problem, Callable[[Problem], Tensors]]:
        """A new problem of a case, and what runs the code under test on such a problem."""
        bound = self._bind(spec)
        return self._problem(bound, spec, case), self._execution(bound.binding)

    def _outcome(self, spec: Spec, case: Case, path: str, watch: Watch) -> Outcome:
        from tlmatrix.matrix import known_bug

        if self.lost:
            words = (
                f"this process lost the GPU to a fault of {self.lost}; `--resume` runs what is "
                "left, and with workers (-n 1) nothing would be"
            )
            return Outcome(Status.SKIPPED, reason=SkipReason.DEVICE, message=words)
        bug: KnownBug | None = None
        try:
            if isinstance(self.backend, CompileBackend) and case.origin != "invalid":
                return self._assembled(self.backend, spec, case, watch)
            bug = known_bug(spec, case, self._environment())
            if bug is not None and bug.mode == "quarantine":
                return Outcome(Status.QUARANTINED, message=bug_words(bug))
            outcome = self._judged(spec, case, watch)
        except SpecError as error:
            return spec_error_outcome(error, path, _reference_place(spec))
        except Exception as error:  # noqa: BLE001 - whatever the code under test raises is a result
            outcome = error_outcome(error, self.backend, watch, strict=self.strict)
        whole = watch.relations == "all" and case.origin != "fuzz"
        return outcome if bug is None else with_bug(outcome, bug, whole=whole)

    def _assembled(self, backend: CompileBackend, spec: Spec, case: Case, watch: Watch) -> Outcome:
        """Compile the kernels of a case for each architecture; known bugs apply to each."""
        from tlmatrix.backend.assembly import Assembler
        from tlmatrix.matrix import known_bug
        from tlmatrix.run.assembly import compile_case, kernel_facts

        if self._assembler is None:
            self._assembler = Assembler()
        outcomes, facts, missing = [], [], []
        for arch in backend.architectures(spec.architectures):
            bug = known_bug(spec, case, {"arch": arch, "backend": backend.name})
            if bug is not None and bug.mode == "quarantine":
                outcomes.append(Outcome(Status.QUARANTINED, message=bug_words(bug)))
                continue
            bound = self._bind(spec, replace(backend, asked=(arch,)))
            with watch.phase("problem"):
                problem = self._problem(bound, spec, case)
            watch.elements = sum(tensor.numel() for tensor in problem.inputs.values())
            with watch.phase("entry"):
                found = compile_case(spec, case, bound.binding, problem, self._assembler)
            facts += [fact for each in found.kernels for fact in kernel_facts(each)]
            missing += [f"{arch}: {words}" for words in found.missing]
            status = Status.FAILED if found.findings else Status.PASSED
            outcome = Outcome(status, findings=found.findings)
            outcomes.append(outcome if bug is None else with_bug(outcome, bug, whole=True))
        return together(outcomes, tuple(facts), missing)

    def _environment(self) -> Mapping[str, str]:
        return {"arch": self.backend.arch, "backend": self.backend.name}

    def _judged(self, spec: Spec, case: Case, watch: Watch) -> Outcome:
        bound = self._bind(spec)
        with watch.phase("problem"):
            problem = self._problem(bound, spec, case)
        watch.elements = sum(tensor.numel() for tensor in problem.inputs.values())
        watch.bytes = sum(tensor.nbytes for tensor in problem.inputs.values())
        watch.distribution = str(problem.names.get("values") or "")

        run_entry = self._execution(bound.binding, watch)
        if case.origin == "invalid":
            findings = check_invalid_input(_invalid_input_of(spec, case), problem, run_entry)
        else:
            problem = narrowed(problem, self._returned(bound, spec, case))
            problem = self._with_agreements(bound, spec, case, problem, watch)
            findings = self._findings(spec, case, problem, run_entry, watch)
        return Outcome(Status.FAILED if findings else Status.PASSED, findings=tuple(findings))

    def _execution(
        self, binding: Binding, watch: Watch | None = None
    ) -> Callable[[Problem], Tensors]:
        """What runs the code under test, here or on several ranks; `watch` times and counts it."""
        turns = itertools.count()
        recorder = None if watch is None else watch.recorder

        @contextmanager
        def timed() -> Iterator[None]:
            phase = nullcontext() if watch is None else watch.phase("entry")
            with phase, counting(recorder):
                yield

        if has_ranks(binding.spec):
            from tlmatrix.backend.ranks.entry import EntryOnRanks

            place = self._place(binding.backend)
            return EntryOnRanks(binding, place, lambda: next(turns), timed)

        def run_entry(problem: Problem) -> Tensors:
            with timed():
                return execute(binding, problem, turn=next(turns))

        return run_entry

    def _place(self, backend: Backend) -> RankExecutor:
        """Where the ranks of cases run."""
        from tlmatrix.backend.ranks.executors import executor_for

        if backend.name not in self._places:
            self._places[backend.name] = executor_for(backend, self.roots, self.rank_seconds)
        return self._places[backend.name]

    def _returned(self, bound: _Bound, spec: Spec, case: Case) -> tuple[str, ...]:
        """Outputs that the code gives back; where the spec does not say, one run is the answer."""
        if spec.results:
            return spec.results
        if bound.returned is None:
            # On a problem of its own: an entry that writes to its inputs must not spoil ours.
            run = self._execution(bound.binding)
            bound.returned = tuple(run(self._problem(bound, spec, case)))
        return bound.returned

    def _problem(self, bound: _Bound, spec: Spec, case: Case) -> Problem:
        def make(values: Mapping[str, Value]) -> Problem:
            return bound.family.problem(
                spec, values, seed=case_seed(case, self.seed), device=self.backend.device
            )

        if case.origin == "invalid":
            takes = bound.binding.parameters
            return invalid_problem(spec, case, _invalid_input_of(spec, case), make, takes)
        from tlmatrix.problem.relations.user import with_user_relations

        seed = case_seed(case, self.seed)
        made = with_user_relations(spec, bound.family, make(case.values), seed, self._environment())
        if not has_ranks(spec):
            return made
        from tlmatrix.problem.sharding.whole import shared_out
        from tlmatrix.run.graphs import with_cuda_graph
        from tlmatrix.run.shapes import with_other_shapes

        whole = shared_out(spec, made)
        whole = with_other_shapes(spec, case, whole, bound.family, seed, self.backend.device)
        return with_cuda_graph(spec, case, whole, self._environment())

    def _with_agreements(
        self, bound: _Bound, spec: Spec, case: Case, problem: Problem, watch: Watch
    ) -> Problem:
        if not spec.agree:
            return problem
        from tlmatrix.run.agreement import Environment, with_agreements

        def tied(other: Spec, backend: Backend, number: int) -> tuple[Binding, Family]:
            made = self._bind(other, backend, number)
            return made.binding, made.family

        place = Environment(
            self.backend,
            case_seed(case, self.seed),
            tied,
            self._execution,
            lambda: watch.phase("agreement"),
        )
        return with_agreements(spec, case, problem, bound.family, place)

    def _findings(
        self,
        spec: Spec,
        case: Case,
        problem: Problem,
        run_entry: Callable[[Problem], Tensors],
        watch: Watch,
    ) -> list[Finding]:
        from tlmatrix.check import judge

        checks = set(spec.checks)
        if self.backend.name != "interpreter":
            checks.discard("sanitizers")  # They watch interpreted kernels alone.

        return judge(
            spec,
            case,
            problem,
            run_entry,
            checks=checks,
            arch=self.backend.arch,
            deterministic=self._deterministic(spec, problem.names),
            relations=watch.relations,
            made=watch.made.append,
            told=watch.set_closeness,
            keep_going=self.keep_going,
        )

    def _deterministic(self, spec: Spec, names: Mapping[str, Any]) -> bool:
        """Whether equal bits are asked for: the first rule that fits says, bitwise without one."""
        for rule in spec.determinism:
            if rule.when.evaluate({**names, **self._environment()}):
                return bool(rule.mode == "bitwise")
        return True

    def _bind(
        self, spec: Spec, backend: Backend | None = None, agreement: int | None = None
    ) -> _Bound:
        """The spec tied to its code, once; `agreement` is the number of one whose other side it is.

        Axes that only this side takes are no mistake of the other's.
        """
        backend = backend or self.backend
        key = (spec.path, repr(backend.targeting(spec.architectures)), agreement)
        if key not in self._bound:
            from tlmatrix.problem import family_for

            make_importable(spec.path, self.roots)
            binding = bind(spec, backend, roots=self.roots)
            family = family_for(spec)
            if agreement is None:
                refuse_unknown_axes(binding, family)
            self._bound[key] = _Bound(binding, family)
        return self._bound[key]


def _reference_place(spec: Spec) -> tuple[int, int] | None:
    """Line and column of the reference of a declared problem."""
    if isinstance(spec.problem, str) or spec.problem.reference is None:
        return None
    place = spec.issue(("problem", "reference"), "")
    return place.line, place.column


def _invalid_input_of(spec: Spec, case: Case) -> InvalidInput:
    from tlmatrix.matrix import invalid_cases

    return next(item.invalid for item in invalid_cases(spec) if item.case == case)
