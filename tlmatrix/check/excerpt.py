"""Some regions of a tensor as a tensor of their own, with the limits that they have in the whole.

Limits take many times the arithmetic of a distance. Where a result is surely within them in all
regions but a few, only those few are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from tlmatrix.problem.model import Dim

if TYPE_CHECKING:
    from collections.abc import Callable

    from tlmatrix.check.regions import Regions
    from tlmatrix.problem.model import TensorInfo

__all__ = ["Excerpt", "excerpt"]


@dataclass(frozen=True)
class Excerpt:
    """The rows of some regions of a tensor, [rows, width], and how exact they could be."""

    info: TensorInfo
    shape: tuple[int, ...]
    _place: tuple[torch.Tensor, ...]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same rows of a tensor of the whole shape."""
        return tensor.detach()[self._place].view(self.shape)


def excerpt(info: TensorInfo, regions: Regions, chosen: np.ndarray) -> Excerpt:
    """The rows of the regions that `chosen`, [regions], marks.

    `info.magnitude` must be known, for what stands in for it depends on all regions.
    """
    rows = np.flatnonzero(chosen[regions.of_rows])
    numbers = regions.of_rows[rows].tolist()
    dims = (Dim("row", len(numbers), region=numbers), Dim("element", regions.width))
    whole = info.shape
    leading = whole if regions.width == 1 else whole[:-1]

    def part(name: str) -> Callable[[], torch.Tensor] | None:
        make: Callable[[], torch.Tensor] | None = getattr(info, name)
        return make and (lambda: found.of(make().expand(whole)))

    own = replace(
        info,
        dims=dims,
        magnitude=part("magnitude"),
        spread=part("spread"),
        exponent=part("exponent"),
    )
    # A tensor that is one region has no leading dimension to number its rows by.
    place = np.unravel_index(rows, leading) if leading else ()
    found = Excerpt(own, own.shape, tuple(map(torch.from_numpy, place)))
    return found
