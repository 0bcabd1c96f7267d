"""Compares where results are NaN or infinite with where the reference is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tlmatrix.check.diagnose import diagnose
from tlmatrix.check.numeric import Deviation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.check.finding import Finding
    from tlmatrix.check.tolerance import ReferenceBounds
    from tlmatrix.problem.model import ReachRelation, Tensors


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
        if bool(spread.any()):
            others = int((~values[spread].isfinite()).sum())
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
