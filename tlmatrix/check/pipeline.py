"""Runs all checks of a case, the most informative first.

First comes one run with guards, poison and sanitizers, compared with the reference; then equal
calls; then the metamorphic relations. Checks that would only repeat a finding are left out: after
wrong values, relations, repeated calls and agreement fail for the same reason, while isolation
and poison may show the cause. `rerun_checks` selects among the checks that need more runs.

A problem without a reference takes the results of the first run for it: their values are not
checked, and the error bounds of relations follow from the size of these results.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from tlmatrix.check.bias import biases
from tlmatrix.check.determinism import compare_runs
from tlmatrix.check.diagnose import diagnose, merge_by_cause, merge_raised, worst_of
from tlmatrix.check.finding import NOT_RUN, Finding
from tlmatrix.check.layouts import check_layouts
from tlmatrix.check.numeric import Deviation, describe_mismatch, deviations
from tlmatrix.check.one_sided import one_sided
from tlmatrix.check.poison import poison_mask
from tlmatrix.check.poisoned_rows import poisoned_row_hints
from tlmatrix.check.relations import check_relation, of_call, raised
from tlmatrix.check.rerun_checks import (
    RELATION_KINDS,
    RERUN_CHECKS,
    Reruns,
    is_selected,
    pick_autograd_variant,
    pick_fewer_gradients,
    pick_relation,
    rotation_order,
)
from tlmatrix.check.results import Results
from tlmatrix.check.running import SeveralRanks, run_guarded
from tlmatrix.check.sanitizers import SanitizerSession
from tlmatrix.check.tolerance import ReferenceBounds
from tlmatrix.problem.model import InapplicableError
from tlmatrix.unwinding import unwinds
from tlmatrix.words import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from tlmatrix.matrix.case import Case
    from tlmatrix.problem.model import (
        AutogradVariant,
        Problem,
        Relation,
        RelationKind,
        Tensors,
    )
    from tlmatrix.spec.model.spec import Spec

_RUNS = 3
"""Equal calls that the determinism check compares, including the first run."""

_ON_STREAMS = 8
"""Of this many cases on several ranks, one makes equal calls on streams that nothing orders."""
_OF_RANKS = 3
"""Of this many cases on several ranks, one is called with fewer gradients, too."""

_NAN_HINT = (
    "no input holds NaN: avoid 0/0 and inf - inf in the reference; if NaN is intended, return it "
    "from the entry too"
)

_KIND_OF: dict[str, RelationKind] = {kind: kind for kind in RELATION_KINDS}


def judge(
    spec: Spec,
    case: Case,
    problem: Problem,
    execute: Callable[[Problem], Tensors],
    *,
    checks: Collection[str],
    arch: str,
    deterministic: bool,
    reruns: Reruns = "all",
    on_check: Callable[[str], object] = str,
    on_error_ratio: Callable[[float], None] | None = None,
    keep_going: bool = False,
    masked: bool = False,
    keep_compared: bool = False,
) -> list[Finding]:
    """Run the checks of a case and return the findings.

    Args:
        spec: the spec.
        case: the case; its seed selects checks in rotation.
        problem: its inputs and reference.
        execute: calls the entry and returns outputs and gradients by name.
        checks: names of the checks to run.
        arch: selects tolerances.
        deterministic: whether equal calls must give equal bits.
        reruns: which of the checks that run the entry again to run.
        on_check: called with `determinism` and the name of each relation before it runs.
        on_error_ratio: called with the error ratio (`ReferenceBounds.error_ratio`) if all values
            are within their error bounds.
        keep_going: also run checks that probably fail for the same reason as an earlier finding.
        masked: run the checks that an earlier finding stopped as if it did not exist: accesses
            outside are skipped, and relations compare with the results of the first run.
        keep_compared: whether findings keep the tensors that they compared.

    Raises:
        Exception: what `execute` raised in the first run, unless a sanitizer has a report; later
            runs that raise are findings.
    """
    pipeline = _Pipeline(
        spec, case, problem, execute, frozenset(checks), arch, deterministic, on_error_ratio
    )
    if masked:
        found = pipeline.masked_findings(on_check)
    else:
        found = pipeline.findings(reruns, on_check, keep_going=keep_going)
    return found if keep_compared else [replace(finding, compared=None) for finding in found]


@dataclass
class _Pipeline:
    """The checks of one case; `judge` describes the parameters."""

    _spec: Spec
    _case: Case
    _problem: Problem
    _execute: Callable[[Problem], Tensors]
    _checks: frozenset[str]
    _arch: str
    _deterministic: bool
    _on_error_ratio: Callable[[float], None] | None
    _misused_memory: bool = False
    _masks_accesses: bool = False
    """Whether sanitizers skip accesses at which later calls would end."""
    _races: list[Finding] = field(default_factory=list)
    """Findings of sanitizers in later runs on several ranks."""

    def __post_init__(self) -> None:
        self._bounds = ReferenceBounds(self._problem, self._spec.tolerance, self._arch)
        self._sanitizers = None
        if "sanitizers" in self._checks:
            demanded = self._deterministic and "determinism" in self._checks
            self._sanitizers = SanitizerSession(self._spec, self._problem, deterministic=demanded)

    def findings(
        self, reruns: Reruns, on_check: Callable[[str], object], *, keep_going: bool
    ) -> list[Finding]:
        later = [check for check in RERUN_CHECKS if check in self._checks]
        stopped = f"{NOT_RUN}{listed(later)}: " if later else "stopped: "
        try:
            first, found = self._first_run()
        except BaseException as error:
            if unwinds(error):
                raise
            reported = self._with_reports({}, [])
            if not reported:
                raise
            return merge_by_cause(_with_detail(reported, f"the run ended: {_first_line(error)}"))
        self._bounds = self._make_bounds(self._problem, first)
        unusable, usable = self._split(first)
        if unusable:
            note = f"{stopped}a result cannot be compared"
            return merge_by_cause(_with_detail(self._with_reports(first, found + unusable), note))
        if not self._problem.has_reference:
            self._use_as_reference(first)
        numeric = self._numeric(usable)
        copies = []
        if isinstance(first, Results):
            copies = first.inconsistencies(self._bounds, exact=self._deterministic)
        found = self._with_reports(first, found + copies + numeric)
        if self._sanitizers is not None and self._sanitizers.fatal:
            note = f"{stopped}without sanitizers, the kernel stops at this access"
            return merge_by_cause(_with_detail(found, note))
        # Guarded calls have copies of the inputs, so that none starts from a changed input.
        self._misused_memory = any(finding.check in ("guards", "poison") for finding in found)
        checks = self._checks & frozenset(RERUN_CHECKS)
        redundant: frozenset[str] = frozenset()
        if numeric:
            # A later call has its own reference, which says nothing if the first call was wrong.
            redundant = frozenset(
                {"repeat", "propagation"}
                if keep_going
                else {"relations", "repeat", "agreement", "propagation"}
            )
            if not self._deterministic:
                # The bound of wrong sums in any order is not known.
                redundant |= {"determinism"}
        if reruns == "rotate":
            found += self._one_in_rotation(checks - redundant, usable, on_check)
        else:
            checks = frozenset(check for check in checks if is_selected(check, reruns))
            found += self._all(checks - redundant, usable, on_check)
        found = merge_raised(found)
        known = {finding.pattern for finding in found}
        found += [finding for finding in self._races if finding.pattern not in known]
        if checks & redundant:
            skipped = [
                check
                for check in RERUN_CHECKS
                if check in checks & redundant - {"propagation"}
                and (check == "determinism" or self._has(check))
            ]
            more = "" if keep_going else "; `--keep-going` runs all but repeat"
            note = f"{NOT_RUN}{listed(skipped)}: wrong values make them fail too{more}"
            found = _with_detail(found, note) if skipped else found
        return merge_by_cause(found)

    def masked_findings(self, on_check: Callable[[str], object]) -> list[Finding]:
        """The findings of rerun checks, as if the first run had neither findings nor reports."""
        first, found = self._first_run()
        self._bounds = self._make_bounds(self._problem, first)
        unusable, usable = self._split(first)
        self._misused_memory = True
        self._masks_accesses = self._sanitizers is not None and bool(self._with_reports(first, []))
        relations = not unusable and bool(usable)
        if relations:
            self._use_as_reference(first)
        checks = self._checks & {"determinism", *(RELATION_KINDS if relations else ())}
        if not self._deterministic:
            checks = frozenset()  # the bound of wrong sums in any order is not known
        # A second call and other variants have values of their own to be compared with.
        unstable = self._all(checks & {"determinism"}, usable, on_check)
        checks -= {"determinism", "repeat", "agreement", "propagation"}
        found += unstable or self._all(checks, usable, on_check)
        return merge_by_cause(found)

    def _all(
        self, checks: frozenset[str], first: Tensors, on_check: Callable[[str], object]
    ) -> list[Finding]:
        """The findings of these rerun checks."""
        found = []
        if "determinism" in checks:
            on_check("determinism")
            found += self._repeatable(first)
        stable = not found
        for check in RERUN_CHECKS:
            if check in checks and check in _KIND_OF:
                for relation in self._problem.relations(_KIND_OF[check]):
                    on_check(relation.name)
                    found += self._related(relation, first, exact=stable)
        return found

    def _has(self, check: str) -> bool:
        """Whether the problem has a relation of this check."""
        return next(iter(self._problem.relations(_KIND_OF[check])), None) is not None

    def _one_in_rotation(
        self, checks: frozenset[str], first: Tensors, on_check: Callable[[str], object]
    ) -> list[Finding]:
        """The findings of the first of these checks, in the case's order, that applies."""
        for check in rotation_order(checks, self._case.seed):
            if check == "determinism":
                on_check("determinism")
                return self._repeatable(first, 2)
            relations = list(self._problem.relations(_KIND_OF[check]))
            if relations:
                relation = pick_relation(relations, self._case.seed)
                on_check(relation.name)
                return self._related(relation, first, exact=True)
        return []

    def _make_bounds(self, problem: Problem, results: Tensors) -> ReferenceBounds:
        parts = results.parts if isinstance(results, Results) else {}
        return ReferenceBounds(problem, self._spec.tolerance, self._arch, self._bounds, parts)

    def _first_run(self) -> tuple[Tensors, list[Finding]]:
        if not self._checks & {"guards", "poison", "sanitizers"}:
            return self._execute(self._problem), []
        # Sanitizers recognize uninitialized memory by its poison.
        poison = bool(self._checks & {"poison", "sanitizers"})
        results, found = run_guarded(
            self._execute, self._problem, poison=poison, sanitizers=self._sanitizers
        )
        return results, found if "guards" in self._checks else []

    def _with_reports(self, results: Tensors, found: list[Finding]) -> list[Finding]:
        """The findings of sanitizers in the first run, then `found`."""
        if self._sanitizers is None:
            return found
        # Simulated ranks are not run again to explain a report.
        rerun = None if isinstance(self._execute, SeveralRanks) else self._execute
        return self._sanitizers.findings(results, found, rerun)

    def _again(self, problem: Problem) -> Tensors:
        """Run the entry again; guarded if it misused memory, which could corrupt this process."""
        if not isinstance(self._execute, SeveralRanks):
            if self._misused_memory:
                masking = SanitizerSession(self._spec, problem) if self._masks_accesses else None
                return run_guarded(self._execute, problem, poison=True, sanitizers=masking)[0]
            return self._execute(problem)
        with self._race_detection() as sanitizers:
            if self._misused_memory:
                return self._execute.guarded(problem, poison=True, sanitizers=sanitizers)[0]
            return self._execute.in_a_row([problem], sanitizers=sanitizers)[0]

    def _sanitized(self, problem: Problem, sanitizers: SanitizerSession) -> Tensors:
        """Run the entry again with guards, and under these sanitizers if the case has any."""
        session = None if self._sanitizers is None else sanitizers
        if self._masks_accesses:
            session = SanitizerSession(self._spec, problem)
        return run_guarded(self._execute, problem, poison=True, sanitizers=session)[0]

    def _checks_values(self, name: str) -> bool:
        """Whether a check compares this tensor with its reference."""
        return self._check_of(name) in self._checks or "poison" in self._checks

    def _check_of(self, name: str) -> str:
        return "gradients" if name in self._problem.gradient_of else "numeric"

    def _split(self, results: Tensors) -> tuple[list[Finding], Tensors]:
        """Findings about tensors that cannot be compared, and the other tensors."""
        found, usable = [], {}
        for name, info in self._problem.outputs.items():
            mismatch = describe_mismatch(name, info, results.get(name))
            if isinstance(results, Results) and name in results.absent:
                mismatch = f"no gradient {name}: {results.absent[name]}"
            if mismatch is None:
                usable[name] = results[name]
            elif name in results or self._checks_values(name):
                found.append(Finding(self._check_of(name), mismatch, tensor=name, pattern="shape"))
        return found, usable

    def _use_as_reference(self, results: Tensors) -> None:
        """Use results as the reference from now on."""
        exact = {name: results[name].double() for name in self._problem.outputs}
        self._problem = replace(self._problem, reference=lambda: exact, lowp=dict)
        self._bounds = self._make_bounds(self._problem, results)

    def _unwritten(self, results: Tensors) -> list[Finding]:
        """Findings about results that still hold poison; needs no reference."""
        found = []
        for name, got in results.items():
            mask = poison_mask(got)
            if mask is not None and bool(mask.any()):
                worst = int(mask.flatten().int().argmax())
                deviation = Deviation(got, got, mask, float("inf"), worst, "element")
                finding = diagnose("poison", name, deviation, self._bounds)
                found.append(replace(finding, expected=None, got=None))
        return found

    def _numeric(self, results: Tensors) -> list[Finding]:
        if not self._problem.has_reference:
            return self._unwritten(results) if "poison" in self._checks else []
        compared = {name: got for name, got in results.items() if self._checks_values(name)}
        wrong = (
            deviations(compared, self._bounds)
            or biases(compared, self._bounds)
            or one_sided(compared, self._bounds)
        )
        if not wrong:
            ratio = self._bounds.error_ratio() if self._on_error_ratio is not None else None
            if self._on_error_ratio is not None and ratio is not None:
                self._on_error_ratio(ratio)
            return []
        uninitialized = self._depends_on_poison(wrong)
        rest = {name: each for name, each in wrong.items() if name not in uninitialized}
        hints = poisoned_row_hints(
            rest, self._bounds, lambda each: run_guarded(self._execute, each, poison=True)[0]
        )
        found = []
        for name, deviation in wrong.items():
            check = self._check_of(name)
            unwritten = poison_mask(deviation.got)
            if "poison" in self._checks and (unwritten is not None or name in uninitialized):
                check = "poison"
            elif check not in self._checks:
                continue
            finding = diagnose(check, name, deviation, self._bounds)
            finding = replace(finding, hint=hints.get(name, finding.hint))
            if (title := self._nan_of_reference(name, deviation)) is not None:
                found.append(replace(finding, check="reference", title=title, hint=_NAN_HINT))
                continue
            if check == "poison" and unwritten is None:
                finding = replace(
                    finding,
                    hint="reads uninitialized memory: the result changes if that memory starts as "
                    "zeros (is a workspace assumed to be zero?)",
                )
            found.append(finding)
        gradients = [finding for finding in found if finding.check == "gradients"]
        others = [finding for finding in found if finding.check != "gradients"]
        if others and gradients:
            # Wrong outputs make their gradients wrong, so one finding covers all gradients.
            return [*others, worst_of(gradients, "also wrong")]
        return found

    def _nan_of_reference(self, name: str, deviation: Deviation) -> str | None:
        """The title of a finding if only the reference has NaN, and no input does."""
        lacks = deviation.wrong & deviation.expected.isnan() & ~deviation.got.isnan()
        inputs = (each for each in self._problem.inputs.values() if each.is_floating_point())
        if not bool(lacks.any()) or any(bool(each.isnan().any()) for each in inputs):
            return None
        return (
            f"reference error: {name}: the reference gives NaN in {int(lacks.sum())} of "
            f"{lacks.numel()} elements where the entry gives numbers"
        )

    def _depends_on_poison(self, wrong: dict[str, Deviation]) -> set[str]:
        """Tensors with NaN that change if fresh memory holds zeros instead of poison."""
        with_nan = {
            name: deviation.got
            for name, deviation in wrong.items()
            if bool((deviation.got.isnan() & ~deviation.expected.isnan()).any())
        }
        if not with_nan or "poison" not in self._checks:
            return set()
        try:
            again, _ = run_guarded(self._execute, self._problem, poison=False)
        except BaseException as error:
            if unwinds(error):
                raise
            return set()  # another run that does not end is no evidence
        return {
            name
            for name, got in with_nan.items()
            if name in again and bool((got.isnan() & ~again[name].isnan()).any())
        }

    def _repeatable(self, first: Tensors, runs: int = _RUNS) -> list[Finding]:
        variant = self._autograd_variant(runs)
        # On ranks the third call reuses double-buffered memory.
        equal = runs if variant is None or self._in_a_row else runs - 1
        results = self._equal_calls(equal - 1)
        for number in range(2, equal + 1):
            try:
                again = next(results)
            except BaseException as error:
                if unwinds(error):
                    raise
                return [raised("determinism", error, f"call {number} of the same problem ")]
            found = compare_runs(first, again, self._bounds, exact=self._deterministic)
            if found:
                calls = [self._problem] * (number - 1)
                return [of_call(each, calls, number - 2, self._problem) for each in found]
        return [] if variant is None else self._called_differently(first, variant)

    def _autograd_variant(self, runs: int) -> AutogradVariant | None:
        """The variant of the last call; of two calls, and of ranks, not in all cases."""
        seed = self._case.seed
        if "gradients" not in self._checks or (runs < _RUNS and seed % 2):
            return None
        if self._in_a_row:
            return None if seed // 3 % _OF_RANKS else pick_fewer_gradients(self._problem, seed)
        return pick_autograd_variant(self._problem, seed)

    def _called_differently(self, first: Tensors, variant: AutogradVariant) -> list[Finding]:
        """Findings about results that change with the way in which autograd calls the entry."""
        bounds = self._bounds
        try:
            if variant.baseline is not None:
                first = self._again(replace(self._problem, autograd=variant.baseline))
                bounds = self._bounds_of_values(first)
            differently = replace(self._problem, autograd=variant)
            if variant.requires:
                # Kernels may write gradients that were not asked for, to memory that is none.
                again, written = run_guarded(self._execute, differently, poison=True)
                if written and "guards" in self._checks:
                    return [
                        replace(each, title=f"with {variant}: {each.title}") for each in written
                    ]
            else:
                again = self._again(differently)
        except InapplicableError:
            return []  # autograd refused, as it should
        except BaseException as error:
            if unwinds(error):
                raise
            return [raised("determinism", error, f"with {variant}: ")]
        hint = f"the results depend on the way in which autograd calls the entry: {variant}"
        if variant.kind == "changed":
            hint += "; with ctx.save_for_backward autograd refuses such a backward pass"
        if isinstance(again, Results):
            lost = {
                name: why
                for name, why in again.absent.items()
                if name in first
                and (name in self._problem.gradient_of or self._depends_on_inputs(name))
            }
            if lost:
                name, why = next(iter(lost.items()))
                title = f"no gradient {name}: {why}"
                return [Finding("determinism", title, tensor=name, pattern="shape", hint=hint)]
        if variant.kind == "some":  # on several ranks, nothing says why a gradient is absent
            wanted = (n for n, of in self._problem.gradient_of.items() if of in variant.requires)
            for name in wanted:
                if name in first and name not in again:
                    title = f"no gradient {name}: the backward pass gives None for it"
                    return [Finding("determinism", title, tensor=name, pattern="shape", hint=hint)]
        for name, got in again.items():
            mismatch = name in first and describe_mismatch(name, self._problem.outputs[name], got)
            if mismatch:
                return [Finding("determinism", mismatch, tensor=name, pattern="shape", hint=hint)]
        # Another layout may change the order of sums, as in reductions of PyTorch.
        found = compare_runs(first, again, bounds, exact=False)
        if not found:
            return []
        try:
            equal = self._again(replace(self._problem, autograd=variant.baseline))
        except BaseException as error:
            if unwinds(error):
                raise
            return [raised("determinism", error, "an equal call ")]
        unstable = compare_runs(first, equal, bounds, exact=self._deterministic)
        calls = [replace(self._problem, autograd=variant)]
        return unstable or [
            of_call(replace(finding, hint=hint), calls, 0, self._problem) for finding in found
        ]

    def _bounds_of_values(self, results: Tensors) -> ReferenceBounds:
        """Error bounds that follow from the size of results, which have no reference."""
        outputs = {
            name: replace(self._problem.outputs[name], magnitude=None, spread=None, exponent=None)
            for name in results
            if name in self._problem.outputs
        }
        exact = {name: results[name].double() for name in outputs}
        problem = replace(self._problem, outputs=outputs, reference=lambda: exact, lowp=dict)
        return ReferenceBounds(problem, self._spec.tolerance, self._arch)

    def _depends_on_inputs(self, name: str) -> bool:
        """Whether the reference of an output changes with an input that has a gradient."""
        problem = self._problem
        if problem.with_inputs is None or not problem.has_reference:
            return False
        inputs = set(problem.gradient_of.values())
        other = problem.with_inputs({each: problem.inputs[each] * 0.5 for each in inputs})
        return not bool((other.reference()[name] == problem.reference()[name]).all())

    @property
    def _in_a_row(self) -> bool:
        """Whether equal calls run without a wait between them: ranks can confuse such calls."""
        return isinstance(self._execute, SeveralRanks)

    def _equal_calls(self, count: int) -> Iterator[Tensors]:
        if self._in_a_row:
            streams = self._sanitizers is not None and self._case.seed % _ON_STREAMS == 1
            # The host waits in two calls, which allocate halves of double-buffered memory. The
            # fourth call reuses that of the second.
            calls = max(count, 4) if streams else count
            yield from self._run_in_a_row([self._problem] * calls, streams=streams)
        else:
            for _ in range(count):
                yield self._again(self._problem)

    def _run_in_a_row(
        self, problems: Sequence[Problem], *, captured: bool = False, streams: bool = False
    ) -> list[Tensors]:
        """Run consecutive calls under race detection, above all between a call and the next."""
        assert isinstance(self._execute, SeveralRanks)
        with self._race_detection() as sanitizers:
            if captured:
                return self._execute.captured(problems, sanitizers=sanitizers)
            return self._execute.in_a_row(problems, sanitizers=sanitizers, streams=streams)

    @contextmanager
    def _race_detection(self) -> Iterator[SanitizerSession | None]:
        """Detect races in a later run on several ranks, which has another interleaving."""
        if self._sanitizers is None:
            yield None
            return
        sanitizers = self._race_detector()
        try:
            yield sanitizers
        finally:
            known = {finding.pattern for finding in self._races}
            found = sanitizers.findings({}, [], None)
            self._races += [finding for finding in found if finding.pattern not in known]

    def _race_detector(self) -> SanitizerSession:
        return SanitizerSession(self._spec, self._problem, only=frozenset({"races"}))

    def _after_many_calls(self, relation: Relation, first: Tensors) -> list[Finding]:
        """Findings about calls near 2^31, if calls after a few that are not made are right."""
        assert isinstance(self._execute, SeveralRanks)
        found: list[Finding] = []
        for far in (True, False):
            races = None if self._sanitizers is None else self._race_detector()
            try:
                results = self._execute.advanced(relation.problems, far=far, sanitizers=races)
                wrong = [
                    replace(each, check=relation.kind)
                    for result in results
                    for each in compare_runs(first, result, self._bounds, exact=False)
                ]
                if races is not None:
                    wrong += races.findings({}, [], None)
            except InapplicableError:
                return []
            except BaseException as error:
                if unwinds(error):
                    raise
                wrong = [raised(relation.kind, error)]
            if not far:
                return [] if wrong else found
            if not wrong:
                return []
            found = [
                replace(each, title=f"{relation.name}: {each.title}").with_notes(relation.because)
                for each in wrong[:1]
            ]
        return found

    def _related(self, relation: Relation, first: Tensors, *, exact: bool) -> list[Finding]:
        if relation.advanced:
            return self._after_many_calls(relation, first)
        if relation.layouts:
            return check_layouts(
                relation, first, self._bounds, self._sanitized, self._make_bounds, self._spec
            )
        return check_relation(
            relation,
            first,
            self._bounds,
            self._again,
            self._make_bounds,
            deterministic=exact and self._deterministic,
            in_a_row=partial(self._run_in_a_row, captured=relation.captured)
            if self._in_a_row
            else None,
        )


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]


def _with_detail(findings: list[Finding], note: str) -> list[Finding]:
    """Add a note to the detail of the first finding."""
    return [findings[0].with_notes(note), *findings[1:]] if findings else []
