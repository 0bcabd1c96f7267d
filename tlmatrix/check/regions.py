"""Sums and maxima over the regions of a tensor (a head of a sequence), without a loop over them.

A uniform small error of one head must not drown in a large tensor, so every distance is taken
per region; a batch of a thousand sequences has many thousand regions, so reductions are
vectorised: dimensions inside a region are reduced at once, and only a packed dimension, whose
regions have lengths of their own, is added up by segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.problem.model import Dim

__all__ = ["Regions"]


class Regions:
    """The regions of a tensor with these dims: every combination of its dims' regions.

    Reductions return one value a region, of shape `shape`: a dimension keeps one entry for each
    of its regions, and has size 1 where it lies inside a region.
    """

    def __init__(self, dims: Sequence[Dim], device: torch.device) -> None:
        self._inside = tuple(axis for axis, dim in enumerate(dims) if dim.region is None)
        self._segments: dict[int, torch.Tensor] = {}
        counts: list[torch.Tensor] = []
        for axis, dim in enumerate(dims):
            if dim.region is None:
                sizes = torch.tensor([float(dim.size)], dtype=torch.float64)
            elif dim.region == range(dim.size):
                sizes = torch.ones(dim.size, dtype=torch.float64)
            else:
                index = torch.tensor(dim.region, dtype=torch.int64)
                if index.shape != (dim.size,):
                    raise ValueError(
                        f"dim {dim.name} has {dim.size} entries and {index.numel()} regions"
                    )
                number = max(int(index.max()) + 1 if dim.size else 1, len(dim.starts or ()))
                sizes = torch.bincount(index, minlength=number).double()
                self._segments[axis] = index.to(device)
            counts.append(sizes.reshape([-1 if at == axis else 1 for at in range(len(dims))]))
        elements = torch.ones([1] * len(dims), dtype=torch.float64)
        for sizes in counts:
            elements = elements * sizes
        self.elements = elements.to(device)
        """How many elements each region has."""
        inside = len(dims) > 1 and dims[-1].region is None
        self._columns = max(dims[-1].size, 1) if inside else 1

    @property
    def shape(self) -> torch.Size:
        """One entry for each region along every dimension."""
        return self.elements.shape

    def rows(self, marks: torch.Tensor) -> torch.Tensor:
        """How many rows hold elements marked with 1, about; a row is the last dimension."""
        return self.sum(marks) / self._columns

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over each region."""
        if self._inside:
            values = values.sum(self._inside, keepdim=True)
        for axis, index in self._segments.items():
            shape = list(values.shape)
            shape[axis] = self.shape[axis]
            values = values.new_zeros(shape).index_add_(axis, index, values)
        return values

    def largest(self, values: torch.Tensor) -> torch.Tensor:
        """The largest of the values, which are not negative; 0 for an empty region."""
        if values.numel() == 0:
            return values.new_zeros(self.shape)
        if self._inside:
            values = values.amax(self._inside, keepdim=True)
        for axis, index in self._segments.items():
            shape = list(values.shape)
            shape[axis] = self.shape[axis]
            along = index.reshape([-1 if at == axis else 1 for at in range(values.ndim)])
            values = values.new_zeros(shape).scatter_reduce_(
                axis, along.expand(values.shape), values, "amax"
            )
        return values

    def rms(self, values: torch.Tensor, scratch: torch.Tensor | None = None) -> torch.Tensor:
        """The root mean square over each region; 0 for an empty one.

        Squares are written to `scratch`, where it is given; it may be `values` itself.
        """
        squares = torch.mul(values, values, out=scratch)
        return (self.sum(squares) / self.elements.clamp_min(1)).sqrt_()

    def rms_of_all(self, per_region: torch.Tensor) -> torch.Tensor:
        """The root mean square over the tensor, from that of its regions."""
        total = (per_region.square() * self.elements).sum()
        return (total / self.elements.sum().clamp_min(1)).sqrt_()

    def spread(self, per_region: torch.Tensor) -> torch.Tensor:
        """Every region's value at its elements, in a shape that broadcasts over the tensor."""
        for axis, index in self._segments.items():
            per_region = per_region.index_select(axis, index)
        return per_region
