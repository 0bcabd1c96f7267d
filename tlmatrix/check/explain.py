"""Turn a deviation into a finding: where, how much, which pattern, and what that suggests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.check.finding import Finding
from tlmatrix.check.hints import Evidence, hint
from tlmatrix.check.patterns import recognise
from tlmatrix.check.poison import poisoned
from tlmatrix.problem.model import Dim

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tlmatrix.check.numeric import Deviation
    from tlmatrix.problem.model import Problem, Tensors

__all__ = ["explain", "merged", "one_of"]

_ROW_PATTERNS = frozenset({"a row", "rows", "first rows", "last rows"})


def explain(
    check: str,
    name: str,
    deviation: Deviation,
    problem: Problem,
    reference: Tensors,
    *,
    words: str = "the reference",
    exact: bool = False,
) -> Finding:
    """The finding of a tensor that is outside its limits, or with `exact` not the same in each bit.

    `words` say what it was compared with. Elements that still hold poison are told from others.
    """
    wrong = deviation.wrong
    dims = _dims(name, problem, wrong.shape)
    untouched = poisoned(deviation.got)
    unwritten = untouched is not None and bool((untouched & wrong).any())
    if untouched is not None and unwritten:
        wrong = untouched & wrong
    pattern = recognise(wrong, dims)
    alone = check in ("numeric", "gradients", "poison") and words == "the reference"
    evidence = Evidence(name, dims, deviation, pattern, problem, reference, alone)
    count, nan = int(wrong.sum()), bool(deviation.got[wrong].isnan().all())
    label = "NaN rows" if nan and not unwritten and pattern.name in _ROW_PATTERNS else pattern.name
    amount = _amount(deviation, count, nan=nan, exact=exact)
    if unwritten:
        amount = f"{count} of {wrong.numel()} elements were never written"
    worst = deviation.worst
    if not bool(wrong.flatten()[worst]):
        worst = int(wrong.flatten().int().argmax())
    place = _place(worst, wrong.shape)
    return Finding(
        check=check,
        title=f"{name}: {amount} ({label}) against {words}",
        tensor=name,
        index={
            key: at
            for dim, i in zip(dims, place, strict=True)
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
        detail="no element alone is too far off; the root mean square of a region is"
        if deviation.distance == "rms"
        else None,
    )


def _place(flat: int, shape: Sequence[int]) -> list[int]:
    """The index along each dimension of an element counted in rows."""
    place = []
    for size in reversed(shape):
        flat, index = divmod(flat, size)
        place.append(index)
    return place[::-1]


def _amount(deviation: Deviation, count: int, *, nan: bool, exact: bool) -> str:
    total = deviation.wrong.numel()
    if nan:
        return f"{count} of {total} elements are NaN"
    if exact:
        return f"{count} of {total} elements differ and must be bit for bit equal"
    if deviation.ratio == float("inf"):
        return f"{count} of {total} elements are outside what is allowed"
    distance = "root mean square error" if deviation.distance == "rms" else "largest error"
    return f"{distance} {deviation.ratio:.3g} times what is allowed, {count} of {total} elements"


def _dims(name: str, problem: Problem, shape: Sequence[int]) -> tuple[Dim, ...]:
    """The tensor's own dims; plain numbered ones for a part of it that a relation compares."""
    info = problem.outputs.get(name)
    if info is not None and info.shape == tuple(shape):
        return info.dims
    return tuple(Dim(f"axis{number}", size) for number, size in enumerate(shape))


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each cause: the same check, pattern and place in several tensors is one.

    The worst stands for the others, which its detail names. Two that hint at different causes
    stay two; one without a hint goes with any.
    """
    groups: list[list[Finding]] = []
    for finding in findings:
        for group in groups:
            if all(_alike(finding, other) for other in group):
                group.append(finding)
                break
        else:
            groups.append([finding])
    return [one_of(group, "the same") for group in groups]


def _alike(one: Finding, other: Finding) -> bool:
    same = (one.check, one.pattern, one.where) == (other.check, other.pattern, other.where)
    return same and (one.hint == other.hint or None in (one.hint, other.hint))


def one_of(findings: Sequence[Finding], words: str) -> Finding:
    """The worst of some findings of one cause; its detail names the others after `words`."""
    worst = max(findings, key=_weight)
    others = [finding for finding in findings if finding is not worst]
    if not others:
        return worst
    note = f"{words}: " + "; ".join(finding.title for finding in others)
    return replace(worst, detail=f"{worst.detail}\n{note}" if worst.detail else note)


def _weight(finding: Finding) -> tuple[bool, float]:
    """How telling a finding is: one with a hint first, then the larger error."""
    return finding.hint is not None, finding.ratio if finding.ratio is not None else float("inf")
