"""Runs and compares metamorphic relations: isolation, repeated calls, agreements.

A family defines the relations of a problem (`Problem.relations`). Unless the relation and the case
require equal bits, both sides may differ by the sum of their error bounds. The right side's is
assumed to equal the left side's, which saves a float64 reference for every relation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tlmatrix.check.bits import INT_OF_SIZE, same_bits
from tlmatrix.check.compared import Element, describe_calls, element_of
from tlmatrix.check.diagnose import diagnose
from tlmatrix.check.finding import KEEPS_STATE, Finding, FindingsError
from tlmatrix.check.history import check_history
from tlmatrix.check.numeric import Deviation, beyond_limits, describe_mismatch, deviations
from tlmatrix.check.poisoned_rows import poisoned_row_hints
from tlmatrix.check.propagation import compare_reach
from tlmatrix.check.same_memory import SameMemory
from tlmatrix.check.sanitizers import finding_of
from tlmatrix.check.tolerance import error_bound
from tlmatrix.problem.lazy_mapping import LazyMapping
from tlmatrix.problem.model import Dim, InapplicableError
from tlmatrix.spec.issues import SpecError
from tlmatrix.unwinding import unwinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tlmatrix.check.tolerance import ReferenceBounds
    from tlmatrix.problem.model import Pair, Problem, Relation, Tensors


_SAME_NUMBERS = "the numbers are equal: signs of zeros or bits of NaNs differ (`exact: bits`)"


def check_relation(
    relation: Relation,
    first: Tensors,
    bounds: ReferenceBounds,
    execute: Callable[[Problem], Tensors],
    make_bounds: Callable[[Problem, Tensors], ReferenceBounds],
    *,
    deterministic: bool,
    in_a_row: Callable[[Sequence[Problem]], list[Tensors]] | None = None,
) -> list[Finding]:
    """Run the problems of a relation and return the findings.

    `first` are the results of the problem itself; it ran, so an exception in another problem is a
    finding. `in_a_row` makes repeated calls on several ranks (`SeveralRanks.in_a_row`).
    """
    if relation.history is not None:
        return check_history(
            relation, first, bounds, execute, make_bounds, deterministic=deterministic
        )
    check = relation.kind
    results: list[Tensors] = []
    calls = list(relation.problems)
    pair = None

    def run(problem: Problem) -> Tensors:
        if relation.sides is not None:
            calls.append(problem)
        results.append(execute(problem))
        return results[-1]

    try:
        if relation.sides is not None:
            pair = relation.sides(first, run)
            if pair is None:
                return []
        elif relation.kind == "repeat" and in_a_row is not None:
            # On one context, the third call reuses double-buffered memory.
            results.extend(in_a_row([bounds.problem, *relation.problems])[1:])
        else:
            for problem in consecutive_calls(relation.kind, relation.problems):
                run(problem)
                del problem  # the next call may get new tensors at the addresses of these
    except InapplicableError:
        return []  # the problem of the relation cannot be sharded
    except BaseException as error:
        if unwinds(error):
            raise
        if relation.refused is not None:
            return _refused(relation, error)
        if relation.stale is not None and not results:
            return []  # a call with other options fails by itself, and is a case of its own
        if relation.reach is not None and _refuses_nonfinite(error):
            return []
        if isinstance(error, SpecError) and relation.sides is not None:
            raise  # the spec is wrong, not the entry
        failing = calls[len(results) : len(results) + 1] if in_a_row is None else calls
        words = describe_calls(failing, None, bounds.problem)
        finding = _named(raised(check, error), relation, relation.because)
        return [replace(finding, call=words)]
    if relation.refused is not None:
        return _refused(relation, None)
    exact = bool(relation.exact) and deterministic
    if relation.reach is not None:
        differing = [
            of_call(finding, calls, 0, bounds.problem)
            for finding in compare_reach(relation, first, results[0], bounds)
        ]
    elif pair is not None:
        differing = [
            _of_pair(finding, pair, calls, results, bounds.problem)
            for finding in _compare_pair(relation, pair, first, bounds, exact=exact)
        ]
    else:
        differing = _differences(relation, first, results, bounds, exact=exact)
    found = [_named(finding, relation, relation.because) for finding in differing]
    for number in relation.judge:
        own = make_bounds(relation.problems[number], results[number])
        wrong = _compare_with_reference(check, own, results[number])
        because = relation.because
        if wrong and relation.stale is not None:
            stale = make_bounds(relation.stale(), results[number])
            if _compare_with_reference(check, stale, results[number]):
                continue
            because = f"the results are right with the options of the first call: {KEEPS_STATE}"
        elif wrong and relation.kind == "repeat":
            names = [finding.tensor for finding in wrong if finding.tensor in first]
            returned = [
                name for name in names if name and _same(first[name], results[number].get(name))
            ]
            because = _cause_of_repeat(returned, reproducible=not differing)
            if relation.name != "repeat":
                because = f"{relation.because}\n{because}"
        found += [
            of_call(_named(finding, relation, because), calls, number, bounds.problem)
            for finding in wrong
        ]
    if relation.reach is not None:
        return found  # its inputs hold NaN that results may show
    return [_with_row_hint(finding, results, execute, make_bounds) for finding in found]


def _with_row_hint(
    finding: Finding,
    results: Sequence[Tensors],
    execute: Callable[[Problem], Tensors],
    make_bounds: Callable[[Problem, Tensors], ReferenceBounds],
) -> Finding:
    """Name the poisoned row that made a result of a later call wrong, if one did."""
    compared = finding.compared
    element = compared.element if compared is not None else None
    if compared is None or element is None:
        return finding
    call, got = compared.calls[element.call], results[element.call]
    if not call.has_reference or element.name not in call.outputs:
        return finding
    own = make_bounds(call, got)
    wrong = deviations({element.name: got[element.name]}, own)
    hints = poisoned_row_hints(wrong, own, execute)
    return replace(finding, hint=hints.get(element.name, finding.hint))


def consecutive_calls(kind: str, problems: Sequence[Problem]) -> Iterable[Problem]:
    """The problems of a relation as its calls get them: repeated calls share memory."""
    if kind != "repeat":
        return problems
    memory = SameMemory()
    return (memory.place(problem) for problem in problems)


def _about(
    finding: Finding, calls: Sequence[Problem], element: Element | None, first: Problem
) -> Finding:
    """Add the calls that a finding is about, and the element of their results."""
    compared = finding.compared and replace(finding.compared, calls=tuple(calls), element=element)
    return replace(finding, call=describe_calls(calls, element, first), compared=compared)


def of_call(finding: Finding, calls: Sequence[Problem], number: int, first: Problem) -> Finding:
    """Add the call number `number`, whose whole result a finding is about."""
    if finding.compared is None:  # of another shape
        return replace(finding, call=describe_calls(calls[number : number + 1], None, first))
    element = Element(number, str(finding.tensor), finding.compared.index)
    return _about(finding, calls, element, first)


def _of_pair(
    finding: Finding,
    pair: Pair,
    calls: Sequence[Problem],
    results: Sequence[Tensors],
    first: Problem,
) -> Finding:
    """Add the call whose result is the second of a pair; other pairs are about the first call."""
    name = str(finding.tensor)
    for number, tensors in enumerate(results):
        if name in tensors and tensors[name] is pair.got[name]:
            return of_call(finding, calls, number, first)
    return _about(finding, calls, None, first) if calls else finding


def _refuses_nonfinite(error: BaseException) -> bool:
    """Whether an entry raised because an input is not finite, in its own words."""
    words = str(getattr(error, "error", error)).lower()
    return any(word in words for word in ("nan", "inf", "finite"))


def _refused(relation: Relation, error: BaseException | None) -> list[Finding]:
    """Findings about an entry that must raise when a call is captured to a CUDA graph."""
    assert relation.refused is not None
    name, words = relation.refused
    wanted = f"{name} with {words!r} in its message"
    check = relation.kind
    if error is None:
        title = f"the call was captured without an exception; expected {wanted}"
        hint = (
            "a replay repeats what the host decided when it was captured: raise, or restrict `when`"
        )
        return [_named(Finding(check, title, pattern="accepted", hint=hint), relation, "")]
    inner = getattr(error, "error", error)
    kinds = [each.__name__ for each in type(inner).__mro__]
    if name.rpartition(":")[2] in kinds and words in str(inner):
        return []
    found = raised(check, error, f"expected {wanted} when the call was captured: ")
    return [_named(found, relation, "")]


def raised(check: str, error: BaseException, words: str = "") -> Finding:
    """The finding of a run that raised although an earlier one did not; `words` name the run."""
    if isinstance(error, FindingsError):
        first = error.findings[0]
        title = f"{words.strip()}: {first.title}" if words else first.title
        return replace(first, check=check, title=title)
    reports = getattr(getattr(error, "error", error), "reports", ())
    if reports:
        finding = finding_of(reports[0])
        title = f"{words.strip(' :')}: {finding.title}" if words else finding.title
        return replace(finding, check=check, title=title)
    title = f"{words}raised {type(error).__name__}: {error}"
    trace: str = getattr(error, "trace", "")
    return Finding(check, title, pattern="raised", detail=trace or None)


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


def _differences(
    relation: Relation,
    first: Tensors,
    results: list[Tensors],
    bounds: ReferenceBounds,
    *,
    exact: bool,
) -> list[Finding]:
    left, right = relation.left(first), relation.right(results)
    found = []
    for name, tensor in left.items():
        other = right[name]
        if tensor.shape != other.shape:
            title = f"{name} has shape {list(other.shape)}, expected {list(tensor.shape)}"
            differing = Finding(relation.kind, title, tensor=name)
            found.append(_about(differing, relation.problems, None, bounds.problem))
            continue
        if same_bits(tensor, other):
            continue
        nothing = torch.zeros_like(tensor, dtype=torch.float64)
        limits = [nothing] if exact else _limits(name, relation, first, results, bounds)
        deviation = beyond_limits(other, tensor, limits)
        if deviation is None and exact and relation.exact == "bits":
            deviation = _other_bits(other, tensor)
        if deviation is not None:
            element = element_of(relation, results, name, deviation.worst)
            deviation = _in_whole_tensor(name, deviation, relation, first)
            against = relation.words
            finding = diagnose(relation.kind, name, deviation, bounds, against=against, exact=exact)
            found.append(_about(finding, relation.problems, element, bounds.problem))
    return found


def _other_bits(got: torch.Tensor, expected: torch.Tensor) -> Deviation:
    """The deviation of numbers that are equal and differ in bits: zeros or NaNs."""
    kind = INT_OF_SIZE[got.element_size()]
    wrong = got.contiguous().view(kind) != expected.contiguous().view(kind)
    worst = int(wrong.flatten().int().argmax())
    return Deviation(expected.double(), got, wrong, float("inf"), worst, "element", _SAME_NUMBERS)


def _in_whole_tensor(
    name: str, deviation: Deviation, relation: Relation, first: Tensors
) -> Deviation:
    """Map a deviation of the elements that `left` selects to the whole tensor, which has dims.

    Returns it unchanged if `left` computes other values instead of selecting elements.
    """
    whole = first.get(name)
    if whole is None or whole.shape == deviation.wrong.shape:
        return deviation

    def numbered(each: str) -> torch.Tensor:
        count = first[each].numel()
        return torch.arange(count, dtype=torch.float64, device=whole.device).view(first[each].shape)

    # Applied to the elements' numbers, `left` returns which ones it selects.
    places = relation.left(LazyMapping(first, numbered))[name].flatten().long()
    values = whole.flatten()
    if len(places) != deviation.wrong.numel() or not 0 <= places.min() <= places.max() < len(
        values
    ):
        return deviation
    picked = values[places].double()
    if not torch.allclose(picked, deviation.expected.flatten(), rtol=0, atol=0, equal_nan=True):
        return deviation

    def placed(target: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        return target.index_put((places,), part.flatten()).view(whole.shape)

    return replace(
        deviation,
        expected=whole.double(),
        got=placed(values.to(deviation.got.dtype), deviation.got),
        wrong=placed(torch.zeros_like(values, dtype=torch.bool), deviation.wrong),
        worst=int(places[deviation.worst]),
    )


def _of_roundings(
    name: str, relation: Relation, results: Sequence[Tensors], bounds: ReferenceBounds
) -> torch.Tensor | None:
    """The rounding errors of results that the right side of a relation adds up; None if none."""
    if relation.rounded is None:
        return None
    sizes = relation.rounded(results).get(name)
    if sizes is None:
        return None
    # A bound of NaN or infinity would accept every value.
    finite = sizes.double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return finite * bounds.problem.outputs[name].roundoff


def _limits(
    name: str,
    relation: Relation,
    first: Tensors,
    results: Sequence[Tensors],
    bounds: ReferenceBounds,
) -> Iterator[torch.Tensor]:
    """Limits of the difference of both sides, the cheaper first; `left` selects those, too."""
    known = [each for each in first if each in bounds.reference]
    more = _of_roundings(name, relation, results, bounds)
    for make in (
        bounds.lower_limit_of_two_runs,
        lambda each: 2 * bounds.error_bound(each).element,
    ):
        limit = relation.left(LazyMapping(known, make))[name]
        yield limit if more is None else limit.abs() + more


def _compare_pair(
    relation: Relation, pair: Pair, first: Tensors, bounds: ReferenceBounds, *, exact: bool
) -> list[Finding]:
    """Findings about tensors whose two sides differ by more than their error bounds."""
    check = relation.kind
    found = []
    for name, expected in pair.expected.items():
        if name not in pair.got:
            continue
        got = pair.got[name]
        if got.shape != expected.shape or got.dtype != expected.dtype:
            title = f"{name} is {_type(got)}, expected {_type(expected)}"
            found.append(Finding(check, title, tensor=name))
            continue
        if same_bits(expected, got):
            continue
        limits = _pair_limits(name, expected, first, bounds, exact=exact)
        deviation = beyond_limits(got, expected, limits)
        if deviation is None and exact and relation.exact == "bits":
            deviation = _other_bits(got, expected)
        if deviation is None:
            continue
        finding = diagnose(check, name, deviation, bounds, against=relation.words, exact=exact)
        if check == "agreement" and bounds.problem.has_reference:
            finding = _with_errors(finding, deviation, name, relation, bounds)
        found.append(finding)
    return found


def _pair_limits(
    name: str, expected: torch.Tensor, first: Tensors, bounds: ReferenceBounds, *, exact: bool
) -> Iterator[torch.Tensor]:
    """Limits of the difference of two sides by element."""
    if exact:
        yield torch.zeros_like(expected, dtype=torch.float64)
    elif expected is first.get(name):
        yield from bounds.limits_of_two_runs(name)
    else:
        info = bounds.problem.outputs[name]
        if info.shape != tuple(expected.shape):
            dims = tuple(Dim(f"axis{n}", size) for n, size in enumerate(expected.shape))
            info = replace(info, dims=dims)
        # Magnitude and spread belong to other values.
        info = replace(info, magnitude=None, spread=None, exponent=None)
        yield 2 * error_bound(info, expected.double(), None, bounds.tolerance_of(name)).element


def _with_errors(
    finding: Finding, deviation: Deviation, name: str, relation: Relation, bounds: ReferenceBounds
) -> Finding:
    """Add the errors of both sides against the reference: mostly one side is wrong."""
    truth = bounds.reference[name].flatten()[deviation.worst]
    limit = bounds.error_bound(name).element.flatten()[deviation.worst]
    sides = {relation.words: deviation.expected, relation.name: deviation.got}
    ratios = {
        words: float((tensor.flatten()[deviation.worst].double() - truth).abs() / limit)
        for words, tensor in sides.items()
    }
    errors = ", ".join(f"{side} {ratio:.3g}" for side, ratio in ratios.items())
    return finding.with_notes(f"the reference there is {float(truth):.6g}; error / bound: {errors}")


def _type(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _compare_with_reference(check: str, bounds: ReferenceBounds, results: Tensors) -> list[Finding]:
    """Findings about the results of a relation's problem against its own reference."""
    outputs = bounds.problem.outputs
    mismatches = {
        name: mismatch
        for name, info in outputs.items()
        if (mismatch := describe_mismatch(name, info, results.get(name)))
    }
    wrong = deviations({n: results[n] for n in outputs if n not in mismatches}, bounds)
    return [
        Finding(check, mismatches[name], tensor=name)
        if name in mismatches
        else diagnose(check, name, wrong[name], bounds, against="its own reference")
        for name in outputs
        if name in mismatches or name in wrong
    ]


def _named(finding: Finding, relation: Relation, because: str) -> Finding:
    """Add the name of the relation to the title, and a reason to the detail."""
    title = finding.title
    if relation.name != finding.check:
        title = f"{relation.name}: {title}"
    detail = "\n".join(filter(None, (because, finding.detail)))
    return replace(finding, title=title, detail=detail or None)
