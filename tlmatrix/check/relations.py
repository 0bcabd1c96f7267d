"""Makes the calls of metamorphic relations, and compares them: isolation, repeats, agreements.

A family defines the relations of a problem (`Problem.relations`). Unless the relation and the case
require equal bits, both sides may differ by the sum of their error bounds. The right side's is
assumed to equal the left side's, which saves a float64 reference for every relation.

Memory layouts of tensors: an entry that refuses a layout in its own words is right to do so. A
layout that its spec does not promise to take it may refuse in any way, and it may need alignment;
wrong values are findings, and name the tensor that makes the call fail.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.check.compared import (
    compare_pair,
    compare_reach,
    compare_with_reference,
    describe_calls,
    differences,
    of_call,
    of_pair,
)
from tlmatrix.check.dependence import poisoned_row_hints
from tlmatrix.check.determinism import compare_runs, raised
from tlmatrix.check.finding import KEEPS_STATE, Finding
from tlmatrix.check.memory import SameMemory, same_bits
from tlmatrix.check.numeric import deviations
from tlmatrix.check.running import SeveralRanks, results_of_call
from tlmatrix.check.sanitizers import SanitizerSession
from tlmatrix.problem.model import (
    CapturedRelation,
    InapplicableError,
    PairRelation,
    ReachRelation,
    Relation,
)
from tlmatrix.spec.issues import SpecError
from tlmatrix.tracebacks import unwinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import torch

    from tlmatrix.check.running import CaseRun
    from tlmatrix.problem.model import (
        History,
        HistoryRelation,
        LayoutRelation,
        ManyCallsRelation,
        Pair,
        Problem,
        Tensors,
    )


_ALONE = "the call alone"


def check_calls(
    relation: Relation,
    run: CaseRun,
    *,
    exact: bool,
    execute: Callable[[Problem], Tensors] | None = None,
) -> list[Finding]:
    """Run the problems of a relation and return the findings.

    The problem itself ran, so an exception in another problem is a finding.

    Args:
        relation: the relation.
        run: the case; its results are those of the problem itself.
        exact: whether the case demands equal bits, if the relation does.
        execute: runs the entry; by default as the case does.
    """
    refused = relation.refused if isinstance(relation, CapturedRelation) else None
    results: list[Tensors] = []
    calls, pair = list(relation.problems), None
    execute = execute or run.again

    def call(problem: Problem) -> Tensors:
        if isinstance(relation, PairRelation):
            calls.append(problem)
        results.append(execute(problem))
        return results[-1]

    try:
        if isinstance(relation, PairRelation):
            pair = relation.sides(run.results, call)
            if pair is None:
                return []
        elif relation.kind == "repeat" and run.on_ranks:
            # On one context, the third call reuses double-buffered memory.
            problems = [run.problem, *relation.problems]
            results += run.in_a_row(problems, captured=isinstance(relation, CapturedRelation))[1:]
        else:
            for problem in consecutive_calls(relation.kind, relation.problems):
                call(problem)
                del problem  # the next call may get new tensors at the addresses of these
    except InapplicableError:
        return []  # the problem of the relation cannot be sharded
    except BaseException as error:
        if unwinds(error):
            raise
        if refused is not None:
            return _refused(relation, refused, error)
        if _needs_large_sizes(relation, error) or _needs_input(relation, error):
            return []
        if relation.stale is not None and not results:
            return []  # a call with other options fails by itself, and is a case of its own
        if relation.kind == "propagation" and _refuses_nonfinite(error):
            return []
        if _fails_anyway(relation, execute, run):
            return []
        if isinstance(error, SpecError) and isinstance(relation, PairRelation):
            raise  # the spec is wrong, not the entry
        failing = calls if run.on_ranks else calls[len(results) : len(results) + 1]
        words = describe_calls(failing, None, run.problem)
        finding = _named(raised(relation.kind, error), relation, relation.because)
        return [replace(finding, call=words)]
    if refused is not None:
        return _refused(relation, refused, None)
    differing = _differing(relation, pair, calls, results, run, exact=exact)
    found = [_named(finding, relation, relation.because) for finding in differing]
    for number in relation.judge:
        found += _judged(
            relation, number, results, run, execute=execute, reproducible=not differing
        )
    if found and _fails_anyway(relation, execute, run):
        return []
    if isinstance(relation, ReachRelation):
        return found  # its inputs hold NaN that results may show
    return [_with_row_hint(finding, results, execute, run) for finding in found]


def _fails_anyway(relation: Relation, execute: Callable[[Problem], Tensors], run: CaseRun) -> bool:
    """Whether the relation has a control, and that fails as well."""
    if relation.control is None:
        return False
    problem = relation.control()
    try:
        got = execute(problem)
    except Exception:  # noqa: BLE001 - the entry's own
        return True
    return bool(_wrong(relation, problem, got, run, execute))


def _wrong(
    relation: Relation,
    problem: Problem,
    got: Tensors,
    run: CaseRun,
    execute: Callable[[Problem], Tensors] | None,
) -> list[Finding]:
    """Findings about results of one call against its own reference."""
    own = run.bounds_of(problem, got)

    def compared(results: Tensors) -> list[Finding]:
        return compare_with_reference(relation.kind, own, results)

    wrong = compared(got)
    beyond = {each.tensor: got[each.tensor] for each in wrong if each.tensor and each.ratio}
    if len(beyond) < len(wrong):
        return wrong  # missing, or of another shape
    return [] if run.is_rounded_factor(problem, beyond, compared, execute) else wrong


def consecutive_calls(kind: str, problems: Sequence[Problem]) -> Iterable[Problem]:
    """The problems of a relation as its calls get them: repeated calls share memory."""
    if kind != "repeat":
        return problems
    memory = SameMemory()
    return (memory.place(problem) for problem in problems)


def _differing(
    relation: Relation,
    pair: Pair | None,
    calls: Sequence[Problem],
    results: Sequence[Tensors],
    run: CaseRun,
    *,
    exact: bool,
) -> list[Finding]:
    """Findings about the two sides of a relation, each with the calls that it is about."""
    exact = bool(relation.exact) and exact
    if isinstance(relation, ReachRelation):
        reach = compare_reach(relation, run.results, results[0], run.bounds)
        return [of_call(finding, calls, 0, run.problem) for finding in reach]
    if pair is None:
        return differences(relation, results, run, exact=exact)
    return [
        of_pair(finding, pair, calls, results, run.problem)
        for finding in compare_pair(relation, pair, run, exact=exact)
    ]


def _judged(
    relation: Relation,
    number: int,
    results: Sequence[Tensors],
    run: CaseRun,
    *,
    execute: Callable[[Problem], Tensors],
    reproducible: bool,
) -> Iterator[Finding]:
    """Findings about one call of a relation against its own reference."""
    got, because = results[number], relation.because
    wrong = _wrong(relation, relation.problems[number], got, run, execute)
    if wrong and relation.stale is not None:
        stale = run.bounds_of(relation.stale(), got)
        if compare_with_reference(relation.kind, stale, got):
            return
        because = f"the results are right with the options of the first call: {KEEPS_STATE}"
    elif wrong and relation.kind == "repeat":
        first = run.results
        names = [finding.tensor for finding in wrong if finding.tensor in first]
        returned = [name for name in names if name and _same(first[name], got.get(name))]
        because = _cause_of_repeat(returned, reproducible=reproducible)
        if relation.name != "repeat":
            because = f"{relation.because}\n{because}"
    for finding in wrong:
        named = _named(finding, relation, because)
        yield of_call(named, relation.problems, number, run.problem)


def _with_row_hint(
    finding: Finding,
    results: Sequence[Tensors],
    execute: Callable[[Problem], Tensors],
    run: CaseRun,
) -> Finding:
    """Name the poisoned row that made a result of a later call wrong, if one did."""
    compared = finding.compared
    element = compared.element if compared is not None else None
    if compared is None or element is None:
        return finding
    call, got = compared.calls[element.call], results[element.call]
    if not call.has_reference or element.name not in call.outputs:
        return finding
    own = run.bounds_of(call, got)
    wrong = deviations({element.name: got[element.name]}, own)
    hints = poisoned_row_hints(wrong, own, execute)
    return replace(finding, hint=hints.get(element.name, finding.hint))


def _named(finding: Finding, relation: Relation, because: str) -> Finding:
    """Add the name of the relation to the title, and a reason to the detail."""
    title = finding.title
    if relation.name != finding.check:
        title = f"{relation.name}: {title}"
    detail = "\n".join(filter(None, (because, finding.detail)))
    return replace(finding, title=title, detail=detail or None)


# Exceptions ---------------------------------------------------------------------------------------


def _needs_large_sizes(relation: Relation, error: BaseException) -> bool:
    """Whether the path for large sizes, taken by lower thresholds, refuses small ones."""
    inner = getattr(error, "error", error)
    return isinstance(inner, ValueError | AssertionError | NotImplementedError) and any(
        each.thresholds is not None for each in relation.problems
    )


def _needs_input(relation: Relation, error: BaseException) -> bool:
    """Whether an entry refuses a call without an input, though it has a default for that."""
    from tlmatrix.interpreter.errors import InterpreterError

    inner = getattr(error, "error", error)
    absent = any(each.absent for each in relation.problems)
    return absent and not isinstance(inner, InterpreterError)


def _refuses_nonfinite(error: BaseException) -> bool:
    """Whether an entry raised because an input is not finite, in its own words."""
    words = str(getattr(error, "error", error)).lower()
    return any(word in words for word in ("nan", "inf", "finite"))


def _refused(
    relation: Relation, refused: tuple[str, str], error: BaseException | None
) -> list[Finding]:
    """Findings about an entry that must raise when a call is captured to a CUDA graph."""
    name, words = refused
    wanted = f"{name} with {words!r} in its message"
    if error is None:
        title = f"the call was captured without an exception; expected {wanted}"
        hint = (
            "a replay repeats what the host decided when it was captured: raise, or restrict `when`"
        )
        return [_named(Finding(relation.kind, title, pattern="accepted", hint=hint), relation, "")]
    inner = getattr(error, "error", error)
    kinds = [each.__name__ for each in type(inner).__mro__]
    if name.rpartition(":")[2] in kinds and words in str(inner):
        return []
    found = raised(relation.kind, error, f"expected {wanted} when the call was captured: ")
    return [_named(found, relation, "")]


def _cause_of_repeat(stale: list[str], *, reproducible: bool) -> str:
    """The likely cause of a later call that is wrong although the first was right.

    `stale` are wrong tensors with the values of the first call. `reproducible` is whether the
    first problem gave the same results when it ran again after the later calls.
    """
    if stale:
        return f"{', '.join(stale)} of the first call returned again: {KEEPS_STATE}"
    if not reproducible:
        return f"the first call's data, run again, gives other results too: {KEEPS_STATE}"
    return (
        "the first call was right: either the entry is wrong for these values, or it keeps state "
        "of the first call (of later calls it keeps none: the first call's data, run again, gives "
        "the same results); run with another --seed, which changes the first call's values"
    )


def _same(first: torch.Tensor, later: torch.Tensor | None) -> bool:
    """Whether a result equals the first call's and is not constant."""
    return (
        later is not None and same_bits(first, later) and bool((first != first.flatten()[:1]).any())
    )


