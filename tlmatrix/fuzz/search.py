"""A search for failing cases of one spec: draw, run, aim, and shrink the first of each cause.

Hypothesis draws cases and varies those that scored best: on the error over what is allowed, and
on what they exercise of the kernels. A failing case does not end the search: the first one of a
cause is shrunk at once, later ones are counted. Nothing is kept of a case that passes but a
number, so a search may go on for hours.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tlmatrix.fuzz.grouping import Cause, cause_of, explained, lines_of
from tlmatrix.fuzz.region import wrong_region
from tlmatrix.fuzz.shrink import shrink
from tlmatrix.fuzz.target import Aim
from tlmatrix.run.result import Status
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hypothesis.strategies import SearchStrategy

    from tlmatrix.check.further import Relations
    from tlmatrix.interpreter.coverage import Coverage
    from tlmatrix.matrix import Case
    from tlmatrix.run.result import CaseResult
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.models import Spec

__all__ = ["Found", "FuzzReport", "examples_of", "fuzz_spec", "shrunk_failure"]

_SLICE = 1000
"""Draws of one run of Hypothesis, which aims best with so many and remembers them all."""
_LEAST = 20
"""Draws of a run where fewer examples are wanted: some were run before."""
_IN_VAIN = 300
"""Draws in a row that were all run before, after which nothing new is expected."""
_SHRINKING = 20.0
"""Seconds for shrinking one failure, at most."""
_ALIKE = 3
"""Faults of one cause that are told apart by what their smallest cases need."""

_NUMBERS = ("numeric", "gradients", "poison", "guards")


@dataclass(frozen=True)
class Found:
    """A fault: the smallest case that shows it, and the drawn case it was found with.

    `region` says which elements can be wrong, where numbers are; `cases` counts
    the drawn cases that fail so, and `tried` those that shrinking ran. `looks` are
    their causes, and `ended` is whether shrinking came to its end in its time.
    """

    cause: Cause
    smallest: CaseResult
    first: CaseResult
    region: str | None = None
    cases: int = 1
    tried: int = 0
    ended: bool = True
    looks: frozenset[Cause] = frozenset()

    def alike(self, other: Found) -> bool:
        """Whether two faults shrink to one case, or to two that a person would not tell apart."""
        one, two = self.smallest, other.smallest
        if one.key == two.key:
            return True
        if one.status in (Status.CRASHED, Status.TIMEOUT):
            return self.cause == other.cause
        return bool(lines_of(one) & lines_of(two))


@dataclass(frozen=True)
class FuzzReport:
    """What a search did. `examples` counts cases that ran, shrinking apart.

    `exhausted` says that draws brought nothing new any more; `coverage` is what the `counted`
    examples exercised of interpreted kernels. `closest` is how close to what is allowed
    the numbers of passing cases came.
    """

    spec: str
    path: str
    seed: int
    examples: int
    seconds: float
    counts: Mapping[Status, int]
    found: tuple[Found, ...] = ()
    exhausted: bool = False
    counted: int = 0
    coverage: Coverage | None = None
    closest: float | None = None


def examples_of(spec: Spec, tier: str) -> int:
    """How many drawn cases a tier runs; 0 for a spec that is not to be fuzzed.

    Raises:
        ValueError: the spec has no such tier.
    """
    if tier not in spec.tiers:
        raise ValueError(f"unknown tier {tier!r} of {spec.path}{suggestion(tier, spec.tiers, '')}")
    return spec.fuzz.examples.get(tier, 0) if spec.fuzz is not None else 0


def fuzz_spec(
    spec: Spec,
    runner: Runner,
    *,
    strategy: SearchStrategy[Case] | None = None,
    tier: str = "quick",
    examples: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    path: str | None = None,
    known: Sequence[Found] = (),
    admits: Callable[[Case], bool] | None = None,
    on_start: Callable[[Case, bool], None] | None = None,
    on_result: Callable[[CaseResult], None] | None = None,
    on_found: Callable[[Found], None] | None = None,
    shrinking: float = _SHRINKING,
) -> FuzzReport:
    """Run drawn cases of a spec until there were `examples`, or for `seconds`.

    Without either, as many as the tier says. Of the checks that run the code again each case gets
    one, in turn. `seed` chooses other cases, `path` is how the user calls the spec's file, and
    `strategy` draws the cases (`tlmatrix.fuzz.draw.cases` for the tier). `known` are
    faults that were found before, and are only counted. `admits` may refuse a case that somebody
    else has run. `on_start` hears of every case before it runs, and whether that is for shrinking;
    `on_result` of every example that ended, `on_found` of every fault when it was shrunk, which
    takes at most `shrinking` seconds (0: not at all).
    """
    if examples is None and seconds is None:
        examples = examples_of(spec, tier)
    if strategy is None:
        from tlmatrix.fuzz.draw import cases

        strategy = cases(spec, tier)
    search = _Search(
        spec,
        runner,
        path or str(spec.path),
        _Budget(examples, seconds),
        shrinking,
        _Hooks(admits, on_start, on_result, on_found),
        known,
    )
    return search.run(strategy, seed)


@dataclass(frozen=True)
class _Hooks:
    admits: Callable[[Case], bool] | None
    on_start: Callable[[Case, bool], None] | None
    on_result: Callable[[CaseResult], None] | None
    on_found: Callable[[Found], None] | None


@dataclass
class _Budget:
    examples: int | None
    seconds: float | None
    began: float = field(default_factory=time.monotonic)

    def spent(self, examples: int) -> bool:
        if self.examples is not None and examples >= self.examples:
            return True
        return self.seconds is not None and time.monotonic() - self.began >= self.seconds

    def left(self, examples: int) -> int:
        return _SLICE if self.examples is None else min(_SLICE, self.examples - examples)


class _Search:
    def __init__(
        self,
        spec: Spec,
        runner: Runner,
        path: str,
        budget: _Budget,
        shrinking: float,
        hooks: _Hooks,
        known: Sequence[Found],
    ) -> None:
        self._spec = spec
        self._runner = runner
        self._path = path
        self._budget = budget
        self._shrinking = shrinking
        self._hooks = hooks
        self._aim = Aim()
        self._seen: set[int] = set()
        self._found = [replace(found, cases=0) for found in known]
        self._known: dict[Cause, list[int]] = {}
        """The faults that a cause may be, by their places in `_found`."""
        for place, found in enumerate(self._found):
            self._learn(place, found)
        self._counts: Counter[Status] = Counter()
        self._examples = 0
        self._draws = 0
        self._in_vain = 0
        self._closest: float | None = None

    def run(self, strategy: SearchStrategy[Case], seed: int) -> FuzzReport:
        from tlmatrix.fuzz.draws import explore, seed_of

        number = 0
        while not self._over():
            before = self._draws
            count = max(_LEAST, self._budget.left(self._examples))
            first = seed_of(self._spec.name, seed, number)
            explore(strategy, self._one, count=count, first=first)
            number += 1
            if self._draws == before:
                break
        return FuzzReport(
            spec=self._spec.name,
            path=self._path,
            seed=seed,
            examples=self._examples,
            seconds=time.monotonic() - self._budget.began,
            counts=dict(self._counts),
            found=tuple(self._found),
            exhausted=not self._budget.spent(self._examples) and not self._runner.lost,
            counted=self._aim.counted,
            coverage=self._aim.coverage,
            closest=self._closest,
        )

    def _over(self) -> bool:
        done = self._budget.spent(self._examples) or self._in_vain >= _IN_VAIN
        return done or bool(self._runner.lost)

    def _one(self, case: Case) -> Mapping[str, float] | None:
        from tlmatrix.fuzz.draws import Enough

        if self._over():
            raise Enough
        self._draws += 1
        mark = hash(case.key)
        new = mark not in self._seen
        self._seen.add(mark)
        if not new or not (self._hooks.admits is None or self._hooks.admits(case)):
            self._in_vain += 1
            return None
        self._in_vain = 0
        result = self._run(case, self._spec, "rotate", coverage=self._aim.counts())
        self._examples += 1
        self._counts[result.status] += 1
        if result.status is Status.PASSED and result.closeness is not None:
            self._closest = max(result.closeness, self._closest or 0.0)
        scores = self._aim.scores(result)
        if self._hooks.on_result is not None:
            self._hooks.on_result(result)
        if result.failed:
            self._on_failure(case, result)
        return scores

    def _run(
        self, case: Case, spec: Spec, relations: Relations, *, coverage: bool = False
    ) -> CaseResult:
        if self._hooks.on_start is not None:
            self._hooks.on_start(case, relations != "rotate")
        self._runner.coverage = coverage
        return self._runner.run(spec, case, path=self._path, relations=relations)

    def _on_failure(self, case: Case, result: CaseResult) -> None:
        cause = cause_of(result)
        assert cause is not None
        alike = self._known.setdefault(cause, [])
        lines = lines_of(result)
        for place, found in enumerate(self._found):
            if lines & lines_of(found.smallest):
                self._found[place] = replace(found, cases=found.cases + 1)
                return
        for place in alike:
            smallest = replace(case, values=self._found[place].smallest.values)
            if len(alike) == _ALIKE or explained(self._spec, smallest, case):
                found = self._found[place]
                self._found[place] = replace(found, cases=found.cases + 1)
                return
        found = _shrunk(self._spec, case, result, cause, self._run, self._shrinking)
        same = next((n for n, old in enumerate(self._found) if old.alike(found)), None)
        if same is None:
            same = len(self._found)
            self._found.append(self._with_region(found))
            if self._hooks.on_found is not None:
                self._hooks.on_found(self._found[same])
        else:
            old = self._found[same]
            self._found[same] = replace(old, cases=old.cases + 1)
        self._learn(same, found)

    def _learn(self, place: int, found: Found) -> None:
        """Take failures that look like this one for it."""
        for look in {found.cause, *found.looks}:
            places = self._known.setdefault(look, [])
            if place not in places:
                places.append(place)

    def _with_region(self, found: Found) -> Found:
        return _with_region(self._spec, self._runner, found)


def shrunk_failure(
    spec: Spec, runner: Runner, case: Case, result: CaseResult, *, seconds: float = _SHRINKING
) -> Found:
    """The smallest case that fails as `result`, the failing one of `case`, in about `seconds`."""
    cause = cause_of(result)
    if cause is None:
        raise ValueError(f"{case.id} did not fail")
    before = runner.coverage
    runner.coverage = False

    def run(case: Case, spec: Spec, relations: Relations) -> CaseResult:
        return runner.run(spec, case, path=result.path, relations=relations)

    try:
        return _with_region(spec, runner, _shrunk(spec, case, result, cause, run, seconds))
    finally:
        runner.coverage = before


def _with_region(spec: Spec, runner: Runner, found: Found) -> Found:
    finding = found.smallest.findings[0] if found.smallest.findings else None
    if finding is None or finding.tensor is None or finding.check not in _NUMBERS:
        return found
    region = wrong_region(spec, runner, _case_of(found.smallest), finding.tensor)
    if region is None:
        return found
    note = f"wrong with these or other data: {region}"
    told = replace(finding, detail="\n".join(filter(None, [note, finding.detail])))
    smallest = replace(found.smallest, findings=(told, *found.smallest.findings[1:]))
    return replace(found, region=region, smallest=smallest)


def _case_of(result: CaseResult) -> Case:
    from tlmatrix.matrix import Case

    return Case(result.spec, result.values, "fuzz")


def _shrunk(
    spec: Spec,
    case: Case,
    result: CaseResult,
    cause: Cause,
    run: Callable[[Case, Spec, Relations], CaseResult],
    seconds: float,
) -> Found:
    """The fault of a failing case."""
    looks: set[Cause] = set()
    fewer = _only_needed_checks(spec, cause)

    def fails(smaller: Case) -> bool:
        its = cause_of(run(smaller, fewer, {cause.check}))
        if its is None or its[:2] != cause[:2]:
            return False
        looks.add(its)
        return True

    if not seconds or result.status in (Status.CRASHED, Status.TIMEOUT):
        return Found(cause, result, result, ended=False)
    done = shrink(spec, case, fails, seconds=seconds)
    smallest = result
    if done.case != case:
        again = run(done.case, spec, "all")
        # With all checks another one may come first; the case fails all the same.
        smallest = again if again.failed else result
        looks |= {found for found in (cause_of(again),) if found is not None}
    return Found(
        cause, smallest, result, tried=done.tried, ended=done.ended, looks=frozenset(looks)
    )


def _only_needed_checks(spec: Spec, cause: Cause) -> Spec:
    """The spec with no more checks than show the failure: most attempts to shrink it pass."""
    wanted = {cause.check}
    if cause.check in _NUMBERS:
        wanted = set(_NUMBERS)
    elif cause.check not in spec.checks:
        return spec  # What the entry raised, or a check that none can leave out.
    kept = tuple(check for check in spec.checks if check in wanted)
    return spec.model_copy(update={"checks": kept})
