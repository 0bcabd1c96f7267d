"""Judges a case by running it: on backends that execute kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tlmatrix.backend import EntryError
from tlmatrix.backend.axes import read_by_context
from tlmatrix.run.harness import case_seed, invalid_input_of, is_bitwise
from tlmatrix.run.invalid_inputs import (
    after_words,
    check_after_valid_call,
    check_invalid_input,
    check_single_gradients,
    covering,
    offered_values,
    refused_offer,
)
from tlmatrix.run.outcome import Outcome, bug_words, error_outcome, with_bug
from tlmatrix.run.process_state import StateGuard
from tlmatrix.run.result import Status
from tlmatrix.run.traced_options import check_other_options
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.spec import WORLD, has_ranks
from tlmatrix.tracebacks import unwinds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from tlmatrix.backend.binding import Binding
    from tlmatrix.check.finding import Finding
    from tlmatrix.check.registry import Reruns
    from tlmatrix.matrix import Case
    from tlmatrix.problem import Problem, Relation, RelationKind, Tensors
    from tlmatrix.run.harness import BoundSpec, Harness
    from tlmatrix.run.measurements import Measurements
    from tlmatrix.spec.model.checks import InvalidInput
    from tlmatrix.spec.model.spec import Spec


_MOST_RECORDED = 2**22
"""Most elements of the inputs of a failing case that runs once more, recorded."""
_MOST_OF_VALID = 2**17
"""Most elements of the inputs of a valid call that is made before an invalid one."""


@dataclass(frozen=True)
class JudgeOptions:
    """How a case is judged.

    Attributes:
        seed: seed of the run; 0 gives every case its own inputs.
        reruns: which checks that run the code again are made: `all`, one that the case's seed
            picks (`rotate`), or those of these names.
        checks: the only checks to make; None makes those of the spec.
        strict: a kernel that the interpreter does not model is an error, not skipped.
        keep_going: also make checks that would fail for the reason of an earlier finding.
        masked: make the checks that an earlier finding stopped, as if it did not exist.
        keep_compared: findings keep the tensors that they compared.
        explained: findings about values name an option of which they have another value and, on the
            interpreter, where in the program they come from.
    """

    seed: int = 0
    reruns: Reruns = "all"
    checks: Collection[str] | None = None
    strict: bool = False
    keep_going: bool = False
    masked: bool = False
    keep_compared: bool = False
    explained: bool = False


def execute_case(
    harness: Harness, spec: Spec, case: Case, options: JudgeOptions, measurements: Measurements
) -> Outcome:
    """Run a case and make its checks; known bugs of the spec are applied.

    Raises:
        SpecError: the spec does not match its code.
    """
    from tlmatrix.matrix import known_bug

    bug = known_bug(spec, case, harness.environment)
    if bug is not None and bug.mode == "quarantine":
        return Outcome(Status.QUARANTINED, message=bug_words(bug))
    try:
        bound = harness.bind_case(spec, case)
        with StateGuard("the code of the case", harness.left_changed, patches=True):
            execution = _Execution(harness, bound, spec, case, options, measurements)
            findings = execution.findings()
            if options.explained and measurements.elements <= _MOST_RECORDED:
                findings = execution.with_origin(findings)
        if not options.keep_compared:
            findings = [replace(finding, compared=None) for finding in findings]
        findings = _with_target(findings, bound.binding)
        outcome = Outcome(Status.FAILED if findings else Status.PASSED, tuple(findings))
    except SpecError:
        raise
    except BaseException as error:
        if unwinds(error):
            raise
        outcome = error_outcome(error, harness.backend, measurements, strict=options.strict)
    if "guards" in (spec.checks if options.checks is None else options.checks):
        outcome = outcome.with_findings(harness.left_changed)
    all_checks = options.reruns == "all" and case.origin != "fuzz"
    return outcome if bug is None else with_bug(outcome, bug, all_checks=all_checks)


def _with_target(findings: list[Finding], binding: Binding) -> list[Finding]:
    """The findings, with the traced architecture if it is not the first of the spec."""
    target, architectures = getattr(binding.backend, "target", ""), binding.spec.architectures
    if not binding.backend.executes or target not in architectures[1:]:
        return findings
    words = f"interpreted as traced for {target}, one of the `architectures` of the spec"
    return [
        replace(each, detail="\n".join(filter(None, (words, each.detail)))) for each in findings
    ]


@dataclass(frozen=True)
class _Execution:
    """A case that runs, bound to its code."""

    harness: Harness
    bound: BoundSpec
    spec: Spec
    case: Case
    options: JudgeOptions
    measurements: Measurements

    def problem(self) -> Problem:
        """The problem of the case."""
        return self.harness.problem(self.bound, self.spec, self.case, self.options.seed)

    def findings(self) -> list[Finding]:
        """Run the case and make its checks."""
        harness, spec, case, options = self.harness, self.spec, self.case, self.options
        with self.measurements.phase("problem"):
            problem = self.problem()
            if not options.explained:
                problem = replace(problem, other_options=tuple)
        self.measurements.measure_inputs(problem)
        if problem.gradient_of:
            import torch.utils._sympy.functions  # noqa: F401 - outside of the entry's first gradient
        run_entry = harness.entry(self.bound.binding, self.measurements)
        if case.origin == "invalid":
            return self._refused(problem, run_entry)
        problem = _narrowed(problem, harness.returned(self.bound, spec, case, options.seed))
        found = self._judged(self._with_agreements(problem), run_entry)
        if not found and options.checks is None and "sanitizers" in spec.checks:
            found = check_other_options(harness, spec, case)
        return found

    def _refused(self, problem: Problem, run_entry: Callable[[Problem], Tensors]) -> list[Finding]:
        """Check the refusal of an invalid input, and judge what it offers in its place."""
        from tlmatrix.matrix import valid_case

        harness, spec, case = self.harness, self.spec, self.case
        invalid = invalid_input_of(spec, case)
        valid = valid_case(spec, case, invalid)
        called = valid is not None and valid.key in harness.shared_checks(spec).called
        covered = covering(spec, run_entry, self.measurements.recorder)
        found, message = check_invalid_input(invalid, problem, covered)
        # Compiled, the valid call would take a kernel of its own, for checks that are the host's.
        if valid is not None and not found and not called and not harness.backend.compiles:
            found, called = self._refused_after(valid, invalid, problem, run_entry), True
        if valid is not None and called:
            found = [replace(each, call=after_words(valid, invalid)) for each in found]
        if has_ranks(spec) or not harness.backend.executes:
            return found
        found = found or check_single_gradients(invalid, problem, message, run_entry)
        for what, other in offered_values(spec, case, invalid, message):
            try:
                made = harness.problem(self.bound, spec, other, self.options.seed)
            except (SpecError, ValueError):
                continue  # the family does not have it
            judged = replace(self, case=other, options=replace(self.options, reruns=()))
            try:
                wrong = judged._judged(made, run_entry)  # noqa: SLF001 - its own class
            except EntryError as error:
                found += refused_offer(what, message, error.error)
            else:
                words = f"with {what}, which a message of the entry offers and no case has"
                found += [
                    replace(each, detail="\n".join(filter(None, (words, each.detail))))
                    for each in wrong
                ]
        return found

    def _refused_after(
        self,
        case: Case,
        invalid: InvalidInput,
        problem: Problem,
        run_entry: Callable[[Problem], Tensors],
    ) -> list[Finding]:
        """Check the refusal of an invalid input after the call of a valid case, if that is small.

        Later invalid inputs of the process come after the same call, but for those of ranks, which
        have a context for each case.
        """
        from tlmatrix.matrix import known_bug
        from tlmatrix.run.other_calls import many_ranks

        harness, spec = self.harness, self.spec
        if many_ranks(spec, case) or known_bug(spec, case, harness.environment) is not None:
            return []
        if read_by_context(spec) & invalid.settings.keys():
            return []  # read when the context is made, before the valid call
        device, seed = harness.backend.device, case_seed(case, self.options.seed)
        try:
            valid = self.bound.family.problem(spec, case.values, seed=seed, device=device)
        except (SpecError, ValueError):
            return []  # a finding of its own case
        large = sum(tensor.numel() for tensor in valid.inputs.values()) > _MOST_OF_VALID
        if large or valid.values.get(WORLD) != problem.values.get(WORLD):
            return []
        if not has_ranks(spec):
            harness.shared_checks(spec).called.add(case.key)
        return check_after_valid_call(invalid, problem, valid, run_entry)

    def with_origin(self, findings: list[Finding]) -> list[Finding]:
        """The findings, of which the first about values says where in the program they come from.

        All is said about the smallest case of each kind of finding, which reports show.
        """
        from tlmatrix.run.origin import with_origin

        harness, traced = self.harness, self.harness.backend.measures_coverage
        if self.case.origin == "invalid" or not findings or (has_ranks(self.spec) and not traced):
            return findings
        cause, smallest = findings[0].cause, harness.shared_checks(self.spec).smallest
        whole = self.measurements.elements < smallest.get(cause, _MOST_RECORDED + 1)
        if whole:
            smallest[cause] = self.measurements.elements
        known = len(harness.left_changed)
        try:
            return with_origin(
                self.spec,
                findings,
                lambda: (self.problem(), harness.entry(self.bound.binding)),
                traced=traced,
                whole=whole,
            )
        finally:
            del harness.left_changed[known:]  # which the first run has left, too

    def _with_agreements(self, problem: Problem) -> Problem:
        if not self.spec.agree:
            return problem
        from tlmatrix.run.agreement import OtherSides, with_agreements

        others = OtherSides(
            self.harness,
            case_seed(self.case, self.options.seed),
            lambda: self.measurements.phase("agreement"),
        )
        return with_agreements(self.spec, self.case, problem, self.bound.family, others)

    def _judged(self, problem: Problem, run_entry: Callable[[Problem], Tensors]) -> list[Finding]:
        from tlmatrix.check import judge

        spec, backend, options = self.spec, self.harness.backend, self.options
        checks = set(spec.checks if options.checks is None else options.checks)
        return judge(
            spec,
            self.case,
            problem,
            run_entry,
            checks=checks - backend.unsupported_checks,
            arch=backend.arch,
            deterministic=is_bitwise(spec, {**problem.names, **self.harness.environment}),
            reruns=options.reruns,
            on_check=self.measurements.relations.append,
            on_error_ratio=self.measurements.set_error_ratio,
            keep_going=options.keep_going,
            masked=options.masked,
            keep_compared=options.keep_compared or options.explained,
        )


def _narrowed(problem: Problem, returned: Collection[str]) -> Problem:
    """Restrict a problem and its relations to the outputs in `returned` and their gradients.

    The spec names them in `returns`; by default they are the first ones, as many as are returned.
    """
    keep = {*returned, *problem.gradient_of}

    def relations(kind: RelationKind) -> Iterator[Relation]:
        for relation in problem.relations(kind):
            inner = tuple(_narrowed(each, returned) for each in relation.problems)
            yield replace(relation, problems=inner)

    if keep >= problem.outputs.keys():
        return problem
    outputs = {name: info for name, info in problem.outputs.items() if name in keep}
    return replace(problem, outputs=outputs, relations=relations)
