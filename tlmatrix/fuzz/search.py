"""Searches one spec for failing cases: generates and runs cases, and shrinks each new failure.

Hypothesis generates cases and mutates those with the best scores, which are the error ratio and
the rarity of the kernel coverage. The first failure of each cause is shrunk at once; later ones
are counted. Only a hash is kept of a passing case, so a search may run for hours.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tlmatrix.fuzz.shrink import shrink, wrong_region
from tlmatrix.run.result import Status
from tlmatrix.triage.cause import VALUE_CHECKS, Cause, cause_of, known_fault, same_fault
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hypothesis.strategies import SearchStrategy

    from tlmatrix.check.registry import Reruns
    from tlmatrix.interpreter.coverage import Coverage, Feature
    from tlmatrix.matrix import Case
    from tlmatrix.run.result import CaseResult
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.model.spec import Spec

_MAX_EXAMPLES = 1000
"""Most examples of one run of Hypothesis, which keeps all of them in memory."""
_MIN_EXAMPLES = 20
"""Fewest examples of one run; some of them may be duplicates of earlier ones."""
_MAX_DUPLICATES = 300
"""Duplicates in a row after which the search counts as exhausted."""
_SHRINK_SECONDS = 20.0
"""Time limit of shrinking one failure."""
_STALE = 50
"""Measured examples in a row without a new feature after which the coverage of fewer is measured,
which costs about a seventh of a case's time."""
_ONE_IN = 4
_TRACED = 4
"""Cases of the tier whose kernels say around which numbers lengths are generated."""


@dataclass(frozen=True)
class FuzzFailure:
    """A failure found by fuzzing.

    Attributes:
        cause: the cause of the first failing case.
        smallest: the result of the smallest case that fails in the same way.
        first: the result of the case that failed first.
        region: the elements that can be wrong, for checks of values.
        cases: the number of fuzz cases that fail in this way.
        tried: the number of cases that shrinking ran.
        ended: whether shrinking finished within its time limit.
        causes: the causes of all failing cases that shrinking ran.
    """

    cause: Cause
    smallest: CaseResult
    first: CaseResult
    region: str | None = None
    cases: int = 1
    tried: int = 0
    ended: bool = True
    causes: frozenset[Cause] = frozenset()

    @property
    def all_causes(self) -> frozenset[Cause]:
        """`cause` and `causes`."""
        return self.causes | {self.cause}

    def same_fault(self, other: FuzzFailure) -> bool:
        """Whether the smallest cases of two failures show one fault."""
        return same_fault(self.smallest, other.smallest)


@dataclass(frozen=True)
class FuzzReport:
    """The summary of a search.

    `examples` counts the cases that ran, without those of shrinking. `exhausted` is whether only
    duplicates were generated at the end. `coverage` is that of interpreted kernels in the
    `counted` examples.
    """

    spec: str
    path: str
    seed: int
    examples: int
    seconds: float
    counts: Mapping[Status, int]
    found: tuple[FuzzFailure, ...] = ()
    exhausted: bool = False
    counted: int = 0
    coverage: Coverage | None = None


def examples_of(spec: Spec, tier: str) -> int:
    """The number of fuzz cases of a tier; 0 for a spec without a section `fuzz`.

    Raises:
        ValueError: the spec has no such tier.
    """
    if tier not in spec.tiers:
        raise ValueError(f"unknown tier {tier!r} of {spec.path}{suggestion(tier, spec.tiers, '')}")
    return spec.fuzz.examples.get(tier, 0) if spec.fuzz is not None else 0


