"""The same call again: equal bits, or where the spec says bounded, equal within limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tlmatrix.check.bits import alike
from tlmatrix.check.explain import explain
from tlmatrix.check.numeric import Deviation, difference

if TYPE_CHECKING:
    from tlmatrix.check.finding import Finding
    from tlmatrix.check.tolerance import Yardstick
    from tlmatrix.problem.model import Tensors

__all__ = ["compare_runs"]


def compare_runs(
    first: Tensors, again: Tensors, yardstick: Yardstick, *, exact: bool
) -> list[Finding]:
    """Findings where a second run of the same problem gave something else.

    exact: equal bits; else each element within the sum of both runs' allowances.
    """
    found = []
    for name, tensor in first.items():
        if name not in yardstick.problem.outputs or name not in again:
            continue
        other = again[name]
        if alike(tensor, other):
            continue
        if exact:
            deviation = _bits(other, tensor)
        else:
            # Limits take longer to make than a lower bound of them, which is mostly enough.
            deviation = difference(other, tensor, yardstick.least_by_element(name, 2))
            if deviation is not None:
                deviation = difference(other, tensor, 2 * yardstick.limits(name).element)
        if deviation is not None:
            found.append(
                explain(
                    "determinism",
                    name,
                    deviation,
                    yardstick.problem,
                    yardstick.reference,
                    words="the first of the equal calls",
                    exact=exact,
                )
            )
    return found


def _bits(got: torch.Tensor, expected: torch.Tensor) -> Deviation | None:
    """Every element that differs counts; where only the signs of zeros or NaNs do, none."""
    return difference(got, expected, torch.zeros_like(expected, dtype=torch.float64))