# Many calls ---------------------------------------------------------------------------------------


def check_history(relation: HistoryRelation, run: CaseRun, *, exact: bool) -> list[Finding]:
    """Make the calls of a history: every call has the results that it has alone.

    The history that a finding shows is a shortest one: without any of its calls, the others are
    right. The other problem is called alone before; if that fails, there is no finding: it is a
    case of its own.
    """
    try:
        alone = run.again(relation.history.other)
    except BaseException as error:
        if unwinds(error):
            raise
        return []
    other_bounds = run.bounds_of(relation.history.other, alone)

    def findings(history: History) -> list[Finding]:
        def named(finding: Finding, title: str, because: str = "") -> Finding:
            return replace(
                finding,
                check=relation.kind,
                title=f"{relation.name}: {title} in {history}",
                call=f"{history}; b has {history.difference}",
                detail="\n".join(filter(None, (because, finding.detail))) or None,
            )

        try:
            results = run.again(replace(run.problem, history=history))
        except InapplicableError:
            return []
        except BaseException as error:
            if unwinds(error):
                raise
            finding = raised(relation.kind, error)
            return [named(finding, finding.title)]
        for number, name in enumerate(history.calls):
            got, call = results_of_call(results, number), history.name(number)
            if name == "a":
                found = compare_runs(run.results, got, run.bounds, exact=exact, against=_ALONE)
            elif history.exact and exact:
                found = compare_runs(alone, got, other_bounds, exact=True, against=_ALONE)
            else:
                continue
            if found:
                because = f"the results of {call} differ from those alone: {KEEPS_STATE}"
                return [
                    named(replace(each, hint=None), f"{each.title}, of {call}", because)
                    for each in found
                ]
        return []

    history, found = relation.history, findings(relation.history)
    while found:
        shorter = next(_shorter(history, findings), None)
        if shorter is None:
            break
        history, found = shorter
    return found


