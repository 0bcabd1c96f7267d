"""Selects some regions of a tensor, with the error bounds that they have in the whole tensor.

An error bound costs many times the arithmetic of an error. A first pass (`error_stats`) clears
most regions; only the others are compared with their error bound.
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


@dataclass(frozen=True)
class RegionSubset:
    """The rows of some regions of a tensor, as a tensor [rows, width] described by `info`."""

    info: TensorInfo
    shape: tuple[int, ...]
    _indices: tuple[torch.Tensor, ...]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same rows of another tensor of the whole shape."""
        return tensor.detach()[self._indices].view(self.shape)


def select_regions(info: TensorInfo, regions: Regions, chosen: np.ndarray) -> RegionSubset:
    """The rows of the regions for which the mask `chosen`, [regions], is set.

    Requires `info.magnitude`: its replacement depends on all regions.
    """
    rows = np.flatnonzero(chosen[regions.of_rows])
    numbers = regions.of_rows[rows].tolist()
    dims = (Dim("row", len(numbers), region=numbers), Dim("element", regions.width))
    whole = info.shape
    leading = whole if regions.width == 1 else whole[:-1]

    def part(name: str) -> Callable[[], torch.Tensor] | None:
        make: Callable[[], torch.Tensor] | None = getattr(info, name)
        return make and (lambda: subset.of(make().expand(whole)))

    own = replace(
        info,
        dims=dims,
        magnitude=part("magnitude"),
        spread=part("spread"),
        exponent=part("exponent"),
        independent=part("independent"),
        carried=part("carried"),
        carried_spread=part("carried_spread"),
    )
    # A tensor that is a single region has no leading dimensions to index rows by.
    indices = np.unravel_index(rows, leading) if leading else ()
    subset = RegionSubset(own, own.shape, tuple(map(torch.from_numpy, indices)))
    return subset