def tier_fuzz_cases(
    spec: Spec, tier: str, others: Iterable[str], *, seed: int = 0, compiled: bool = False
) -> list[Case]:
    """The fuzz cases that a tier runs under pytest, after the cases of its axes.

    They are generated at collection, the same ones in every worker. So each is a pytest item with a
    stable id, which workers distribute like any other and `--last-failed` runs again. Unlike in
    `tlmatrix fuzz`, coverage does not guide the generation. There are as many as `fuzz.examples`
    says, without cases whose ids are in `others`.

    If kernels are `compiled`, the cases need no other kernels than the tier.

    Raises:
        ValueError: the spec has no such tier.
        SpecError: the spec's section `fuzz` cannot be satisfied.
    """
    count = examples_of(spec, tier)
    if not count:
        return []
    from tlmatrix.fuzz.generation import derive_seed, generate_cases
    from tlmatrix.fuzz.strategies import cases, sharing_cases

    first = derive_seed(spec.name, seed)
    strategy = (sharing_cases if compiled else cases)(spec, tier)
    return generate_cases(strategy, count=count, first=first, known=frozenset(others))


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
    known: Sequence[FuzzFailure] = (),
    admits: Callable[[Case], bool] | None = None,
    on_start: Callable[[Case, bool], None] | None = None,
    on_result: Callable[[CaseResult], None] | None = None,
    on_found: Callable[[FuzzFailure], None] | None = None,
    shrinking: float = _SHRINK_SECONDS,
) -> FuzzReport:
    """Run generated cases of a spec until there were `examples`, or for `seconds`.

    Of the checks that run the code again, each case gets one, in rotation.

    Args:
        spec: the spec.
        runner: runs the cases.
        strategy: generates the cases; by default `tlmatrix.fuzz.strategies.cases` of the tier,
            also around the numbers that its kernels combine sizes with.
        tier: its number of examples applies if there are neither `examples` nor `seconds`.
        examples: how many cases to run.
        seconds: how long to run.
        seed: another seed generates other cases.
        path: the spec's file as the user gave it.
        known: failures found before; further cases of them are only counted.
        admits: returns False for a case that another worker has run.
        on_start: called with every case before it runs, and whether shrinking runs it.
        on_result: called with the result of every example.
        on_found: called with every new failure after shrinking.
        shrinking: time limit of shrinking one failure; 0 for no shrinking.
    """
    if examples is None and seconds is None:
        examples = examples_of(spec, tier)
    if strategy is None:
        from tlmatrix.fuzz.strategies import cases, tier_sample

        edges = runner.kernel_edges(spec, tier_sample(spec, tier)[:_TRACED])
        strategy = cases(spec, tier, around=edges)
    search = _Search(
        spec,
        runner,
        path or str(spec.path),
        _Budget(examples, seconds),
        shrinking,
        [replace(found, cases=0) for found in known],
        admits,
        on_start,
        on_result,
        on_found,
    )
    return search.run(strategy, seed)


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
        return (
            _MAX_EXAMPLES if self.examples is None else min(_MAX_EXAMPLES, self.examples - examples)
        )


class _Guidance:
    """Scores that reward large error ratios and rare coverage, and when to measure coverage.

    `coverage` is that of the `counted` examples, None if there are none.
    """

    def __init__(self) -> None:
        self.coverage: Coverage | None = None
        self.counted = 0
        self._seen: Counter[Feature] = Counter()
        self._stale = 0
        self._examples = 0

    def counts(self) -> bool:
        """Whether to measure the coverage of the next example."""
        self._examples += 1
        return self._stale < _STALE or self._examples % _ONE_IN == 0

    def scores(self, result: CaseResult) -> Mapping[str, float]:
        """The scores of an example, which Hypothesis maximizes.

        `error` is its error ratio; `rare` is the sum of 1/n over its coverage features, where n
        counts the examples with that feature.
        """
        scores = {} if result.error_ratio is None else {"error": result.error_ratio}
        if result.coverage is not None:
            scores["rare"] = self._rarity(result.coverage)
        return scores

    def _rarity(self, coverage: Coverage) -> float:
        self.counted += 1
        self.coverage = coverage if self.coverage is None else self.coverage + coverage
        # Guards determine which lines run.
        features = [found for found in coverage.features() if found.what != "line"]
        new = any(not self._seen[feature] for feature in features)
        self._stale = 0 if new else self._stale + 1
        self._seen.update(features)
        return sum(1 / self._seen[feature] for feature in features)


