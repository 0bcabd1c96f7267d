"""Compares the results of equal calls: bit for bit, or within the error bounds of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tlmatrix.check.bits import same_bits
from tlmatrix.check.diagnose import diagnose
from tlmatrix.check.numeric import Deviation, difference

if TYPE_CHECKING:
    from tlmatrix.check.finding import Finding
    from tlmatrix.check.tolerance import ReferenceBounds
    from tlmatrix.problem.model import Tensors

__all__ = ["compare_runs"]


def compare_runs(
    first: Tensors, again: Tensors, bounds: ReferenceBounds, *, exact: bool
) -> list[Finding]:
    """Findings about results that differ between two runs of the same problem.

    With `exact`, every bit must be equal; otherwise elements may differ by the sum of both runs'
    error bounds.
    """
    found = []
    for name, tensor in first.items():
        if name not in bounds.problem.outputs or name not in again:
            continue
        other = again[name]
        if same_bits(tensor, other):
            continue
        if exact:
            deviation = _bits(other, tensor)
        else:
            # A lower bound of the error bound is cheaper, and mostly sufficient.
            deviation = difference(other, tensor, bounds.lower_bound(name, 2))
            if deviation is not None:
                deviation = difference(other, tensor, 2 * bounds.error_bound(name).element)
        if deviation is not None:
            found.append(
                diagnose(
                    "determinism",
                    name,
                    deviation,
                    bounds.problem,
                    bounds.reference,
                    against="the first of the equal calls",
                    exact=exact,
                )
            )
    return found


def _bits(got: torch.Tensor, expected: torch.Tensor) -> Deviation | None:
    """The elements that differ; None if only signs of zeros or payloads of NaNs do."""
    return difference(got, expected, torch.zeros_like(expected, dtype=torch.float64))
