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
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tlmatrix.check.determinism import compare_runs
from tlmatrix.check.diagnose import diagnose, merge_by_cause, worst_of
from tlmatrix.check.finding import Finding
from tlmatrix.check.numeric import Deviation, describe_mismatch, deviations
from tlmatrix.check.poison import poison_mask
from tlmatrix.check.relations import check_relation, raised
from tlmatrix.check.rerun_checks import (
    RELATION_KINDS,
    RERUN_CHECKS,
    Reruns,
    is_selected,
    pick_relation,
    rotation_order,
)
from tlmatrix.check.results import Results
from tlmatrix.check.running import SeveralRanks, run_guarded
from tlmatrix.check.sanitizers import SanitizerSession
from tlmatrix.check.tolerance import ReferenceBounds
from tlmatrix.words import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from tlmatrix.matrix.case import Case
    from tlmatrix.problem.model import Problem, Relation, RelationKind, Tensors
    from tlmatrix.spec.model.spec import Spec

__all__ = ["judge"]

_RUNS = 3
"""Equal calls that the determinism check compares, including the first run."""

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

    Raises:
        Exception: what `execute` raised in the first run, unless a sanitizer has a report; later
            runs that raise are findings.
    """
    pipeline = _Pipeline(
        spec, case, problem, execute, frozenset(checks), arch, deterministic, on_error_ratio
    )
    return pipeline.findings(reruns, on_check, keep_going=keep_going)


class _Pipeline:
    """The checks of one case."""

    def __init__(
        self,
        spec: Spec,
        case: Case,
        problem: Problem,
        execute: Callable[[Problem], Tensors],
        checks: frozenset[str],
        arch: str,
        deterministic: bool,
        on_error_ratio: Callable[[float], None] | None,
    ) -> None:
        self._spec = spec
        self._case = case
        self._problem = problem
        self._execute = execute
        self._checks = checks
        self._arch = arch
        self._deterministic = deterministic
        self._on_error_ratio = on_error_ratio
        self._misused_memory = False
        self._races: list[Finding] = []
        """Findings of sanitizers in later runs on several ranks."""
        self._bounds = ReferenceBounds(problem, spec.tolerance, arch)
        self._sanitizers = SanitizerSession(spec, problem) if "sanitizers" in checks else None

    def findings(
        self, reruns: Reruns, on_check: Callable[[str], object], *, keep_going: bool
    ) -> list[Finding]:
        later = [check for check in RERUN_CHECKS if check in self._checks]
        stopped = f"not run: {listed(later)}: " if later else "stopped: "
        try:
            first, found = self._first_run()
        except Exception as error:
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
        copies = _inconsistencies(first, self._bounds, exact=self._deterministic)
        found = self._with_reports(first, found + copies + numeric)
        if self._sanitizers is not None and self._sanitizers.fatal:
            note = f"{stopped}without sanitizers, the kernel stops at this access"
            return merge_by_cause(_with_detail(found, note))
        if any(finding.pattern == "input changed" for finding in found):
            note = f"{stopped}they would start from the changed input"
            return merge_by_cause(_with_detail(found, note))
        self._misused_memory = any(finding.check in ("guards", "poison") for finding in found)
        checks = self._checks & frozenset(RERUN_CHECKS)
        redundant: frozenset[str] = frozenset()
        if numeric:
            # A later call has its own reference, which says nothing if the first call was wrong.
            redundant = frozenset(
                {"repeat"} if keep_going else {"relations", "repeat", "agreement"}
            )
        if reruns == "rotate":
            found += self._one_in_rotation(checks - redundant, usable, on_check)
        else:
            checks = frozenset(check for check in checks if is_selected(check, reruns))
            found += self._all(checks - redundant, usable, on_check)
        known = {finding.pattern for finding in found}
        found += [finding for finding in self._races if finding.pattern not in known]
        if checks & redundant:
            skipped = [
                check for check in RERUN_CHECKS if check in checks & redundant and self._has(check)
            ]
            more = "" if keep_going else "; `--keep-going` runs all but repeat"
            note = f"not run: {listed(skipped)}: wrong values make them fail too{more}"
            found = _with_detail(found, note) if skipped else found
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
                return run_guarded(self._execute, problem, poison=True)[0]
            return self._execute(problem)
        with self._race_detection() as sanitizers:
            if self._misused_memory:
                return self._execute.guarded(problem, poison=True, sanitizers=sanitizers)[0]
            return self._execute.in_a_row([problem], sanitizers=sanitizers)[0]

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
                finding = diagnose("poison", name, deviation, self._problem, self._bounds.reference)
                found.append(replace(finding, expected=None, got=None))
        return found

    def _numeric(self, results: Tensors) -> list[Finding]:
        if not self._problem.has_reference:
            return self._unwritten(results) if "poison" in self._checks else []
        compared = {name: got for name, got in results.items() if self._checks_values(name)}
        wrong = deviations(compared, self._bounds)
        if not wrong:
            ratio = self._bounds.error_ratio() if self._on_error_ratio is not None else None
            if self._on_error_ratio is not None and ratio is not None:
                self._on_error_ratio(ratio)
            return []
        uninitialized = self._depends_on_poison(wrong)
        found = []
        for name, deviation in wrong.items():
            check = self._check_of(name)
            unwritten = poison_mask(deviation.got)
            if "poison" in self._checks and (unwritten is not None or name in uninitialized):
                check = "poison"
            elif check not in self._checks:
                continue
            finding = diagnose(check, name, deviation, self._problem, self._bounds.reference)
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
        again, _ = run_guarded(self._execute, self._problem, poison=False)
        return {
            name
            for name, got in with_nan.items()
            if name in again and bool((got.isnan() & ~again[name].isnan()).any())
        }

    def _repeatable(self, first: Tensors, runs: int = _RUNS) -> list[Finding]:
        calls = self._calls_in_a_row if self._in_a_row else self._separate_calls
        results = calls(runs - 1)
        for number in range(2, runs + 1):
            try:
                again = next(results)
            except Exception as error:  # noqa: BLE001 - the first run did not raise
                return [raised("determinism", error, f"call {number} of the same problem ")]
            found = compare_runs(first, again, self._bounds, exact=self._deterministic)
            if found:
                return found
        return []

    @property
    def _in_a_row(self) -> bool:
        """Whether equal calls run without a wait between them: ranks can confuse such calls."""
        return isinstance(self._execute, SeveralRanks)

    def _separate_calls(self, count: int) -> Iterator[Tensors]:
        for _ in range(count):
            yield self._again(self._problem)

    def _calls_in_a_row(self, count: int) -> Iterator[Tensors]:
        yield from self._run_in_a_row([self._problem] * count)

    def _run_in_a_row(
        self, problems: Sequence[Problem], *, captured: bool = False
    ) -> list[Tensors]:
        """Run consecutive calls under race detection, above all between a call and the next."""
        assert isinstance(self._execute, SeveralRanks)
        run = self._execute.captured if captured else self._execute.in_a_row
        with self._race_detection() as sanitizers:
            return run(problems, sanitizers=sanitizers)

    @contextmanager
    def _race_detection(self) -> Iterator[SanitizerSession | None]:
        """Detect races in a later run on several ranks, which has another interleaving."""
        if self._sanitizers is None:
            yield None
            return
        sanitizers = SanitizerSession(self._spec, self._problem, only=frozenset({"races"}))
        try:
            yield sanitizers
        finally:
            known = {finding.pattern for finding in self._races}
            found = sanitizers.findings({}, [], None)
            self._races += [finding for finding in found if finding.pattern not in known]

    def _related(self, relation: Relation, first: Tensors, *, exact: bool) -> list[Finding]:
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


def _inconsistencies(results: Tensors, bounds: ReferenceBounds, *, exact: bool) -> list[Finding]:
    """Findings between several copies of one result."""
    if not isinstance(results, Results):
        return []
    return results.inconsistencies(bounds, exact=exact)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]


def _with_detail(findings: list[Finding], note: str) -> list[Finding]:
    """Add a note to the detail of the first finding."""
    if not findings:
        return []
    first = findings[0]
    detail = f"{first.detail}\n{note}" if first.detail else note
    return [replace(first, detail=detail), *findings[1:]]
