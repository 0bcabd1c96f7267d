"""Run every check of a case, in the order in which a person would want to know.

First the run itself, with guards, poison and sanitizers, against the reference; then whether it
repeats itself; then the relations. What can only say the same again is left out: after wrong
numbers, relations, repeated calls and agreement would fail for the same reason, while isolation
and poison may name the cause. Of the checks that need further runs a case may get some (`further`).

Where there is no reference, the results of the first run are taken for it: nothing is then said of
them, and the allowances of relations are what rounding can do to numbers of their size.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tlmatrix.check.determinism import compare_runs
from tlmatrix.check.explain import explain, merged, one_of
from tlmatrix.check.finding import Finding
from tlmatrix.check.further import FURTHER, KINDS, Relations, in_turn, one_relation, wanted
from tlmatrix.check.gathering import Gathered, differing_copies
from tlmatrix.check.numeric import Deviation, describe_mismatch, deviations
from tlmatrix.check.poison import poisoned
from tlmatrix.check.relations import check_relation, raised
from tlmatrix.check.results import Results
from tlmatrix.check.running import SeveralRanks, run_guarded
from tlmatrix.check.sanitizers import Watch
from tlmatrix.check.tolerance import Yardstick
from tlmatrix.words import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from tlmatrix.matrix.case import Case
    from tlmatrix.problem.model import Problem, Relation, RelationKind, Tensors
    from tlmatrix.spec.model.spec import Spec

__all__ = ["judge"]

_RUNS = 3
"""Equal calls that the determinism check compares, the first included."""

_MEANT = (
    "no input holds NaN: guard 0/0 and infinities in the reference, or, where NaN is meant, in the "
    "entry give it too"
)

_KIND_OF: dict[str, RelationKind] = {kind: kind for kind in KINDS}


def judge(
    spec: Spec,
    case: Case,
    problem: Problem,
    execute: Callable[[Problem], Tensors],
    *,
    checks: Collection[str],
    arch: str,
    deterministic: bool,
    relations: Relations = "all",
    made: Callable[[str], object] = str,
    told: Callable[[float], None] | None = None,
    keep_going: bool = False,
) -> list[Finding]:
    """Everything that is wrong with an entry on one problem; empty when nothing is.

    `execute` calls the entry and returns outputs and gradients by name. `checks` are the names
    of the checks to make, `arch` selects tolerances, and `deterministic` asks for equal bits
    where the spec does not declare the case bounded. `relations` says which of the checks that
    need further runs are made: `all`, one that the case's seed picks (`rotate`), or those named;
    `made` is told each: `determinism`, or the relation's name. Where numbers are judged and right,
    `told` hears how close they came to what is allowed (`Yardstick.closeness`). `keep_going` makes
    checks that would fail for the same reason as an earlier finding.

    Raises:
        Exception: what `execute` raised in the first run, unchanged, unless a sanitizer has
            found why; later runs that raise become findings.
    """
    judging = _Judge(spec, case, problem, execute, frozenset(checks), arch, deterministic, told)
    return judging.findings(relations, made, keep_going=keep_going)


class _Judge:
    """One case being judged; `first` are the results of its first run."""

    def __init__(
        self,
        spec: Spec,
        case: Case,
        problem: Problem,
        execute: Callable[[Problem], Tensors],
        checks: frozenset[str],
        arch: str,
        deterministic: bool,
        told: Callable[[float], None] | None,
    ) -> None:
        self._spec = spec
        self._case = case
        self._problem = problem
        self._execute = execute
        self._checks = checks
        self._arch = arch
        self._deterministic = deterministic
        self._told = told
        self._suspicious = False
        self._between: list[Finding] = []
        """What sanitizers found in later runs of several ranks."""
        self._yardstick = Yardstick(problem, spec.tolerance, arch)
        self._watch = Watch(spec, problem) if "sanitizers" in checks else None

    def findings(
        self, relations: Relations, made: Callable[[str], object], *, keep_going: bool
    ) -> list[Finding]:
        later = [check for check in FURTHER if check in self._checks]
        left = f"not judged: {listed(later)}, for " if later else "ended here: "
        try:
            first, found = self._first_run()
        except Exception as error:
            told = self._watched({}, [])
            if not told:
                raise
            return merged(_with_detail(told, f"it stopped there: {_first_line(error)}"))
        self._yardstick = self._make_yardstick(self._problem, first)
        unusable, usable = self._split(first)
        if unusable:
            note = f"{left}a result cannot be compared"
            return merged(_with_detail(self._watched(first, found + unusable), note))
        if not self._problem.has_reference:
            self._judge_by_itself(first)
        numeric = self._numeric(usable)
        apart = differing_copies(first, self._yardstick, exact=self._deterministic)
        found = self._watched(first, found + apart + numeric)
        if self._watch is not None and self._watch.stops:
            note = f"{left}the kernel stops there where no sanitizer watches"
            return merged(_with_detail(found, note))
        if any(finding.pattern == "input changed" for finding in found):
            # Later runs would start from what this one left behind.
            note = f"{left}they would start from the changed input"
            return merged(_with_detail(found, note))
        self._suspicious = any(finding.check in ("guards", "poison") for finding in found)
        checks = self._checks & frozenset(FURTHER)
        # They would fail for the same reason.
        same: frozenset[str] = frozenset()
        if numeric:
            # A later call is judged by itself only where the first one was right.
            same = frozenset({"repeat"} if keep_going else {"relations", "repeat", "agreement"})
        if relations == "rotate":
            found += self._one_in_turn(checks - same, usable, made)
        else:
            checks = frozenset(check for check in checks if wanted(check, relations))
            found += self._all(checks - same, usable, made)
        known = {finding.pattern for finding in found}
        found += [finding for finding in self._between if finding.pattern not in known]
        if checks & same:
            skipped = [check for check in FURTHER if check in checks & same and self._has(check)]
            more = "" if keep_going else "; `--keep-going` judges all but repeat"
            note = f"not judged: {listed(skipped)}, which wrong numbers make fail too{more}"
            found = _with_detail(found, note) if skipped else found
        return merged(found)

    def _all(
        self, checks: frozenset[str], first: Tensors, made: Callable[[str], object]
    ) -> list[Finding]:
        """What all of these checks find, which run the entry again."""
        found = []
        if "determinism" in checks:
            made("determinism")
            found += self._repeatable(first)
        stable = not found
        for check in FURTHER:
            if check in checks and check in _KIND_OF:
                for relation in self._problem.relations(_KIND_OF[check]):
                    made(relation.name)
                    found += self._related(relation, first, exact=stable)
        return found

    def _has(self, check: str) -> bool:
        """Whether there is something to run for a check."""
        return next(iter(self._problem.relations(_KIND_OF[check])), None) is not None

    def _one_in_turn(
        self, checks: frozenset[str], first: Tensors, made: Callable[[str], object]
    ) -> list[Finding]:
        """What the first of these checks finds that has something to run, in the case's order."""
        for check in in_turn(checks, self._case.seed):
            if check == "determinism":
                made("determinism")
                return self._repeatable(first, 2)
            relations = list(self._problem.relations(_KIND_OF[check]))
            if relations:
                relation = one_relation(relations, self._case.seed)
                made(relation.name)
                return self._related(relation, first, exact=True)
        return []

    def _make_yardstick(self, problem: Problem, results: Tensors) -> Yardstick:
        parts = results.parts if isinstance(results, Gathered) else {}
        return Yardstick(problem, self._spec.tolerance, self._arch, self._yardstick, parts)

    def _first_run(self) -> tuple[Tensors, list[Finding]]:
        if not self._checks & {"guards", "poison", "sanitizers"}:
            return self._execute(self._problem), []
        # The sanitizers tell by the poison what nobody has written.
        poison = bool(self._checks & {"poison", "sanitizers"})
        results, found = run_guarded(self._execute, self._problem, poison=poison, watch=self._watch)
        return results, found if "guards" in self._checks else []

    def _watched(self, results: Tensors, found: list[Finding]) -> list[Finding]:
        """What the sanitizers found in the first run, before what else is wrong with it."""
        if self._watch is None:
            return found
        return self._watch.findings(results, found, self._execute)

    def _again(self, problem: Problem) -> Tensors:
        """A later run; guarded too where the first one misused memory, for it may corrupt ours."""
        if not isinstance(self._execute, SeveralRanks):
            if self._suspicious:
                return run_guarded(self._execute, problem, poison=True)[0]
            return self._execute(problem)
        with self._watching() as watch:
            if self._suspicious:
                return self._execute.guarded(problem, poison=True, watch=watch)[0]
            return self._execute.in_a_row([problem], watch=watch)[0]

    def _judged(self, name: str) -> bool:
        """Whether a tensor's values are looked at by themselves."""
        return self._check_of(name) in self._checks or "poison" in self._checks

    def _check_of(self, name: str) -> str:
        return "gradients" if name in self._problem.gradient_of else "numeric"

    def _split(self, results: Tensors) -> tuple[list[Finding], Tensors]:
        """Findings for tensors that cannot be compared at all, and the others."""
        found, usable = [], {}
        for name, info in self._problem.outputs.items():
            mismatch = describe_mismatch(name, info, results.get(name))
            if isinstance(results, Results) and name in results.absent:
                mismatch = f"no gradient {name}: {results.absent[name]}"
            if mismatch is None:
                usable[name] = results[name]
            elif name in results or self._judged(name):
                found.append(Finding(self._check_of(name), mismatch, tensor=name, pattern="shape"))
        return found, usable

    def _judge_by_itself(self, results: Tensors) -> None:
        """From now on the results are what is expected."""
        exact = {name: results[name].double() for name in self._problem.outputs}
        self._problem = replace(self._problem, reference=lambda: exact, lowp=dict)
        self._yardstick = self._make_yardstick(self._problem, results)

    def _unwritten(self, results: Tensors) -> list[Finding]:
        """What nobody wrote, which is known without knowing what should be there."""
        found = []
        for name, got in results.items():
            mask = poisoned(got)
            if mask is not None and bool(mask.any()):
                worst = int(mask.flatten().int().argmax())
                deviation = Deviation(got, got, mask, float("inf"), worst, "element")
                reference = self._yardstick.reference
                words = "what it held before"
                made = explain("poison", name, deviation, self._problem, reference, words=words)
                found.append(replace(made, expected=None, got=None))
        return found

    def _numeric(self, results: Tensors) -> list[Finding]:
        if not self._problem.has_reference:
            return self._unwritten(results) if "poison" in self._checks else []
        looked_at = {name: tensor for name, tensor in results.items() if self._judged(name)}
        wrong = deviations(looked_at, self._yardstick)
        if not wrong:
            closeness = self._yardstick.closeness() if self._told is not None else None
            if self._told is not None and closeness is not None:
                self._told(closeness)
            return []
        uninitialised = self._depends_on_fill(wrong)
        found = []
        for name, deviation in wrong.items():
            check = self._check_of(name)
            unwritten = poisoned(deviation.got)
            if "poison" in self._checks and (unwritten is not None or name in uninitialised):
                check = "poison"
            elif check not in self._checks:
                continue
            finding = explain(check, name, deviation, self._problem, self._yardstick.reference)
            if (nothing := self._reference_without_value(name, deviation)) is not None:
                found.append(replace(finding, check="reference", title=nothing, hint=_MEANT))
                continue
            if check == "poison" and unwritten is None:
                finding = replace(
                    finding,
                    hint="reads memory that it never wrote: the result is another one when that "
                    "memory starts as zeros (a workspace assumed zero?)",
                )
            found.append(finding)
        gradients = [finding for finding in found if finding.check == "gradients"]
        others = [finding for finding in found if finding.check != "gradients"]
        if others and gradients:
            # Gradients of wrong outputs are wrong; one finding says so.
            return [*others, one_of(gradients, "also wrong")]
        return found

    def _reference_without_value(self, name: str, deviation: Deviation) -> str | None:
        """NaN of a reference, of inputs that hold none, where the entry gives a number."""
        lacks = deviation.wrong & deviation.expected.isnan() & ~deviation.got.isnan()
        inputs = (each for each in self._problem.inputs.values() if each.is_floating_point())
        if not bool(lacks.any()) or any(bool(each.isnan().any()) for each in inputs):
            return None
        return (
            f"reference error: {name}: the reference gives NaN in {int(lacks.sum())} of "
            f"{lacks.numel()} elements where the entry gives numbers"
        )

    def _depends_on_fill(self, wrong: dict[str, Deviation]) -> set[str]:
        """Tensors with NaN that come out otherwise when fresh memory holds zeros."""
        spoiled = {
            name: deviation.got
            for name, deviation in wrong.items()
            if bool((deviation.got.isnan() & ~deviation.expected.isnan()).any())
        }
        if not spoiled or "poison" not in self._checks:
            return set()
        again, _ = run_guarded(self._execute, self._problem, poison=False)
        return {
            name
            for name, got in spoiled.items()
            if name in again and bool((got.isnan() & ~again[name].isnan()).any())
        }

    def _repeatable(self, first: Tensors, runs: int = _RUNS) -> list[Finding]:
        calls = self._several_in_a_row if self._in_a_row else self._one_by_one
        again_and_again = calls(runs - 1)
        for number in range(2, runs + 1):
            try:
                again = next(again_and_again)
            except Exception as error:  # noqa: BLE001 - the first run did not raise
                return [raised("determinism", error, f"call {number} of the same problem ")]
            found = compare_runs(first, again, self._yardstick, exact=self._deterministic)
            if found:
                return found
        return []

    @property
    def _in_a_row(self) -> bool:
        """Whether equal calls are made with nothing between: several ranks can mix them up."""
        return isinstance(self._execute, SeveralRanks)

    def _one_by_one(self, count: int) -> Iterator[Tensors]:
        for _ in range(count):
            yield self._again(self._problem)

    def _several_in_a_row(self, count: int) -> Iterator[Tensors]:
        yield from self._watched_row([self._problem] * count)

    def _watched_row(self, problems: Sequence[Problem], *, captured: bool = False) -> list[Tensors]:
        """Calls in a row, in which nothing may race: a call with the one before, most of all."""
        assert isinstance(self._execute, SeveralRanks)
        run = self._execute.captured if captured else self._execute.in_a_row
        with self._watching() as watch:
            return run(problems, watch=watch)

    @contextmanager
    def _watching(self) -> Iterator[Watch | None]:
        """A later run of several ranks, with another interleaving, in which nothing may race."""
        if self._watch is None:
            yield None
            return
        watch = Watch(self._spec, self._problem, only=frozenset({"races"}))
        try:
            yield watch
        finally:
            known = {finding.pattern for finding in self._between}
            found = watch.findings({}, [], self._execute)
            self._between += [finding for finding in found if finding.pattern not in known]

    def _related(self, relation: Relation, mine: Tensors, *, exact: bool) -> list[Finding]:
        return check_relation(
            relation,
            mine,
            self._yardstick,
            self._again,
            self._make_yardstick,
            deterministic=exact and self._deterministic,
            in_a_row=partial(self._watched_row, captured=relation.captured)
            if self._in_a_row
            else None,
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]


def _with_detail(findings: list[Finding], note: str) -> list[Finding]:
    """The findings, with a note added to the first."""
    if not findings:
        return []
    first = findings[0]
    detail = f"{first.detail}\n{note}" if first.detail else note
    return [replace(first, detail=detail), *findings[1:]]
