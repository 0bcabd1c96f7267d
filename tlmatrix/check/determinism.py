"""Compares the results of equal calls: bit for bit, or within the error bounds of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tlmatrix.check.bits import same_bits
from tlmatrix.check.diagnose import diagnose
from tlmatrix.check.numeric import beyond_limits

if TYPE_CHECKING:
    from tlmatrix.check.finding import Finding
    from tlmatrix.check.tolerance import ReferenceBounds
    from tlmatrix.problem.model import Tensors


def compare_runs(
    first: Tensors,
    again: Tensors,
    bounds: ReferenceBounds,
    *,
    exact: bool,
    against: str = "the first of the equal calls",
) -> list[Finding]:
    """Findings about results that differ between two runs of the same problem.

    With `exact`, the numbers must be equal: -0.0 is 0.0, and a NaN any NaN. Otherwise elements may
    differ by the sum of both runs' error bounds.
    """
    found = []
    for name, tensor in first.items():
        if name not in bounds.problem.outputs or name not in again:
            continue
        other = again[name]
        if same_bits(tensor, other):
            continue
        # Signs of zeros and payloads of NaNs may differ even if `exact`.
        nothing = torch.zeros_like(tensor, dtype=torch.float64)
        limits = [nothing] if exact else bounds.limits_of_two_runs(name)
        deviation = beyond_limits(other, tensor, limits)
        if deviation is not None:
            found.append(
                diagnose("determinism", name, deviation, bounds, against=against, exact=exact)
            )
    return found