def _shorter(
    history: History, findings: Callable[[History], list[Finding]]
) -> Iterator[tuple[History, list[Finding]]]:
    """Histories with one call less that have findings too, and these findings."""
    for call in range(len(history.calls)):
        shorter = history.without(call)
        if shorter.calls and (found := findings(shorter)):
            yield shorter, found


def check_many_calls(relation: ManyCallsRelation, run: CaseRun) -> list[Finding]:
    """Findings about calls near 2^31, if calls after a few that are not made are right."""
    execute = run.execute
    assert isinstance(execute, SeveralRanks)

    def wrong(*, far: bool) -> list[Finding]:
        races = run.race_detector()
        try:
            results = execute.advanced(relation.problems, far=far, sanitizers=races)
        except InapplicableError:
            raise
        except BaseException as error:
            if unwinds(error):
                raise
            return [raised(relation.kind, error)]
        differing = [
            replace(each, check=relation.kind)
            for result in results
            for each in compare_runs(run.results, result, run.bounds, exact=False)
        ]
        return differing + ([] if races is None else races.findings({}, [], None))

    try:
        found = wrong(far=True)[:1]
        if not found or wrong(far=False):
            return []
    except InapplicableError:
        return []
    (finding,) = found
    named = replace(finding, title=f"{relation.name}: {finding.title}")
    return [named.with_notes(relation.because)]


