"""Turns a deviation into a finding with its location, size, pattern and a likely cause."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from tlmatrix.check.finding import Compared, Finding
from tlmatrix.check.hints import Evidence, hint
from tlmatrix.check.memory import poison_mask
from tlmatrix.check.numeric import compare
from tlmatrix.check.patterns import pictures, recognise
from tlmatrix.problem.model import Dim
from tlmatrix.words import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tlmatrix.check.numeric import Deviation
    from tlmatrix.check.tolerance import ReferenceBounds
    from tlmatrix.problem.model import OtherOption, Problem

_DISTANCES = {
    "element": "largest error",
    "rms": "root mean square error",
    "mean": "mean of signed errors",
}
_EXPLAINED = 0.05
"""Most of the squared error that the reference of another option may leave."""
_ENOUGH_ELEMENTS = 8
"""Wrong elements that may be those of another option though others are not."""
_ROW_PATTERNS = frozenset({"a row", "rows", "first rows", "last rows"})


def diagnose(
    check: str,
    name: str,
    deviation: Deviation,
    bounds: ReferenceBounds,
    *,
    against: str = "the reference",
    exact: bool = False,
) -> Finding:
    """The finding about a tensor beyond its error bound, or with `exact` not equal in every bit.

    `against` names the other side of the comparison. If elements still hold poison, the finding is
    about these alone.
    """
    wrong = deviation.wrong
    dims = _dims(name, bounds.problem, wrong.shape)
    poison = poison_mask(deviation.got)
    unwritten = poison is not None and bool((poison & wrong).any())
    if poison is not None and unwritten:
        wrong = poison & wrong
    pattern = recognise(wrong, dims)
    alone = check in ("numeric", "gradients", "poison") and against == "the reference"
    evidence = Evidence(
        name,
        dims,
        deviation,
        pattern,
        bounds.problem,
        bounds.reference,
        alone,
        partial(_rounded_operands, name, deviation, bounds),
        partial(_rounded_values, name, deviation, bounds),
        partial(_other_options, name, deviation, bounds),
        partial(_limit, name, deviation, bounds),
    )
    count, nan = int(wrong.sum()), bool(deviation.got[wrong].isnan().all())
    label = "NaN rows" if nan and not unwritten and pattern.name in _ROW_PATTERNS else pattern.name
    if unwritten:
        title = f"{name}: {count} of {wrong.numel()} elements were never written ({label})"
    else:
        amount = _amount(deviation, count, nan=nan, exact=exact)
        title = f"{name}: {amount} ({label}) against {against}"
    worst = deviation.worst
    if not bool(wrong.flatten()[worst]):
        worst = int(wrong.flatten().int().argmax())
    index = [int(at) for at in np.unravel_index(worst, wrong.shape)]
    return Finding(
        check=check,
        title=title,
        tensor=name,
        index={
            key: at
            for dim, i in zip(dims, index, strict=True)
            for key, at in dim.describe(i).items()
        },
        expected=float(deviation.expected.flatten()[worst]),
        got=float(deviation.got.flatten()[worst]),
        ratio=deviation.ratio if deviation.ratio < float("inf") else None,
        wrong=count,
        total=wrong.numel(),
        pattern=label,
        where=pattern.where,
        hint=hint(evidence),
        pictures=pictures(wrong, dims, index),
        detail=deviation.note,
        compared=Compared(deviation.expected, deviation.got.detach().clone(), tuple(index)),
    )


def _rounded_operands(name: str, deviation: Deviation, bounds: ReferenceBounds) -> str | None:
    """The dtype of operands, as a spec writes it, whose rounding explains the deviation."""
    for dtype, bound in bounds.of_rounded_operands(name):
        if compare(deviation.got, bounds.reference[name], bound) is None:
            return dtype
    return None


def _rounded_values(
    name: str, deviation: Deviation, bounds: ReferenceBounds
) -> tuple[str, str] | None:
    """The dtype of values whose rounding explains the deviation, and an input that has it."""
    for dtype, given, bound in bounds.of_rounded_values(name):
        if compare(deviation.got, bounds.reference[name], bound) is None:
            return str(dtype)[6:], given
    return None


def _limit(name: str, deviation: Deviation, bounds: ReferenceBounds) -> torch.Tensor | None:
    """The error bound of each element; None if a relation compares tensors of another shape."""
    info = bounds.problem.outputs.get(name)
    if info is None or info.shape != deviation.expected.shape or not bounds.problem.has_reference:
        return None
    return bounds.error_bound(name).element


def _other_options(
    name: str, deviation: Deviation, bounds: ReferenceBounds
) -> tuple[list[OtherOption], bool]:
    """Other values of options that explain the deviation, and whether they do in all elements.

    Else the wrong elements alone are those of the other value.
    """
    wrong = deviation.wrong
    expected, got = deviation.expected[wrong], deviation.got[wrong].double()
    error = torch.nan_to_num(got - expected, posinf=1.0, neginf=1.0).square().sum()
    found, whole = [], True
    for other, own in bounds.of_other_options:
        if name not in other.problem.outputs:
            continue
        try:
            reference = own.reference[name]
        except Exception:  # noqa: BLE001, S112 - a user's reference, of a value that no case has
            continue
        left = torch.nan_to_num(got - reference[wrong], posinf=1.0, neginf=1.0).square().sum()
        if float(left) > _EXPLAINED * float(error):
            continue
        if compare(deviation.got, reference, own.error_bound(name)) is None:
            found.append((other, True))
        elif int(wrong.sum()) >= _ENOUGH_ELEMENTS:
            limit = own.error_bound(name).element[wrong]
            if bool(((got - reference[wrong]).abs() <= limit).all()):
                found.append((other, False))
    whole = any(everywhere for _, everywhere in found)
    return [other for other, everywhere in found if everywhere or not whole], whole


def _amount(deviation: Deviation, count: int, *, nan: bool, exact: bool) -> str:
    total = deviation.wrong.numel()
    if nan:
        return f"{count} of {total} elements are NaN"
    if exact:
        return f"{count} of {total} elements differ and must be bit for bit equal"
    if deviation.ratio == float("inf"):
        return f"{count} of {total} elements are beyond the error bound"
    distance = _DISTANCES[deviation.distance]
    return f"{distance} {deviation.ratio:.3g} times the error bound, {count} of {total} elements"


def _dims(name: str, problem: Problem, shape: Sequence[int]) -> tuple[Dim, ...]:
    """The dims of the tensor, or numbered ones if a relation compares other shapes."""
    info = problem.outputs.get(name)
    if info is not None and info.shape == tuple(shape):
        return info.dims
    return tuple(Dim(f"axis{number}", size) for number, size in enumerate(shape))


def merge_by_cause(findings: Iterable[Finding]) -> list[Finding]:
    """Merge findings with the same check, pattern, location and hint in several tensors.

    The worst one remains, and its detail lists the others. A missing hint matches any.
    """
    groups: list[list[Finding]] = []
    for finding in findings:
        for group in groups:
            if all(_same_cause(finding, other) for other in group):
                group.append(finding)
                break
        else:
            groups.append([finding])
    return [worst_of(group, "same cause") for group in groups]


def merge_raised(findings: Iterable[Finding]) -> list[Finding]:
    """Merge findings of several runs that ended with the same report or exception.

    The first one remains, and its detail lists the checks that the others are from.
    """
    kept: dict[tuple[str | None, ...], Finding] = {}
    ended: dict[tuple[str | None, ...], list[str]] = {}
    for number, finding in enumerate(findings):
        key = _end_of_run(finding) or (str(number),)
        if key in kept:
            ended.setdefault(key, []).append(finding.check)
        else:
            kept[key] = finding
    for key, checks in ended.items():
        names = list(dict.fromkeys(checks))
        note = f"{listed(names)} end{'s' if len(names) == 1 else ''} in the same way"
        kept[key] = kept[key].with_notes(note)
    return list(kept.values())


def _end_of_run(finding: Finding) -> tuple[str | None, ...] | None:
    """Equal for runs that end in the same way; None for a finding about results."""
    if finding.source is not None:
        return (finding.kernel, (finding.pattern or "").partition(" at ")[0])
    if finding.pattern == "raised":
        return (re.sub(r"\d+", "0", finding.title.partition("raised ")[2]),)
    return None


def _same_cause(one: Finding, other: Finding) -> bool:
    same = (one.check, one.pattern, one.where) == (other.check, other.pattern, other.where)
    return same and (one.hint == other.hint or None in (one.hint, other.hint))


def worst_of(findings: Sequence[Finding], label: str) -> Finding:
    """The worst finding; its detail lists the others after `label`."""
    worst = max(findings, key=_severity)
    others = [finding for finding in findings if finding is not worst]
    if not others:
        return worst
    return worst.with_notes(f"{label}: " + "; ".join(finding.title for finding in others))


def _severity(finding: Finding) -> tuple[bool, float]:
    """A sort key: findings with a hint, then by error."""
    return finding.hint is not None, finding.ratio if finding.ratio is not None else float("inf")