@dataclass
class _Search:
    """A search of one spec; `fuzz_spec` describes the parameters."""

    _spec: Spec
    _runner: Runner
    _path: str
    _budget: _Budget
    _shrinking: float
    _found: list[FuzzFailure]
    _admits: Callable[[Case], bool] | None
    _on_start: Callable[[Case, bool], None] | None
    _on_result: Callable[[CaseResult], None] | None
    _on_found: Callable[[FuzzFailure], None] | None
    _guidance: _Guidance = field(default_factory=_Guidance)
    _seen: set[int] = field(default_factory=set)
    _counts: Counter[Status] = field(default_factory=Counter)
    _examples: int = 0
    _draws: int = 0
    _duplicates: int = 0
    _judging: bool = False

    def run(self, strategy: SearchStrategy[Case], seed: int) -> FuzzReport:
        from tlmatrix.fuzz.generation import derive_seed, explore

        number = 0
        while not self._over():
            before = self._draws
            count = max(_MIN_EXAMPLES, self._budget.left(self._examples))
            first = derive_seed(self._spec.name, seed, number)
            with self._ending():
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
            exhausted=not self._budget.spent(self._examples) and not self._stopped(),
            counted=self._guidance.counted,
            coverage=self._guidance.coverage,
        )

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """End generation when the time is over, where it draws no case that can be judged."""
        on_main_thread = threading.current_thread() is threading.main_thread()
        if self._budget.seconds is None or not on_main_thread:
            yield
            return
        from hypothesis.errors import Flaky

        from tlmatrix.fuzz.generation import StopGenerating

        def stop(*_: object) -> None:
            if not self._judging:
                raise StopGenerating

        left = self._budget.began + self._budget.seconds - time.monotonic()
        handler = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, max(left, 0) + 1, 1)
        try:
            yield
        except Flaky:  # a draw that was cut off differs from the one before
            if not self._over():
                raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)

    def _over(self) -> bool:
        done = self._budget.spent(self._examples) or self._duplicates >= _MAX_DUPLICATES
        return done or self._stopped()

    def _stopped(self) -> bool:
        """Whether this process can judge no further case of the spec."""
        return bool(self._runner.broken_by or self._runner.outdated)

    def _one(self, case: Case) -> Mapping[str, float] | None:
        self._judging = True
        try:
            return self._judged(case)
        finally:
            self._judging = False

    def _judged(self, case: Case) -> Mapping[str, float] | None:
        from tlmatrix.fuzz.generation import StopGenerating

        if self._over():
            raise StopGenerating
        self._draws += 1
        key = hash(case.key)
        new = key not in self._seen
        self._seen.add(key)
        if not new or not (self._admits is None or self._admits(case)):
            self._duplicates += 1
            return None
        self._duplicates = 0
        result = self._run(case, self._spec, "rotate", coverage=self._guidance.counts())
        self._examples += 1
        self._counts[result.status] += 1
        scores = self._guidance.scores(result)
        if self._on_result is not None:
            self._on_result(result)
        if result.failed and not self._runner.outdated:
            self._on_failure(case, result)
        return scores

    def _run(self, case: Case, spec: Spec, reruns: Reruns, *, coverage: bool = False) -> CaseResult:
        if self._on_start is not None:
            self._on_start(case, reruns != "rotate")
        self._runner.coverage = coverage
        if reruns != "rotate":
            return self._runner.judge(
                spec, case, path=self._path, reruns=reruns, explained=reruns == "all"
            )
        return self._runner.run(spec, case, path=self._path, reruns=reruns)

    def _on_failure(self, case: Case, result: CaseResult) -> None:
        index = known_fault(self._spec, case, result, self._found)
        if index is not None:
            self._count_case(index)
            return
        cause = cause_of(result)
        assert cause is not None
        # A process that lost its GPU cannot run smaller cases.
        seconds = 0.0 if self._runner.broken_by else self._shrinking
        found = _shrink(self._spec, case, result, cause, self._run, seconds)
        index = next((n for n, old in enumerate(self._found) if old.same_fault(found)), None)
        if index is not None:
            self._count_case(index, found.all_causes)
            return
        self._found.append(_with_region(self._spec, self._runner, found))
        if self._on_found is not None:
            self._on_found(self._found[-1])

    def _count_case(self, index: int, causes: frozenset[Cause] = frozenset()) -> None:
        """Count one more case of the failure at `index`, and add `causes` to its own."""
        old = self._found[index]
        self._found[index] = replace(old, cases=old.cases + 1, causes=old.causes | causes)


