"""Compares both sides of relations, and names the calls that a finding is about."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tlmatrix.check.diagnose import diagnose
from tlmatrix.check.finding import Element, Finding
from tlmatrix.check.memory import INT_OF_SIZE, same_bits
from tlmatrix.check.numeric import Deviation, beyond_limits, describe_mismatch, deviations
from tlmatrix.check.tolerance import error_bound
from tlmatrix.problem.model import Dim
from tlmatrix.problem.tensors import LazyMapping
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tlmatrix.check.running import CaseRun
    from tlmatrix.check.tolerance import ReferenceBounds
    from tlmatrix.problem.model import Pair, Problem, ReachRelation, Relation, Tensors

_SAME_NUMBERS = "the numbers are equal: signs of zeros or bits of NaNs differ (`exact: bits`)"
_LISTED = 16
"""Most elements of a tensor of integers whose values are printed."""


def describe_call(call: Problem, first: Problem) -> str:
    """How the arguments of a call differ from those of the first call of the case.

    `groups [96, 96] instead of [64, 128]; other values in x`.
    """
    parts = [
        f"{name} {_text(value)} instead of {_text(first.values.get(name))}"
        for name, value in call.values.items()
        if canonical(value) != canonical(first.values.get(name))
    ]
    values = bool(parts)
    if call.distribution != first.distribution:
        parts.append(f"inputs {call.distribution} instead of {first.distribution}")
    others = []
    for name, tensor in {**call.inputs, **call.cotangents}.items():
        old = first.inputs.get(name, first.cotangents.get(name))
        if values and not tensor.is_floating_point():
            continue  # lengths and offsets follow from the values
        if old is None or old.shape != tensor.shape:
            parts.append(f"{name} of shape {list(tensor.shape)}")
        elif same_bits(old, tensor):
            continue
        elif not tensor.is_floating_point() and tensor.numel() <= _LISTED:
            parts.append(f"{name} {tensor.tolist()} instead of {old.tolist()}")
        else:
            others.append(name)
    if others:
        parts.append(f"other values in {', '.join(others)}")
    if call.absent:
        parts.append(f"without {', '.join(call.absent)}")
    if call.autograd is not None:
        parts.append(str(call.autograd))
    if call.given_output is not None:
        parts.append(f"a tensor for {call.given_output}")
    if call.side_stream:
        parts.append("on another CUDA stream")
    if call.two_streams:
        parts.append("two calls on two streams")
    if call.renewed:
        parts.append("new tensors at the addresses of earlier ones")
    return "; ".join(parts) or "the same arguments"


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value).replace('"', "")


def describe_calls(calls: Sequence[Problem], element: Element | None, first: Problem) -> str | None:
    """The arguments of the call that computed `element`; of all calls if that is None."""
    if element is not None:
        return describe_call(calls[element.call], first)
    words = list(dict.fromkeys(describe_call(call, first) for call in calls))
    return " / ".join(words) or None


def element_of(
    relation: Relation, results: Sequence[Tensors], name: str, place: int
) -> Element | None:
    """The element of `results` that element number `place` of the relation's right side is.

    None if the right side computes it instead of selecting it.
    """
    numbered, starts, count = [], [], 0
    for call, tensors in enumerate(results):
        numbers = {}
        for each, tensor in tensors.items():
            along = torch.arange(count, count + tensor.numel(), dtype=torch.float64)
            numbers[each] = along.view(tensor.shape).to(tensor.device)
            starts.append((count, call, each))
            count += tensor.numel()
        numbered.append(numbers)
    # Applied to the numbers of the elements, `right` returns which ones it selects.
    number = float(relation.right(numbered)[name].flatten()[place])
    if not (number.is_integer() and 0 <= number < count):
        return None
    start, call, each = max(entry for entry in starts if entry[0] <= number)
    source, at = results[call][each], int(number) - start
    value = relation.right(results)[name].flatten()[place]
    if at >= source.numel() or not same_bits(source.flatten()[at], value):
        return None
    index = torch.unravel_index(torch.tensor(at), source.shape)
    return Element(call, each, tuple(int(i) for i in index))


def about(
    finding: Finding, calls: Sequence[Problem], element: Element | None, first: Problem
) -> Finding:
    """Add the calls that a finding is about, and the element of their results."""
    compared = finding.compared and replace(finding.compared, calls=tuple(calls), element=element)
    words = describe_calls(calls, element, first)
    if finding.check == "repeat" and element is not None and element.call:
        words = f"{words}, {_after(calls[element.call - 1], calls[element.call], first)}"
    return replace(finding, call=words, compared=compared)


def _after(before: Problem, call: Problem, first: Problem) -> str:
    """The call before one, whose tensors a repeated call gets where they have the same shapes."""
    words = f"after a call with {describe_call(before, first)}"
    shapes = [[each.shape for each in problem.inputs.values()] for problem in (before, call)]
    return f"{words}, in the same tensors" if shapes[0] == shapes[1] else words


def of_call(finding: Finding, calls: Sequence[Problem], number: int, first: Problem) -> Finding:
    """Add the call number `number`, whose whole result a finding is about."""
    if finding.compared is None:  # of another shape
        return replace(finding, call=describe_calls(calls[number : number + 1], None, first))
    element = Element(number, str(finding.tensor), finding.compared.index)
    return about(finding, calls, element, first)


def of_pair(
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
    return about(finding, calls, None, first) if calls else finding


# Two sides ----------------------------------------------------------------------------------------


def differences(
    relation: Relation, results: Sequence[Tensors], run: CaseRun, *, exact: bool
) -> list[Finding]:
    """Findings about results whose right side differs from the left by more than both bounds."""
    first, bounds = run.results, run.bounds
    left, right = relation.left(first), relation.right(results)
    found = []
    for name, tensor in left.items():
        other = right[name]
        if tensor.shape != other.shape:
            title = f"{name} has shape {list(other.shape)}, expected {list(tensor.shape)}"
            differing = Finding(relation.kind, title, tensor=name)
            found.append(about(differing, relation.problems, None, bounds.problem))
            continue
        limits = [_nothing(tensor)] if exact else _limits(name, relation, first, results, bounds)
        deviation = _deviation(relation, tensor, other, limits, exact=exact)
        if deviation is not None:
            element = element_of(relation, results, name, deviation.worst)
            deviation = _in_whole_tensor(name, deviation, relation, first)
            against = relation.words
            finding = diagnose(relation.kind, name, deviation, bounds, against=against, exact=exact)
            found.append(about(finding, relation.problems, element, bounds.problem))
    return found


def compare_pair(relation: Relation, pair: Pair, run: CaseRun, *, exact: bool) -> list[Finding]:
    """Findings about tensors whose two sides differ by more than their error bounds."""
    check, bounds = relation.kind, run.bounds
    found = []
    for name, expected in pair.expected.items():
        if name not in pair.got:
            continue
        got = pair.got[name]
        if got.shape != expected.shape or got.dtype != expected.dtype:
            title = f"{name} is {_type(got)}, expected {_type(expected)}"
            found.append(Finding(check, title, tensor=name))
            continue
        limits = _pair_limits(name, expected, run.results, bounds, exact=exact)
        deviation = _deviation(relation, expected, got, limits, exact=exact)
        if deviation is None:
            continue
        finding = diagnose(check, name, deviation, bounds, against=relation.words, exact=exact)
        if check == "agreement" and bounds.problem.has_reference:
            finding = _with_errors(finding, deviation, name, relation, bounds)
        found.append(finding)
    return found


def _deviation(
    relation: Relation,
    expected: torch.Tensor,
    got: torch.Tensor,
    limits: Iterable[torch.Tensor],
    *,
    exact: bool,
) -> Deviation | None:
    """The deviation of one side from the other beyond the limits, or in bits if these count."""
    if same_bits(expected, got):
        return None
    deviation = beyond_limits(got, expected, limits)
    if deviation is None and exact and relation.exact == "bits":
        # Numbers that are equal and differ in bits: zeros or NaNs.
        kind = INT_OF_SIZE[got.element_size()]
        wrong = got.contiguous().view(kind) != expected.contiguous().view(kind)
        return Deviation.of_elements(expected.double(), got, wrong, _SAME_NUMBERS)
    return deviation


def _nothing(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor, dtype=torch.float64)


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


def _pair_limits(
    name: str, expected: torch.Tensor, first: Tensors, bounds: ReferenceBounds, *, exact: bool
) -> Iterator[torch.Tensor]:
    """Limits of the difference of two sides by element."""
    if exact:
        yield _nothing(expected)
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


def compare_with_reference(check: str, bounds: ReferenceBounds, results: Tensors) -> list[Finding]:
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


# Reach of NaN and infinity -----------------------------------------------------------------------

_MULTIPLIED = (
    "0 * NaN is NaN: are rows of another sequence, head or tile multiplied by 0 instead of being "
    "set to 0?"
)
_MASKED = (
    "the reference masks NaN (nan_to_num, where, fmax, a selection): {count} elements of its "
    "result depend on the NaN and are numbers. If the kernel need not mask it, leave the check "
    "out (`checks: {{without: [propagation]}}`), or take the masking out of the reference"
)


def compare_reach(
    relation: ReachRelation, first: Tensors, got: Tensors, bounds: ReferenceBounds
) -> Iterator[Finding]:
    """Findings about results that swallow a NaN or an infinity, or that it must not reach.

    `first` are the results without it. Each result may differ from them by its error bound.
    """
    for name, must in relation.reach.must.items():
        if name not in got or name not in first or got[name].shape != must.shape:
            continue
        values = got[name].double()  # PyTorch tests no float8
        before = first[name].double()
        lost = must & (~values.isnan() if relation.reach.nan else values.isfinite())
        if bool(lost.any()):
            wanted = torch.full_like(bounds.reference[name], torch.nan)
            yield replace(
                _finding(relation, name, (wanted, got[name], lost), bounds),
                title=f"{name}: {int(lost.sum())} of {int(must.sum())} elements that depend on "
                + ("a NaN are not NaN" if relation.reach.nan else "an infinity are finite"),
                hint="the kernel swallows NaN: does a comparison, a maximum or a clamp of a NaN "
                "choose the other operand?",
            )
        never = relation.reach.never[name] & (before.abs() < torch.inf)
        moved = (values - before).abs_()
        spread = never & ~(moved <= bounds.lower_limit_of_two_runs(name))
        if bool(spread.any()):
            spread &= ~(moved <= 2 * bounds.error_bound(name).element)
        finite, number = values.isfinite(), ~values.isnan()
        if bool((spread & number).any()):
            # Infinite where all are selected, and the NaN is passed over as the least number.
            compared = relation.reach.compared().get(name, torch.zeros_like(spread))
            spread &= ~(number & compared)
        if bool((spread & ~finite).any()):
            spread &= finite | ~relation.reach.mixed().get(name, torch.zeros_like(spread))
        if bool(spread.any()):
            others = int((spread & ~finite).sum())
            masked = relation.reach.masked.get(name, 0)
            remedy = relation.reach.remedy.get(name)
            multiplied = _MULTIPLIED + (f" If that is intended, {remedy}" if remedy else "")
            yield replace(
                _finding(relation, name, (before, got[name], spread), bounds),
                title=f"{name}: {int(spread.sum())} elements that do not depend on a NaN or an "
                f"infinity change, {others} of them to NaN or infinity",
                hint=_MASKED.format(count=masked) if masked else multiplied,
            )


def _finding(
    relation: ReachRelation,
    name: str,
    sides: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    bounds: ReferenceBounds,
) -> Finding:
    deviation = Deviation.of_elements(*sides)
    return diagnose(relation.kind, name, deviation, bounds, against=relation.words)