_ON_RANKS = frozenset({"races"})
_TRIES = 6
"""Sets of layouts tried until the entry takes one."""
_REFUSALS = re.compile(
    r"contiguous|stride|align|layout|expanded|overlap|multiple of \d+ bytes", re.IGNORECASE
)
_WORDS = {
    "offset": "begins one element after an aligned address",
    "sliced": "is a slice of a larger tensor",
    "aligned": "is a slice of a larger tensor, with aligned rows",
    "strided": "has stride 2 in its last dimension",
    "transposed": "has its dimensions in reverse order in memory",
    "ones": "has unusual strides in dimensions of size 1",
    "expanded": "has stride 0 in every dimension",
}


def check_layouts(relation: LayoutRelation, run: CaseRun) -> list[Finding]:
    """Findings about a call with the layouts of `relation`, narrowed down to one tensor."""
    layouts = dict(relation.layouts)
    found: list[Finding] = []
    for _ in range(_TRIES):
        try:
            found = _differences(relation, layouts, run)
            break
        except _RefusedError as error:
            layouts = _accepted(layouts, error.words)
    for name in layouts if found and len(layouts) > 1 else ():
        try:
            alone = _differences(relation, {name: layouts[name]}, run)
        except _RefusedError:
            continue
        if alone:
            return alone
    return found


class _RefusedError(Exception):
    """The entry does not take a layout; `words` are those of its exception."""

    def __init__(self, words: str) -> None:
        self.words = words
        super().__init__(words)


def _accepted(layouts: Mapping[str, str], refusal: str) -> dict[str, str]:
    """The layouts without those of tensors that a refusal names; without a name, half of them."""
    words = {re.sub(r"\W|_", "", word).lower() for word in re.findall(r"\w+", refusal)}
    kept = {
        name: each for name, each in layouts.items() if name.replace("_", "").lower() not in words
    }
    if len(kept) < len(layouts):
        return kept
    names = sorted(layouts, key=lambda name: layouts[name] != "offset")
    return {name: layouts[name] for name in names[: len(names) // 2]}


def _differences(
    relation: LayoutRelation, layouts: Mapping[str, str], run: CaseRun
) -> list[Finding]:
    """Findings about one call.

    Raises:
        _RefusedError: the entry refused a layout, and may do so.
    """
    if not layouts:
        return []
    problem = relation.laid_out(layouts)
    # On ranks, races are looked for in all later calls, by programs that are there already.
    only = frozenset({"alignment"}) & relation.promises | (_ON_RANKS if run.on_ranks else set())
    sanitizers = SanitizerSession(run.spec, problem, only=only)
    refused: list[str] = []

    def execute(problem: Problem) -> Tensors:
        try:
            return run.sanitized(problem, sanitizers)
        except BaseException as error:
            if not unwinds(error) and _may_refuse(error, relation.promises):
                refused.append(str(error))
                raise InapplicableError(()) from error
            raise

    words = [f"{name} {_WORDS[layout]}" for name, layout in layouts.items()]
    because = f"{'; '.join(words)}: with contiguous, aligned tensors the call was right"
    call = Relation(relation.name, relation.kind, (problem,), because=because, words=relation.words)
    found = check_calls(call, run, exact=False, execute=execute)
    if refused:
        raise _RefusedError(refused[0])
    reports = [
        replace(
            finding,
            title=f"{relation.name}: {finding.title}",
            tensor=finding.tensor or (next(iter(layouts)) if len(layouts) == 1 else None),
        ).with_notes(because)
        for finding in sanitizers.findings({}, [], None)
    ]
    return [*reports, *(() if reports else found)]


def _may_refuse(error: BaseException, promises: frozenset[str]) -> bool:
    """Whether an exception refuses a layout that the entry need not take."""
    from tlmatrix.interpreter.errors import ArgumentError, InterpreterError

    inner = getattr(error, "error", error)
    if isinstance(inner, InterpreterError):
        return False
    if "strides" not in promises:
        return True  # such as `assert x.is_contiguous()`, which has no words
    if isinstance(inner, ArgumentError):
        return False
    return bool(_REFUSALS.search(str(inner)))