def shrink_failure(
    spec: Spec, runner: Runner, case: Case, result: CaseResult, *, seconds: float = _SHRINK_SECONDS
) -> FuzzFailure:
    """Shrink the failing `case` with the result `result`, in about `seconds`."""
    cause = cause_of(result)
    if cause is None:
        raise ValueError(f"{case.id} did not fail")
    before = runner.coverage
    runner.coverage = False

    def run(case: Case, spec: Spec, reruns: Reruns) -> CaseResult:
        return runner.judge(spec, case, path=result.path, reruns=reruns, explained=reruns == "all")

    try:
        return _with_region(spec, runner, _shrink(spec, case, result, cause, run, seconds))
    finally:
        runner.coverage = before


def _with_region(spec: Spec, runner: Runner, found: FuzzFailure) -> FuzzFailure:
    finding = found.smallest.findings[0] if found.smallest.findings else None
    if finding is None or finding.tensor is None or finding.check not in VALUE_CHECKS:
        return found
    from tlmatrix.matrix import Case

    smallest = Case(found.smallest.spec, found.smallest.values, "fuzz")
    region = wrong_region(spec, runner, smallest, finding.tensor)
    if region is None:
        return found
    note = f"wrong with these or other data: {region}"
    noted = replace(finding, detail="\n".join(filter(None, [note, finding.detail])))
    result = replace(found.smallest, findings=(noted, *found.smallest.findings[1:]))
    return replace(found, region=region, smallest=result)


def _shrink(
    spec: Spec,
    case: Case,
    result: CaseResult,
    cause: Cause,
    run: Callable[[Case, Spec, Reruns], CaseResult],
    seconds: float,
) -> FuzzFailure:
    """Shrink a failing case."""
    causes: set[Cause] = set()
    fewer = _only_needed_checks(spec, cause)

    def fails(smaller: Case) -> bool:
        its = cause_of(run(smaller, fewer, {cause.check}))
        if its is None or its[:2] != cause[:2]:
            return False
        causes.add(its)
        return True

    if not seconds or result.status in (Status.CRASHED, Status.TIMEOUT):
        return FuzzFailure(cause, result, result, ended=False)
    done = shrink(spec, case, fails, seconds=seconds)
    smallest = result
    if done.case != case:
        again = run(done.case, spec, "all")
        # With all checks enabled another one may fail first.
        smallest = again if again.failed else result
        causes |= {found for found in (cause_of(again),) if found is not None}
    return FuzzFailure(
        cause, smallest, result, tried=done.tried, ended=done.ended, causes=frozenset(causes)
    )


def _only_needed_checks(spec: Spec, cause: Cause) -> Spec:
    """The spec with only the checks that show the failure, which makes passing attempts cheap."""
    wanted = {cause.check}
    if cause.check in VALUE_CHECKS:
        wanted = set(VALUE_CHECKS)
    elif cause.check not in spec.checks:
        return spec  # an exception of the entry, or a check that always runs
    kept = tuple(check for check in spec.checks if check in wanted)
    return spec.model_copy(update={"checks": kept})
